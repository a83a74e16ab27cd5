"""Chunks: whole sentences, never too long, nothing lost; sentences by rule and by library."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from univerb.documents.chunks import Chunk, chunked
from univerb.documents.sentences import split_clauses, split_sentences, splitter_named
from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document

NAMES = ["rules", "clauses", "pysbd"]
PIECES = ["The", "tenant", "pays", "e.g.", "Mr.", "No.", "5.", "3.5", "J.", '"', ")", "。", "東京"]
TEXTS = st.lists(
    st.sampled_from([*PIECES, ".", "?", "!", ",", " ", " ", " ", "\n", "\r\n", "\n\n", "\x1c"]),
    min_size=1,
    max_size=60,
).map("".join)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
VISIBLE = (TEXTS | ANYTHING).filter(lambda text: bool(text.strip()))


def visible(text: str) -> str:
    return "".join(text.split())


def sentences(text: str, name: str = "rules") -> list[str]:
    return [text[start:end].strip() for start, end in splitter_named(name)(text)]


def check(document: Document, chunks: list[Chunk], max_words: int) -> None:
    for chunk in chunks:
        assert chunk.document == document.name
        assert chunk.text == document.text[chunk.start : chunk.end]
        assert chunk.text == chunk.text.strip() != ""
        assert len(chunk.text.split()) <= max_words


@given(VISIBLE, st.integers(1, 12))
@example("a. \x1fB", 1)
def test_chunks_have_every_visible_character_once_and_in_order(text: str, max_words: int):
    document = Document(text, "a")
    chunks = chunked(document, max_words)
    check(document, chunks, max_words)
    assert "".join(visible(chunk.text) for chunk in chunks) == visible(text)
    ends = [0, *(chunk.end for chunk in chunks)]
    assert all(end <= chunk.start for end, chunk in zip(ends, chunks, strict=False))


@given(VISIBLE, st.integers(1, 12))
@example("。The\nThe The The", 4)
def test_chunks_are_as_long_as_whole_sentences_allow(text: str, max_words: int):
    chunks = chunked(Document(text), max_words)
    spans = list(split_sentences(text))
    starts, ends = {start for start, _ in spans}, {end for _, end in spans}

    def words(begin: int, end: int) -> int:
        """Count sentence by sentence: two without a space between them share no word."""
        return sum(len(text[max(a, begin) : min(b, end)].split()) for a, b in spans)

    for chunk, after in zip(chunks, chunks[1:], strict=False):
        if chunk.end in ends:
            following = next(end for start, end in spans if end > after.start)
            assert words(chunk.start, following) > max_words
        else:
            # Cut within a sentence: only because that one is too long.
            start, end = next(span for span in spans if span[0] < chunk.end < span[1])
            assert len(text[start:end].split()) > max_words
    assert chunks[0].start in starts


@given(VISIBLE, st.integers(1, 8), st.integers(0, 4))
def test_overlap_repeats_sentences_and_always_goes_on(text: str, max_words: int, overlap: int):
    document = Document(text)
    chunks = chunked(document, max_words, overlap)
    check(document, chunks, max_words)
    for chunk, after in zip(chunks, chunks[1:], strict=False):
        assert chunk.start < after.start
        assert chunk.end < after.end
        repeated = [a for a, _ in split_sentences(text) if after.start < a < chunk.end]
        assert len(repeated) < max(overlap, 1)
    covered = {i for chunk in chunks for i in range(chunk.start, chunk.end)}
    assert all(i in covered for i, character in enumerate(text) if not character.isspace())


def test_sentences_without_spaces_between_them_count_one_by_one():
    """So that texts in scripts without spaces have chunks of bounded size, too."""
    chunks = chunked(Document("雨です。" * 10), max_words=4)
    assert [chunk.text for chunk in chunks] == ["雨です。" * 4, "雨です。" * 4, "雨です。" * 2]
    chunks = chunked(Document("。The\nThe The The"), max_words=4)
    assert [chunk.text for chunk in chunks] == ["。The", "The The The"]


def test_overlap_of_one_sentence():
    document = Document("One two. Three four. Five six. Seven.")
    chunks = chunked(document, max_words=4, overlap=1)
    assert [chunk.text for chunk in chunks] == [
        "One two. Three four.",
        "Three four. Five six.",
        "Five six. Seven.",
    ]


@given(VISIBLE, st.lists(st.tuples(st.integers(-5, 90), st.integers(-5, 90))), st.integers(1, 5))
def test_no_splitter_can_break_the_promises(text, spans, max_words):
    document = Document(text)
    chunks = chunked(document, max_words, splitter=lambda _: spans)
    check(document, chunks, max_words)
    assert "".join(visible(chunk.text) for chunk in chunks) == visible(text)


@pytest.mark.parametrize("name", NAMES)
def test_every_splitter_gives_whole_chunks(name: str, lease: Document):
    text = (lease.text + "\n\n") * 3 + 'He said "No." Twice.\nAnd (then) left!'
    chunks = chunked(Document(text), max_words=20, splitter=splitter_named(name))
    check(Document(text), chunks, 20)
    assert "".join(visible(chunk.text) for chunk in chunks) == visible(text)
    assert len(chunks) > 6


@given(TEXTS | ANYTHING)
def test_sentences_have_every_visible_character_once(text: str):
    for split in (split_sentences, split_clauses):
        spans = list(split(text))
        assert "".join(visible(text[a:b]) for a, b in spans) == visible(text)
        assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rains. We stay.", ["It rains.", "We stay."]),
        ("Mr. Fox met Dr. Wu. They ate.", ["Mr. Fox met Dr. Wu.", "They ate."]),
        ("See Art. 5 and No. 7. Read it.", ["See Art. 5 and No. 7.", "Read it."]),
        ("He said no. Then he left.", ["He said no.", "Then he left."]),
        ("J. R. Smith paid 3.5 million. Why?", ["J. R. Smith paid 3.5 million.", "Why?"]),
        ('"Go!" She went. (It rained.) 7 left.', ['"Go!"', "She went.", "(It rained.)", "7 left."]),
        ("Fruit, e.g. Apples. i.e. this", ["Fruit, e.g. Apples. i.e. this"]),
        ("1. Rent. The rent is due.", ["1. Rent.", "The rent is due."]),
        ("A heading\nThe text begins", ["A heading", "The text begins"]),
        ("A paragraph,\r\n\r\nand another", ["A paragraph,", "and another"]),
        ("It was spaced . The next one .", ["It was spaced .", "The next one ."]),
        ("今日は雨です。明日は晴れです。", ["今日は雨です。", "明日は晴れです。"]),
        (
            "The landlord shall always keep the premises in\ngood repair. The tenant\npays.",
            ["The landlord shall always keep the premises in\ngood repair.", "The tenant", "pays."],
        ),
        ("", []),
        (" \n ", []),
    ],
)
def test_rules_find_sentences(text: str, expected: list[str]):
    assert sentences(text) == expected


def test_clauses_end_with_comma_or_full_stop_but_not_within_numbers():
    text = "Having regard to the Treaty, and to Article 1,5. It is so"
    expected = ["Having regard to the Treaty,", "and to Article 1,5.", "It is so"]
    assert sentences(text, "clauses") == expected


@pytest.mark.parametrize(
    "unit", [".", "\n", "\r", ". ", "J. ", "a\r", '."', "?\n", " ", "1. ", "Mr.\n", ", ", "\n "]
)
def test_rules_take_linear_time(unit: str):
    """Were it quadratic, it would take minutes and meet the time limit of all tests."""
    text = unit * 100_000
    for split in (split_sentences, split_clauses):
        assert all(start < end for start, end in split(text))


def test_unknown_splitter_names_the_nearest():
    with pytest.raises(OptionError, match="Did you mean 'pysbd'"):
        splitter_named("pysdb")


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(MissingExtra, match=re.escape("univerb[parse]")):
        splitter_named("pysbd")


@pytest.mark.parametrize(("max_words", "overlap"), [(0, 0), (-1, 0), (5, -1)])
def test_numbers_out_of_range(max_words: int, overlap: int):
    with pytest.raises(OptionError):
        chunked(Document("a"), max_words, overlap)
