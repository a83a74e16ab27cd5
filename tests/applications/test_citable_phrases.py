"""The phrases that an answer may be written with: all of them can be cited."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.applications.citable_phrases import MarkedPhrase, citable_phrases
from univerb.documents.chunks import Chunk
from univerb.phrase import Phrase, Span
from univerb.phrases.ngrams import ngrams
from univerb.tokenizer import Tokenizer

LEASE = Chunk("lease", 100, "The tenant shall pay the rent. The landlord keeps the premises dry.")
LAW = Chunk("law", 0, "Every tenant shall pay the rent on time! Who else?")


@pytest.fixture
def tokenizer(hf_tokenizer) -> Tokenizer:
    return Tokenizer(hf_tokenizer.backend_tokenizer, hf_tokenizer.all_special_ids)


@given(st.text(min_size=1, max_size=80).filter(str.strip), st.integers(0, 50), st.booleans())
@pytest.mark.filterwarnings("ignore::univerb.phrases.ngrams.UnspacedTextWarning")
def test_phrases_point_into_the_document(hf_tokenizer, text, start, encode_marker):
    tokenizer = Tokenizer(hf_tokenizer.backend_tokenizer)
    passages = [LAW, Chunk("d", start, text)]
    for phrase in citable_phrases(passages, ngrams(), tokenizer, encode_marker):
        assert "[" not in phrase.text.replace("[1]", "").replace("[2]", "")
        for span in phrase.sources:
            passage = passages[span.document == "d"]
            own = passage.text[span.start - passage.start : span.end - passage.start]
            bare = re.sub(r"\[\d\]$", "", phrase.text).strip()
            assert own.replace("\n", " ") == bare


def test_a_source_that_errs_is_not_believed(tokenizer):
    def source(document, tokenizer):
        ids = tuple(tokenizer.encode_inside("the rent").ids)
        yield Phrase(ids, " the rent", (Span(document.name, 0, 8), Span("elsewhere", 0, 8)))

    assert not list(citable_phrases([LEASE, LAW], source, tokenizer))


def test_brackets_are_left_to_markers(tokenizer):
    passage = Chunk("wiki", 0, "The rent [2] is paid [sic] each month")
    found = [phrase.text for phrase in citable_phrases([passage], ngrams(), tokenizer)]
    assert found and not any("[" in text or "]" in text for text in found)


def test_marked_phrases_have_one_entry_per_passage(tokenizer):
    plain = {p.ids: p for p in citable_phrases([LEASE, LAW], ngrams(), tokenizer)}
    marked = list(citable_phrases([LEASE, LAW], ngrams(), tokenizer, encode_marker=True))
    shared = [phrase for phrase in marked if phrase.text.startswith(" shall pay[")]
    assert [phrase.text for phrase in shared] == [" shall pay[1]", " shall pay[2]"]
    assert [phrase.sources[0].document for phrase in shared] == ["lease", "law"]
    for phrase in marked:
        assert tokenizer.decode(phrase.ids) == phrase.text
        assert len(phrase.sources) == len({(s.start, s.end) for s in phrase.sources})
        assert any(phrase.ids[: len(ids)] == ids for ids in plain)


@given(st.integers(0, 15))
def test_a_marker_is_never_sourced(length):
    phrase = MarkedPhrase((1, 2, 3), " shall pay[1]", (Span("lease", 111, 120),), bare=10)
    text = phrase.text[:length]
    part = phrase.cut(text, (1,))
    assert part.text == text
    assert [span.end for span in part.sources] == [
        111 + len(text[:10].strip()) for _ in part.sources
    ]
    assert part.cut(text[:5], (1,)).sources == phrase.cut(text[:5], (1,)).sources
