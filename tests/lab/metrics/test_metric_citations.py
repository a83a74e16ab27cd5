"""ALCE's citation recall and precision with a stub for the entailment model, case by case."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics.citations import (
    CitationScore,
    answer_line,
    citation_score,
    passage_text,
    without_citations,
)

PASSAGES = ["red", "red green", "blue", "grey"]


def has_all(passages, claim):
    """A claim follows if the passages have each of its words."""
    return set(claim.rstrip(".").split()) <= set(" ".join(passages).split())


def judged(*sentences, entails=has_all):
    found = citation_score(sentences, PASSAGES, entails)
    return found.recall, found.precision, found.citations


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("red.", (0.0, 0.0, 0)),  # No citation.
        ("red [5].", (0.0, 0.0, 0)),  # Out of range.
        ("red [1][5].", (0.0, 0.0, 0)),  # One of two is, and none counts.
        ("red [0].", (0.0, 0.0, 0)),  # Numbers begin with 1.
        ("red [1].", (1.0, 1.0, 1)),  # One, supported.
        ("red [3].", (0.0, 0.0, 1)),  # One, not supported.
        ("green blue [2][3].", (1.0, 1.0, 2)),  # Several, all needed.
        ("red [1][3].", (1.0, 0.5, 2)),  # Several, one too many.
        ("red [1][2].", (1.0, 1.0, 2)),  # Each is enough alone: neither is too many.
        ("red blue [1][2][3].", (1.0, 1 / 3, 3)),  # Of the first two, either could go.
        ("green blue [1][3].", (0.0, 0.0, 2)),  # Several, not supported together.
    ],
)
def test_cases(sentence, expected):
    assert judged(sentence) == pytest.approx(expected)


def test_only_the_first_three_count():
    assert judged("grey [1][2][3][4].") == (0.0, 0.0, 3)
    assert judged("red [1][2][3][9].") == (0.0, 0.0, 0)  # But the fourth can discredit.


def test_citations_given_twice_count_twice():
    assert judged("red [1][1].") == (1.0, 1.0, 2)
    assert judged("red [1][3][3].") == pytest.approx((1.0, 1 / 3, 3))


def test_sentences_are_pooled_within_an_answer():
    found = citation_score(
        ["red [1].", "green [3].", "blue.", "red blue [1][3]."], PASSAGES, has_all
    )
    assert citation_score([], PASSAGES, has_all) is None
    assert found == CitationScore(recall=0.5, precision=0.75, citations=4)


def test_what_the_model_is_asked():
    asked = []

    def entails(passages, claim):
        asked.append((passages, claim))
        return passages != ("blue",)

    passages = [passage_text("A", "x"), "blue", "grey"]
    citation_score(["Claim [1] one[2]."], passages, entails)
    assert asked == [
        (("Title: A\nx", "blue"), "Claim one."),
        (("Title: A\nx",), "Claim one."),
        (("blue",), "Claim one."),
        (("Title: A\nx",), "Claim one."),
    ]


def test_nothing_is_asked_where_nothing_is_cited():
    def never(premise, claim):
        raise AssertionError

    assert judged("red.", "blue [7].", entails=never) == (0.0, 0.0, 0)


def test_only_the_first_line_is_judged():
    assert answer_line("\n One [1].<|im_end|>\nTwo [2].") == "One [1]."
    assert answer_line(" \n") == ""


def test_markers_are_removed():
    assert (
        without_citations("A phrase[1] is cited [12][3]. Or | so.") == "A phrase is cited. Or so."
    )
    assert without_citations("no [markers] here") == "no [markers here"


@given(st.text(alphabet="a [1]|2", max_size=12))
def test_markers_are_removed_as_alce_says(text):
    """First " [n", then "[n", then every " |" and every "]"."""
    expected = re.sub(r"\[\d+", "", re.sub(r" \[\d+", "", text))
    assert without_citations(text) == expected.replace(" |", "").replace("]", "")


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=3), st.booleans())
def test_bounds(cited, verdict):
    sentences = ["claim" + "".join(f"[{own}]" for own in each) + "." for each in cited]
    found = citation_score(sentences, PASSAGES, lambda premise, claim: verdict)
    valid = [each for each in cited if each and all(1 <= own <= 4 for own in each)]
    assert found.citations == sum(min(len(each), 3) for each in valid)
    assert found.recall == pytest.approx(verdict * len(valid) / len(cited))
    assert found.precision == float(verdict and bool(valid))
