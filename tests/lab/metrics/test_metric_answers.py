"""Right answers by ALCE's rules, on cases worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.lab.metrics.answers import (
    ReaderScore,
    exact_match,
    normalise,
    reader_match,
    string_match,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles", "beatles"),
        ("an  apple, a day!", "apple day"),
        ("U.S.A. (the)", "usa"),
        ("Anthem for the theme", "anthem for theme"),
        ("the a an", ""),
        ("Gödel’s 2–1", "gödel’s 2–1"),  # Only ASCII punctuation goes.
        ("rock-a-bye", "rockabye"),  # Punctuation goes first, so this has no article.
    ],
)
def test_normalised(text, expected):
    assert normalise(text) == expected


@settings(max_examples=50)
@given(st.text(max_size=12))
def test_case_and_outer_space_do_not_matter(text):
    assert normalise(f" {text.lower()}\n") == normalise(text)
    assert exact_match(text, [f"the {text}. "])


def test_exact_match_is_of_the_whole():
    assert exact_match("The Who", ["Queen", "who"])
    assert not exact_match("The Who band", ["who"])
    assert not exact_match("x", [])


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("in June 1969", ["June 1969"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("june june", ["June"], 2 / 3),  # A word counts as often as both have it.
        ("June", ["May", "june of 1969"], 2 * 1 * (1 / 3) / (1 + 1 / 3)),
        ("April", ["May"], 0.0),
        ("", ["the"], 1.0),  # Neither says anything: they agree.
        ("", ["May"], 0.0),
        ("May", [], 0.0),
    ],
)
def test_f1(prediction, answers, expected):
    assert token_f1(prediction, answers) == pytest.approx(expected)


def test_answers_are_looked_for_in_the_text():
    text = "It was The Beatles, in 1969."
    found = string_match(text, [["Queen", "Beatles"], ["1970"], ["BEAT"]])
    assert found == pytest.approx(2 / 3)
    assert string_match(text, [["beatles"], ["1969"]]) == 1.0
    assert string_match(text, []) == 0.0


def test_a_reader_is_judged_question_by_question():
    found = reader_match(["the Who", "June 1969"], [["Who"], ["1969"]])
    assert found == ReaderScore(0.5, pytest.approx((1 + 2 / 3) / 2))
    assert reader_match(["Who"], [["who"]]) == ReaderScore(1.0, 1.0)
    assert reader_match([], []) == ReaderScore(0.0, 0.0)
    with pytest.raises(ValueError, match="zip"):
        reader_match(["one"], [["one"], ["two"]])


@given(st.lists(st.sampled_from(["red", "green", "blue"]), max_size=5), st.integers(0, 5))
def test_a_match_is_the_best_f1(words, at):
    answer, other = " ".join(words), " ".join(words[:at])
    assert 0.0 <= token_f1(other, [answer]) <= 1.0
    assert token_f1(answer, [other, answer]) == 1.0
    assert token_f1(other, [answer]) == pytest.approx(token_f1(answer, [other]))
