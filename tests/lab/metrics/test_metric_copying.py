"""The longest verbatim run against the search of every stretch."""

from hypothesis import example, given
from hypothesis import strategies as st

from univerb.lab.metrics.copying import longest_run

TEXT = st.lists(st.integers(0, 2), max_size=14)


def slow(text, sources):
    """The longest stretch of a text that is in one of the sources, by trying all."""
    for length in range(len(text), 0, -1):
        for start in range(len(text) - length + 1):
            part = text[start : start + length]
            for source in sources:
                if any(source[i : i + length] == part for i in range(len(source))):
                    return length
    return 0


@given(TEXT, st.lists(TEXT, max_size=4))
@example([0, 1, 0, 1, 1], [[1, 0, 1, 1, 1], [0, 1, 0]])
@example([], [[1]])
def test_is_what_trying_all_finds(text, sources):
    assert longest_run(text, sources) == slow(text, sources)


def test_does_not_cross_from_one_source_to_the_next():
    assert longest_run(["a", "b", "c", "d"], [["a", "b"], ["c", "d"]]) == 2


def test_frequent_words_count_in_long_texts():
    """difflib would take them for junk by default."""
    source = ["the", "tenant"] * 300
    assert longest_run(["the"] + source, [source]) == 600
