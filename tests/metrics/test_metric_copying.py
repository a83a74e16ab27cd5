"""The longest verbatim run against the search of every stretch."""

import time

from hypothesis import example, given
from hypothesis import strategies as st

from univerb.metrics.copying import longest_run

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
def test_is_what_trying_all_finds(text, sources):
    run = longest_run(text, sources)
    assert run.length == slow(text, sources)
    if run.length:
        part = text[run.start : run.start + run.length]
        source = sources[run.source]
        assert any(source[i : i + run.length] == part for i in range(len(source)))
        assert len(part) == run.length
    else:
        assert run.source == -1


def test_does_not_cross_from_one_source_to_the_next():
    assert longest_run(["a", "b", "c", "d"], [["a", "b"], ["c", "d"]]).length == 2


def test_long_repetitive_texts_take_no_square_of_time():
    began = time.perf_counter()
    assert longest_run([0] * 20_000, [[0] * 19_999 + [1]] * 2).length == 19_999
    assert time.perf_counter() - began < 5
