"""CoG's units: equal to a slow search, tiling the text, true to their sources."""

import functools
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.errors import OptionError
from univerb.phrase import Document, Span
from univerb.phrases.cog import SELF, CogUnit, cog_phrases, cog_units
from univerb.tokenizer import Tokenizer

PIECES = ["a", "b", "c", "he", "the", "cat", ",", ".", "_", "é"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25).flatmap(
    lambda words: st.sampled_from([" ", "  ", "\n", ""]).map(lambda space: space.join(words))
)
SUPPORT = st.lists(TEXTS.filter(str.strip), max_size=4).map(
    lambda texts: [Document(text, f"d{i}") for i, text in enumerate(texts)]
)
SIZES = st.tuples(st.integers(2, 4), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def split(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\w+|[^\w\s]", text))


def spelled(text: str) -> list[str]:
    return [match.group() for match in split(text)]


def search(needle: list[str], words: list[re.Match[str]], name: str) -> Span | None:
    for i in range(len(words) - len(needle) + 1):
        part = words[i : i + len(needle)]
        if [match.group() for match in part] == needle:
            return Span(name, part[0].start(), part[-1].end())
    return None


def slow_units(
    text: str, support: list[Document], sizes: tuple[int, int], slide: bool
) -> list[CogUnit]:
    """Grow a window word by word and search it everywhere, as CoG does."""
    low, high = sizes
    words = split(text)
    units: list[tuple[int, int, Span | None]] = []
    at = 0
    while at < len(words):
        end, best, source = at, at, None
        while end < len(words) and end - at < high and re.match(r"\w", words[end].group()):
            end += 1
            if end - at < low:
                continue
            needle = [match.group() for match in words[at:end]]
            places = [search(needle, words[:at], SELF)]
            places += [search(needle, split(one.text), one.name) for one in support]
            hit = next((place for place in places if place), None)
            if hit is None:
                break
            best, source = end, hit
        if source is None:
            best = at + 1 if slide else min(max(end, at + 1), at + low)
        if source is None and units and units[-1][2] is None:
            units[-1] = (units[-1][0], best, None)
        else:
            units.append((at, best, source))
        at = best
    spans = [(words[a].start(), words[b - 1].end(), source) for a, b, source in units]
    return [CogUnit(text[a:b], a, b, source) for a, b, source in spans]


@given(TEXTS, SUPPORT, SIZES, st.booleans())
@example("he cat", [Document("the cat", "d0")], (2, 16), True)
@example("a b a b a b a b", [], (2, 3), True)
def test_units_equal_a_slow_search(text, support, sizes, slide):
    assert cog_units(text, support, sizes, slide) == slow_units(text, support, sizes, slide)


@given(TEXTS, SUPPORT, SIZES, st.booleans())
def test_units_tile_the_words_and_have_their_sources(text, support, sizes, slide):
    units = cog_units(text, support, sizes, slide)
    assert [word for unit in units for word in spelled(unit.text)] == spelled(text)
    by_name = {document.name: document.text for document in support}
    for unit in units:
        assert unit.text == text[unit.start : unit.end] == unit.text.strip()
        if unit.source:
            name, start, end = unit.source.document, unit.source.start, unit.source.end
            assert spelled((by_name | {SELF: text})[name][start:end]) == spelled(unit.text)
            assert sizes[0] <= len(spelled(unit.text)) <= sizes[1]
            assert name != SELF or end <= unit.start
    assert not any(a.source is b.source is None for a, b in zip(units, units[1:], strict=False))


def described(text: str, *support: str, slide: bool = True) -> list[tuple[str, str | None]]:
    documents = [Document(one, f"d{i}") for i, one in enumerate(support)]
    units = cog_units(text, documents, slide=slide)
    return [(unit.text, unit.source.document if unit.source else None) for unit in units]


def test_longest_match_wins_then_self_then_rank():
    assert described("one two three", "one two", "zero one two three", "one two three") == [
        ("one two three", "d1")
    ]
    assert described("one two, one two", "one two") == [
        ("one two", "d0"),
        (",", None),
        ("one two", SELF),
    ]


def test_punctuation_ends_a_unit_even_if_it_would_match():
    assert described("one two, three four", "one two, three four") == [
        ("one two", "d0"),
        (",", None),
        ("three four", "d0"),
    ]


def test_sliding_finds_what_cog_passes_over():
    assert described("new one two", "one two") == [("new", None), ("one two", "d0")]
    assert described("new one two", "one two", slide=False) == [("new one two", None)]


def test_a_word_is_no_part_of_another():
    assert described("he cat", "the cat") == [("he cat", None)]


def test_space_may_differ():
    unit = cog_units("one two", [Document("x one \n two", "d")])[0]
    assert unit.source == Span("d", 2, 11)


def test_phrases_are_traced_to_the_support(lease: Document):
    support = [Document("Rent: the landlord shall give the tenant notice", "other.txt"), lease]
    document = Document("Yes, the landlord shall give the tenant one day", "new.txt")
    phrases = list(cog_phrases(support)(document, tokenizer()))
    assert [phrase.text for phrase in phrases] == [" the landlord shall give the tenant"]
    (span,) = phrases[0].sources
    assert span.document == "other.txt"
    assert support[0].text[span.start : span.end] == phrases[0].text.strip()
    assert tuple(tokenizer().encode(phrases[0].text).ids) == phrases[0].ids


def test_the_document_itself_is_passed_over_but_repeats_within_count():
    document = Document("the tenant shall pay. Yes: the tenant shall pay", "a.txt")
    phrases = list(cog_phrases([document])(document, tokenizer()))
    assert [(phrase.text, phrase.sources) for phrase in phrases] == [
        (" the tenant shall pay", (Span("a.txt", 0, 20),))
    ]


def test_every_place_is_kept_once():
    document = Document("good repair, written notice, good repair", "a.txt")
    support = [Document("in good repair and written notice", "b.txt")]
    phrases = {p.text: p.sources for p in cog_phrases(support)(document, tokenizer())}
    assert phrases[" good repair"] == (Span("b.txt", 3, 14), Span("a.txt", 0, 11))
    assert phrases[" written notice"] == (Span("b.txt", 19, 33),)


def test_a_thousand_documents_take_seconds():
    words = TEXT.split()
    support = [
        Document(" ".join(words[(i * j) % len(words)] for j in range(128)), f"d{i}")
        for i in range(1000)
    ]
    begin = time.process_time()
    units = cog_units(TEXT * 3, support)
    assert any(unit.source for unit in units)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("sizes", [(1, 4), (3, 2), (2, 65), (2,)])
def test_sizes_out_of_range(sizes: tuple[int, int]):
    with pytest.raises(OptionError, match="sizes is"):
        cog_units("a", [], sizes)
