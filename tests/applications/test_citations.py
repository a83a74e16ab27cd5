"""A citation exists only if its source says the very same, however a text came about."""

import dataclasses
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.applications.citations import (
    Citation,
    Cite,
    CitedText,
    Copy,
    Mark,
    Sentence,
    check_choices,
    find_citations,
)
from univerb.applications.cited_text import split_answer
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError, PhraseError
from univerb.phrase import Span

LAW = Chunk("law", 0, "Every tenant shall pay the rent on time! Who else?")
CITES = get_args(Cite)


# -- A citation -----------------------------------------------------------------------------------

letters = st.text(alphabet="abA \n", min_size=1, max_size=8)
numbers = st.integers(-2, 10)


@given(letters, st.integers(0, 3), letters, numbers, numbers, numbers, numbers, numbers)
def test_no_citation_that_does_not_match(text, offset, answer, marker, start, end, first, last):
    passage = Chunk("d", offset, text)
    try:
        citation = Citation(marker, passage, start, end, first, last, answer=answer)
    except PhraseError:
        return
    assert marker >= 1 and passage.start <= start < end <= passage.end
    assert 0 <= citation.answer_start < citation.answer_end <= len(answer)
    assert citation.text == text[start - offset : end - offset]
    copy = answer[first:last]
    assert f"|{copy}|".split() == f"|{citation.text}|".split()


@given(st.text(max_size=9), st.text(min_size=1, max_size=9), st.text(max_size=9), st.text())
def test_every_true_copy_can_be_cited(before, source, after, lead):
    passage = Chunk("d", 7, before + source + after)
    answer = lead + source.replace("\n", " ") + "!"
    start = 7 + len(before)
    citation = Citation(
        1,
        passage,
        start,
        start + len(source),
        len(lead),
        len(lead) + len(source),
        answer=answer,
    )
    assert (citation.document, citation.text) == ("d", source)


@pytest.mark.parametrize("copy", ["every", "EVERY", "Ev\u0435ry", "Every"[::-1]])
def test_a_copy_in_other_letters_is_not_cited(copy):
    """Neither in another case nor in letters that only look the same."""
    with pytest.raises(PhraseError, match=f"{copy!r} is not what passage 1"):
        Citation(1, LAW, 0, 5, 0, 5, answer=f"{copy} one")
    text = f"{copy} single tenant"
    [sentence] = split_answer(text)
    found = find_citations(text, [sentence], [LAW], "all", [Copy(0, 5, (Span("law", 0, 5),))])
    assert all(citation.answer_start > 5 for citation in found)


def test_a_citation_cannot_be_moved():
    citation = Citation(1, LAW, 0, 5, 0, 5, answer="Every one")
    with pytest.raises(PhraseError, match="'Every' is not what passage 1"):
        dataclasses.replace(citation, start=1, end=6, answer="Every one")
    with pytest.raises(dataclasses.FrozenInstanceError):
        citation.start = 3


@pytest.mark.parametrize("answer", ["every tenant", "EVERY TENANT", "Every-tenant"])
def test_a_copy_in_other_letters_is_no_copy(answer):
    with pytest.raises(PhraseError, match="is not what passage 1"):
        Citation(1, LAW, 0, 12, 0, 12, answer=answer)


@pytest.mark.parametrize(
    ("marker", "start", "end", "first", "last"),
    [(0, 0, 5, 0, 5), (1, 0, 5, 0, 99), (1, 0, 0, 0, 0), (1, -5, 0, -5, 0), (1, 0, 99, 0, 5)],
)
def test_a_range_that_does_not_exist_is_refused(marker, start, end, first, last):
    with pytest.raises(PhraseError, match="Cite the span"):
        Citation(marker, LAW, start, end, first, last, answer="Every one")


# -- Which place is cited -------------------------------------------------------------------------


