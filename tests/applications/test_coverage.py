"""How much of a text phrases could write: counted by hand and by brute force."""

import json

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_gpt2, make_tokenizer
from univerb.applications.coverage import (
    Coverage,
    passages_of,
    retrieved_coverage,
    table_coverage,
)
from univerb.corpus import Corpus
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import OptionError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.ngrams import ngrams
from univerb.phrases.tokenized import tokenize_lines
from univerb.tokenizer import Tokenizer

# Each of these is one token, with the space before it.
WORDS = ["the", "tenant", "shall", "landlord", "premises", "day"]
CORPUS = ["the tenant shall day", "the tenant shall premises", "landlord the tenant premises shall"]
TEXTS = st.lists(st.sampled_from([*WORDS, "unusual", "12", "7", ".", "\n"]), min_size=1).map(
    lambda words: "the " + " ".join(words)
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("coverage") / "c.uv"
    documents = [Document(text, f"{number}.txt") for number, text in enumerate(CORPUS)]
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    return build_corpus(folder, documents, lm, CorpusSettings(sizes=(2, 3), vectors=False))


def brute_force(keys: set[tuple[int, ...]], document: Document, tokenizer: Tokenizer) -> Coverage:
    """Take the longest phrase that stands at each place, line by line."""
    text = tokenize_lines(document, tokenizer)
    total = Coverage()
    sizes = (2, 3)
    for line in text.lines():
        ids = text.ids[line].tolist()
        place = 0
        while place < len(ids):
            allowed = [
                size
                for size in sizes
                if line.start + place in text.windows(size)
                and tuple(ids[place : place + size]) in keys
            ]
            size = max(allowed, default=1)
            total.units += 1
            total.covered += size * (size > 1)
            place += size
        total.tokens += len(ids)
    return total


def assert_same(found: Coverage, expected: Coverage) -> None:
    counts = [(total.tokens, total.units, total.covered) for total in (found, expected)]
    assert counts[0] == counts[1]


class TestByHand:
    def test_the_whole_corpus_as_candidates(self, corpus, tokenizer):
        held_out = Document("the tenant shall day the tenant premises")
        found = table_coverage(corpus, [held_out], tokenizer)
        # [the tenant shall] day [the tenant] premises
        assert (found.tokens, found.units) == (7, 4)
        assert found.covered == 5
        assert found.phrases == 3
        assert found.compression == 4 / 7
        assert found.share == 5 / 7
        data = json.loads(json.dumps(found.to_dict()))
        assert data["units_per_token"] == 4 / 7

    def test_documents_add_up(self, corpus, tokenizer):
        held_out = Document("the tenant shall day the tenant premises")
        found = table_coverage(corpus, [held_out] * 3, tokenizer)
        assert (found.tokens, found.units) == (21, 12)
        assert found.covered == 15

    def test_nothing_is_covered_of_nothing(self, corpus, tokenizer):
        found = table_coverage(corpus, [], tokenizer)
        assert (found.compression, found.share) == (1.0, 0.0)
        assert retrieved_coverage(corpus, [], tokenizer).to_dict()["phrases_per_passage"] == 0

    def test_a_line_break_ends_a_phrase(self, corpus, tokenizer):
        found = table_coverage(corpus, [Document("the tenant\nshall day")], tokenizer)
        assert (found.tokens, found.units) == (4, 3)


class TestBruteForce:
    @given(text=TEXTS)
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @example(text=TEXT)
    def test_of_the_table(self, corpus, tokenizer, text):
        keys = set(corpus.phrases.ids(numpy.arange(len(corpus.phrases))))
        document = Document(text)
        found = table_coverage(corpus, [document], tokenizer)
        assert_same(found, brute_force(keys, document, tokenizer))

    @given(text=TEXTS, k=st.integers(1, 3))
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_of_what_is_retrieved(self, corpus, tokenizer, text, k):
        document = Document(text)
        chunks = [hit.chunk for hit in corpus.search("landlord", k)]
        stored = set(corpus.phrases.ids(numpy.arange(len(corpus.phrases))))
        keys = stored & {
            phrase.ids
            for chunk in chunks
            for phrase in ngrams((2, 3))(Document(chunk.text), tokenizer)
        }
        found = retrieved_coverage(corpus, [("landlord", document)], tokenizer, k)
        assert_same(found, brute_force(keys, document, tokenizer))
        assert (found.passages, found.phrases) == (1, len(keys))


ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


class TestPassages:
    @given(
        texts=st.lists(TEXTS | ANYTHING.map(lambda text: f"a{text}"), max_size=6),
        prefix=st.integers(1, 8),
        length=st.integers(1, 8),
    )
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_beginning_and_rest_begin_the_document(self, tokenizer, texts, prefix, length):
        documents = [Document(text, str(number)) for number, text in enumerate(texts)]
        found = passages_of(documents, tokenizer, prefix, length)
        assert len({rest.name for _, rest in found}) == len(found)
        for beginning, rest in found:
            text = texts[int(rest.name)]
            assert text.startswith(beginning + rest.text)
            offsets = tokenizer.encode(text).offsets
            assert len(beginning) == offsets[prefix - 1][1]
            assert len(beginning + rest.text) == offsets[: prefix + length][-1][1]

    def test_a_document_needs_more_than_its_beginning(self, tokenizer):
        documents = [Document(" the tenant shall"), Document(" the tenant shall day")]
        found = passages_of(documents, tokenizer, prefix=3)
        assert [(begin, rest.text) for begin, rest in found] == [(" the tenant shall", " day")]

    def test_a_book_is_not_read_for_its_first_page(self, tokenizer):
        found = passages_of([Document(f"{TEXT} " * 1000)], tokenizer, 4, 8)
        assert found == passages_of([Document(TEXT)], tokenizer, 4, 8)

    @given(total=st.integers(0, 30), limit=st.integers(0, 40))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_limit_takes_them_evenly(self, tokenizer, total, limit):
        documents = [Document(" the tenant shall day", str(number)) for number in range(total)]
        found = passages_of(documents, tokenizer, 2, limit=limit)
        names = [int(rest.name) for _, rest in found]
        assert len(names) == len(set(names)) == min(total, limit)
        gaps = {b - a for a, b in zip(names, names[1:], strict=False)}
        assert not gaps or max(gaps) - min(gaps) <= 1

    @pytest.mark.parametrize(("prefix", "length"), [(0, 8), (8, 0), (-1, 8)])
    def test_a_passage_has_a_beginning_and_a_rest(self, tokenizer, prefix, length):
        with pytest.raises(OptionError, match="at least 1"):
            passages_of([Document(TEXT)], tokenizer, prefix, length)
