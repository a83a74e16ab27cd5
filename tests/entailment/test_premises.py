"""Which parts of a passage are held against a claim, and what a passage states word for word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.entailment.premises import decided, states, windows
from univerb.lab.metrics.citations import passage_text

MOON = passage_text(
    "Moon",
    "The Moon orbits Earth. Nobody believes that it is cheese!\nIt is 4.5 billion years old.",
)
SENTENCES = st.lists(
    st.sampled_from(["It rains.", "Dr. No left!", "Why so?", "A b c."]), max_size=6
)


def test_windows_are_the_sentences_most_like_the_claim_with_and_without_title_and_the_whole():
    first, second, third = (
        "The Moon orbits Earth.",
        "Nobody believes that it is cheese!",
        "It is 4.5 billion years old.",
    )
    found = windows(MOON, "Old, 4.5 billion years, is how it feels.")
    runs = [third, f"{second} {third}", second, f"{first} {second}"]
    assert found == [*runs, *(f"Title: Moon\n{run}" for run in runs), MOON]
    assert windows("one line", "x") == ["one line"]
    assert windows("", "x") == [""]
    assert len(windows(MOON + " Nothing more." * 200, "x")) == 8


@given(SENTENCES, st.text(max_size=9))
def test_windows_are_few_and_parts_of_the_premise(sentences, claim):
    premise = " ".join(sentences)
    found = windows(premise, claim)
    assert 1 <= len(found) <= 9 and all(window in premise for window in found)


@given(SENTENCES.filter(bool), st.data())
def test_all_its_sentences_are_stated(sentences, data):
    begin = data.draw(st.integers(0, len(sentences) - 1))
    claim = " ".join(sentences[begin : data.draw(st.integers(begin + 1, len(sentences)))])
    premise = passage_text("T", " ".join(sentences))
    assert states(premise, claim) == (len(claim.split()) >= 3)
    assert not states(premise, f"{claim} So there.")


@pytest.mark.parametrize(
    "claim",
    [
        "The Moon orbits Earth.",
        "The  Moon\norbits Earth",
        "Nobody believes that it is cheese! It is 4.5 billion years old.",
    ],
)
def test_what_is_stated(claim):
    assert states(MOON, claim)


@pytest.mark.parametrize(
    "claim",
    [
        "it is cheese!",  # A part of a sentence that says the opposite.
        "The Moon orbits",
        "Moon orbits Earth.",
        "The moon orbits earth.",
        "The Moon orbits Earths.",
        "It is 45 billion years old.",
        "It is 4.6 billion years old.",
        "The Moon orbits Earth. It is 4.5 billion years old.",  # Not one after the other.
        "Title: Moon",
        "Moon",
        "",
    ],
)
def test_what_is_not_stated(claim):
    assert not states(MOON, claim)


def test_a_word_or_two_are_not_enough_and_shapes_of_marks_are_no_difference():
    assert not states("Yes. It did.", "Yes.") and not states("Yes. It did.", "It did.")
    premise = "\u201cHe\u2019s here\u201d, she said in 1990\u20131995."
    assert states(premise, '"He\'s here", she said in 1990-1995.')
    assert not states("It is 10\u00b2 metres long.", "It is 102 metres long.")


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("It is 4.5 billion years old.", True),
        ("It is 4.6 billion years old.", False),
        ("The Moon is 4.5 billion years of age, and Earth 5.", False),
        ("Its age is 4.5 billion years.", None),
        ("Earth is orbited.", None),
    ],
)
def test_what_needs_no_model(claim, verdict):
    assert decided(MOON, claim) is verdict
    assert decided("He won 1,000 games in 2001.", "In 2001 1000 games were won.") is None