def cited(text, passages, cite="best", copies=()):
    """Return what is cited: the marker, the copy and where its source begins."""
    found = find_citations(text, split_answer(text), passages, cite, copies)
    return [(c.marker, text[c.answer_start : c.answer_end], c.start) for c in found]


FOX = Chunk("fox", 0, "See how the red fox sleeps.")
FARM = Chunk("farm", 50, "A lazy dog guards the old house. Then the red fox runs.")


def test_the_better_ranked_passage_is_cited_if_nothing_else_tells():
    assert cited("So the red fox.", [FOX, FARM]) == [(1, "the red fox", 8)]
    assert cited("So the red fox.", [FARM, FOX]) == [(1, "the red fox", 88)]


def test_the_passage_that_is_being_copied_goes_before_the_better_ranked_one():
    text = "A lazy dog guards the old house near the red fox."
    expected = [(2, "A lazy dog guards the old house", 50), (2, "the red fox", 88)]
    assert cited(text, [FOX, FARM]) == expected
    # Whatever comes first in the text: the long run is in one place only.
    text = "Behind the red fox lazy dog guards the old house."
    assert [marker for marker, *_ in cited(text, [FOX, FARM])] == [2, 2]


def test_the_nearest_of_two_copied_passages_goes_first():
    passages = [
        Chunk("a", 0, "Green hills surround the quiet lake. The tall tree falls."),
        Chunk("b", 0, "Grey stones cover the dusty road. The tall tree falls."),
    ]
    text = "Green hills surround a lot. Grey stones cover the dusty road. The tall tree falls."
    assert [marker for marker, *_ in cited(text, passages)] == [1, 2, 2]


def test_phrases_say_which_place_was_meant():
    text = "A lazy dog guards the old house near the red fox."
    at = text.index(" red fox")
    meant = Copy(at, at + 8, (Span("fox", 12, 19),))
    assert [marker for marker, *_ in cited(text, [FOX, FARM], copies=[meant])] == [2, 1]
    # A place that does not have the run, or is of no passage, says nothing.
    for span in (Span("fox", 0, 7), Span("elsewhere", 12, 19)):
        stray = Copy(at, at + 8, (span,))
        assert [marker for marker, *_ in cited(text, [FOX, FARM], copies=[stray])] == [2, 2]


def test_a_phrase_tells_two_places_of_one_passage_apart():
    twice = Chunk("d", 0, "The red fox ran. The red fox slept.")
    text = "Look: The red fox."
    assert cited(text, [twice]) == [(1, "The red fox", 0)]
    meant = Copy(6, 17, (Span("d", 17, 28),))
    assert cited(text, [twice], copies=[meant]) == [(1, "The red fox", 17)]


def test_all_cites_one_place_of_each_passage():
    twice = Chunk("d", 0, "the red fox and the red fox")
    text = "So the red fox."
    expected = [(1, "the red fox", 8), (2, "the red fox", 0), (3, "the red fox", 88)]
    assert cited(text, [FOX, twice, FARM], "all") == expected


def test_adjacent_phrases_that_go_on_in_one_place_are_one_citation():
    text = "A lazy dog guards the old house."
    copies = [Copy(0, 10, (Span("farm", 50, 60),)), Copy(10, 31, (Span("farm", 60, 81),))]
    assert cited(text, [FOX, FARM], copies=copies) == [(2, text[:-1], 50)]


def test_no_citation_reaches_over_the_end_of_a_sentence():
    text = "Some dog guards the old house. Then the red fox runs."
    copies = [part for _, part, _ in cited(text, [FARM])]
    assert copies == ["dog guards the old house", "Then the red fox runs"]


@pytest.mark.parametrize(("style", "cite"), [("Inline", "best"), ("inline", "bets"), (1, "all")])
def test_unknown_choices_are_refused(style, cite):
    with pytest.raises(OptionError, match="Did you mean|style is 1"):
        check_choices(style, cite)


# -- Whatever the texts are -----------------------------------------------------------------------

