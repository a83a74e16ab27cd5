"""Documents, texts and phrases in one list: ranked, capped, each distinct one once."""

import functools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.config import MAX_PHRASES
from univerb.errors import OptionError, PhraseError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.collection import collect_phrases
from univerb.phrases.lists import LeftOutWarning
from univerb.phrases.ngrams import ngrams
from univerb.tokenizer import Tokenizer

WORDS = ["the", "tenant", "shall", "pay", "rent", "premises"]
DOCUMENTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=2, max_size=12).map(" ".join), max_size=3
).map(lambda texts: [Document(text, f"{n}.txt") for n, text in enumerate(texts)])


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def made(text: str, **fields) -> Phrase:
    ids = tuple(tokenizer().encode_inside(text).ids)
    return Phrase(ids, tokenizer().decode(ids), **fields)


def texts(phrases: list[Phrase]) -> list[str]:
    return [phrase.text.strip() for phrase in phrases]


def saved(phrase: Phrase) -> int:
    return len(phrase.sources) * (len(phrase.ids) - 1)


class TestDocuments:
    @given(DOCUMENTS)
    def test_every_phrase_of_every_document_is_there_once_with_all_places(
        self, documents: list[Document]
    ) -> None:
        collected = collect_phrases(documents, tokenizer())
        expected = Counter(
            (phrase.ids, span)
            for document in documents
            for phrase in ngrams()(document, tokenizer())
            for span in phrase.sources
        )
        assert Counter((p.ids, span) for p in collected for span in p.sources) == expected
        assert len({phrase.ids for phrase in collected}) == len(collected)

    @given(DOCUMENTS)
    def test_those_that_save_most_tokens_come_first(self, documents: list[Document]) -> None:
        order = [saved(phrase) for phrase in collect_phrases(documents, tokenizer())]
        assert order == sorted(order, reverse=True)

    @given(DOCUMENTS, st.integers(0, 30))
    def test_a_cap_keeps_the_first(self, documents: list[Document], cap: int) -> None:
        everything = collect_phrases(documents, tokenizer())
        capped = collect_phrases(documents, tokenizer(), max_phrases=cap)
        assert [p.ids for p in capped] == [p.ids for p in everything[:cap]]

    def test_a_phrase_of_two_documents_has_the_sources_of_both(self) -> None:
        documents = [
            Document("the premises", "a.txt"),
            Document("pay the premises", "b.txt"),
        ]
        collected = collect_phrases(documents, tokenizer())
        (phrase,) = [p for p in collected if p == made("the premises")]
        assert phrase.sources == (Span("a.txt", 0, 12), Span("b.txt", 4, 16))

    def test_a_source_of_ones_own_replaces_the_ngrams(self) -> None:
        asked = []

        def source(document: Document, given_tokenizer: Tokenizer):
            asked.append((document.name, given_tokenizer))
            yield made("quiet enjoyment", sources=(Span(document.name, 0, 3),))

        (phrase,) = collect_phrases([Document("x y"), Document("z w", "b")], tokenizer(), source)
        assert asked == [("text", tokenizer()), ("b", tokenizer())]
        assert phrase.sources == (Span("text", 0, 3), Span("b", 0, 3))

    def test_items_may_come_from_an_iterator(self) -> None:
        collected = collect_phrases(iter([Document(TEXT), "quiet enjoyment"]), tokenizer())
        assert texts(collected)[0] == "quiet enjoyment"


