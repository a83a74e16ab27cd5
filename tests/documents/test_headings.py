"""Headings of plain text, as readers of documents leave it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.documents.headings import find_headings, heading_above, leading_heading

TEXT = """# The Ship

Some words about her.

## Her launch and
first voyage

She sailed.

Later years

She was sold. Nobody wept.

flour
salt

one loaf

two loaves

three loaves

four loaves

The end came.
"""


def test_lines_that_stand_alone_are_headings():
    assert [heading.text for heading in find_headings(TEXT)] == ["The Ship", "Later years"]
    for heading in find_headings(TEXT):
        assert TEXT[heading.start :].startswith(heading.text)


@pytest.mark.parametrize(
    ("at", "heading"),
    [
        ("The Ship", ""),
        ("Some words", "The Ship"),
        ("She sailed", "The Ship"),
        ("Later years", "The Ship"),
        ("She was sold", "Later years"),
        ("The end came", "Later years"),
    ],
)
def test_the_nearest_one_above_counts(at, heading):
    assert heading_above(TEXT, TEXT.index(at)) == heading


def test_line_ends_make_no_difference():
    texts = [heading.text for heading in find_headings(TEXT)]
    assert [heading.text for heading in find_headings(TEXT.replace("\n", "\r\n"))] == texts


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("\n\n# The Ship\n\nText.", "The Ship"),
        ("The Ship\n\nText.", "The Ship"),
        ("Text.\n\nThe Ship\n\nText.", ""),
        ("The ship sailed.\n\nText.", ""),
        ("The Ship", ""),
        ("The Ship\r\n\r\nText.", "The Ship"),
        ("\ufeffThe Ship\n\nText.", "The Ship"),
        ("\ufeff\n\n# The Ship\n\nText.", "The Ship"),
        ("word " * 16 + "\n\nText.", ""),
        ("", ""),
    ],
)
def test_a_title_is_where_the_text_begins(text, heading):
    assert leading_heading(text) == heading


@given(st.lists(st.sampled_from(["a b", "A b.", "\n", "\n\n", "# ", " ", "x " * 20])))
def test_headings_are_lines_of_the_text_in_order(parts):
    text = "".join(parts)
    headings = find_headings(text)
    assert [heading.start for heading in headings] == sorted(heading.start for heading in headings)
    for start, line in headings:
        whole = text[start:].split("\n", 1)[0]
        assert " ".join(whole.split()) == line
        assert not text[:start].rpartition("\n")[2].strip(" \t#")