WORDS = [
    "tenant", "rent", "the", "of", "Paris", "2013", "1,500", "5-year", "«été»", "cafe\u0301",
    "Straße", "漢字", "कानून", "don't", "[2]", "(a)", "e.g.", "end.", "end!", "Hm", "\u200b",
]  # fmt: skip
spaces = st.sampled_from([" ", " ", " ", "\n", "  ", "\xa0", "\n\n", ""])
documents = st.lists(st.tuples(st.sampled_from(WORDS), spaces), min_size=1, max_size=25).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Chunk], list[Copy]]:
    """A text made of stretches of documents, and passages that overlap or repeat."""
    texts = draw(st.lists(documents | st.text(min_size=1, max_size=20), min_size=1, max_size=2))

    def stretch(text: str) -> tuple[int, int]:
        start = draw(st.integers(0, len(text) - 1))
        return start, draw(st.integers(start + 1, len(text)))

    passages = []
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(texts) - 1))
        start, end = stretch(texts[number])
        passages.append(Chunk(f"d{number}", start, texts[number][start:end]))
    text, copies = "", []
    for _ in range(draw(st.integers(1, 5))):
        text += draw(st.sampled_from([" ", "", ". ", " and ", "\n"]))
        number = draw(st.integers(0, len(texts) - 1))
        start, end = stretch(texts[number])
        part = texts[number][start:end]
        part = " ".join(part.split()) if draw(st.booleans()) else part
        if draw(st.booleans()):
            span = Span(f"d{number}", start, end)
            copies.append(Copy(len(text), len(text) + len(part), (span,)))
        text += part
    return text, passages, copies


@settings(max_examples=300)
@given(cases(), st.sampled_from(CITES))
def test_every_span_is_what_the_text_says_but_for_white_space(case, cite):
    text, passages, copies = case
    sentences = split_answer(text)
    found = find_citations(text, sentences, passages, cite, copies)
    for citation in found:
        passage = passages[citation.marker - 1]
        assert citation.passage is passage
        source = passage.text[citation.start - passage.start : citation.end - passage.start]
        copy = text[citation.answer_start : citation.answer_end]
        assert source == citation.text and source.split() == copy.split()
        assert copy == copy.strip() and any(map(str.isalnum, copy))
        assert any(
            s.start <= citation.answer_start and citation.answer_end <= s.tail for s in sentences
        )
    ranges = sorted({(c.answer_start, c.answer_end) for c in found})
    assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    if cite == "best":
        assert len(ranges) == len(found)
    # "all" cites at least what "best" cites, in the same stretches.
    best = find_citations(text, sentences, passages, "best", copies)
    every = find_citations(text, sentences, passages, "all", copies)
    assert {(c.answer_start, c.marker) for c in best} <= {(c.answer_start, c.marker) for c in every}


# -- Texts with markers ---------------------------------------------------------------------------


def test_a_text_without_citations_is_itself():
    assert str(CitedText("As it is.")) == "As it is."


def test_ranges_of_json_are_those_of_the_text_with_markers():
    text = "So the red fox. And the old house."
    found = find_citations(text, split_answer(text), [FARM], "best")
    marks = (Mark(14, (1, 3), " "), Mark(33, (1,)))
    whole = CitedText(text, found, split_answer(text), (), marks)
    assert str(whole) == "So the red fox [1][3]. And the old house[1]."
    assert [one["shown"] for one in whole.to_dicts()] == [True, True]
    for one in whole.to_dicts():
        assert str(whole)[one["answer_start"] : one["answer_end"]] == one["text"]


def test_a_mark_inside_a_citation_stands_behind_it():
    text = "So the red fox runs."
    found = find_citations(text, split_answer(text), [FARM], "best")
    marks = (Mark(10, (2,)), Mark(19, (1,), " "))
    whole = CitedText(text, found, (Sentence(0, 19, 20),), (), marks)
    assert str(whole) == "So the red fox runs[2] [1]."