class TestOwnPhrases:
    def test_a_users_texts_come_first_in_their_order(self) -> None:
        own = ["quiet enjoyment", "mutual consent"]
        collected = collect_phrases([Document(TEXT), *own], tokenizer())
        assert texts(collected)[:2] == own
        assert len(collected) > 50

    def test_a_cap_never_drops_a_users_text_for_a_documents_phrase(self) -> None:
        own = ["quiet enjoyment", "mutual consent"]
        assert texts(collect_phrases([Document(TEXT), *own], tokenizer(), max_phrases=2)) == own

    def test_a_users_text_has_the_places_where_documents_have_it(self) -> None:
        first, *rest = collect_phrases([("good repair", 2.0), Document(TEXT)], tokenizer())
        (span,) = first.sources
        assert TEXT[span.start : span.end] == "good repair"
        assert first.weight == 2.0
        assert first not in rest

    def test_a_phrase_is_taken_as_it_stands_and_merged(self) -> None:
        phrase = made("good repair", sources=(Span("b.txt", 5, 16),), weight=-1.0)
        (collected,) = [
            p for p in collect_phrases([phrase, Document(TEXT)], tokenizer()) if p == phrase
        ]
        assert {span.document for span in collected.sources} == {"b.txt", "text"}
        assert collected.weight == -1.0

    def test_a_users_phrase_comes_before_those_of_documents(self) -> None:
        own = made("mutual consent")
        assert collect_phrases([Document(TEXT), own], tokenizer(), max_phrases=1) == [own]

    def test_a_text_given_twice_keeps_the_weight_that_is_larger_in_size(self) -> None:
        items = [("quiet enjoyment", 2.0), "quiet enjoyment"]
        (collected,) = collect_phrases(items, tokenizer())
        assert collected.weight == 2.0

    def test_a_text_that_cannot_be_a_phrase_is_left_out_with_a_warning(self) -> None:
        with pytest.warns(LeftOutWarning, match="'the'"):
            collected = collect_phrases(["the", "quiet enjoyment"], tokenizer())
        assert texts(collected) == ["quiet enjoyment"]

    @pytest.mark.parametrize(
        "item", [None, 1, ("a b", None), ("a b", "1"), (1, 2), ("a b", 1.0, 2), ()]
    )
    def test_what_is_no_phrase_is_refused(self, item: object) -> None:
        with pytest.raises(PhraseError, match="phrases are made from"):
            collect_phrases(["quiet enjoyment", item], tokenizer())

    def test_an_empty_text_is_refused(self) -> None:
        with pytest.raises(PhraseError, match="empty"):
            collect_phrases([Document(TEXT), " "], tokenizer())


class TestCap:
    @pytest.mark.parametrize("cap", [-1, True, 1.5, "3"])
    def test_a_cap_that_is_no_number_is_refused(self, cap: object) -> None:
        with pytest.raises(OptionError, match="max_phrases is"):
            collect_phrases([Document(TEXT)], tokenizer(), max_phrases=cap)  # type: ignore[arg-type]

    def test_nothing_gives_nothing(self) -> None:
        assert collect_phrases([], tokenizer()) == []

    def test_zero_keeps_none(self) -> None:
        assert collect_phrases(["quiet enjoyment"], tokenizer(), max_phrases=0) == []

    @pytest.mark.parametrize("cap", [-1, 1.5, "many"])
    def test_a_cap_that_is_no_number_of_phrases_is_refused(self, cap: object) -> None:
        with pytest.raises(OptionError, match=f"max_phrases is {cap!r}"):
            collect_phrases(["quiet enjoyment"], tokenizer(), max_phrases=cap)


class TestManyPhrases:
    """A document has about as many n-grams as characters."""

    @pytest.fixture
    def long(self) -> Document:
        words = [w for w in sorted(set(TEXT.split())) if len(tokenizer().encode_inside(w).ids) == 1]
        return Document(" ".join(random.Random(0).choices(words, k=40_000)), "long.txt")

    def test_the_default_leaves_out_those_that_save_least_and_says_so(self, long) -> None:
        with pytest.warns(LeftOutWarning, match=r"[\d,]+ of \d\d\d,\d\d\d phrases .*max_phrases"):
            collected = collect_phrases([long, "mutual consent"], tokenizer())
        assert len(collected) == MAX_PHRASES
        assert texts(collected)[0] == "mutual consent"
        everything = collect_phrases([long, "mutual consent"], tokenizer(), max_phrases=None)
        assert [p.ids for p in collected] == [p.ids for p in everything[:MAX_PHRASES]]
        assert len(everything) > MAX_PHRASES

    def test_those_that_are_left_out_never_become_objects(self, long, monkeypatch) -> None:
        decoded = []
        decode = Tokenizer.decode
        monkeypatch.setattr(
            Tokenizer, "decode", lambda self, ids: decoded.append(ids) or decode(self, ids)
        )
        assert len(collect_phrases([long], tokenizer(), max_phrases=50)) == 50
        assert len(decoded) == 50

    def test_a_users_phrase_beyond_the_maximum_has_its_places_all_the_same(self) -> None:
        document = Document("pay the rent. " * 50 + "good repair")
        (phrase,) = collect_phrases([document, "good repair"], tokenizer(), max_phrases=1)
        assert [document.text[s.start : s.end] for s in phrase.sources] == ["good repair"]

    def test_ready_made_phrases_are_counted_too(self) -> None:
        phrases = [Phrase((i // 300, i % 300), "text") for i in range(MAX_PHRASES + 1)]
        with pytest.warns(LeftOutWarning, match=r"^1 of 100,001 phrases"):
            assert len(collect_phrases(phrases, tokenizer())) == MAX_PHRASES
        assert len(collect_phrases(phrases, tokenizer(), max_phrases=None)) == MAX_PHRASES + 1
