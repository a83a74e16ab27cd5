"""The longest verbatim run, and the share that is copied, against the search of every stretch."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.lab.metrics.copying import copy_coverage, longest_run

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


def slow_coverage(text, sources, at_least):
    """Mark the words of every stretch that is long enough and in one of the sources."""
    is_copied = [False] * len(text)
    for start in range(len(text)):
        for end in range(start + at_least, len(text) + 1):
            part, size = text[start:end], end - start
            if any(source[i : i + size] == part for source in sources for i in range(len(source))):
                is_copied[start:end] = [True] * size
    return sum(is_copied) / len(text) if text else 0.0


@given(TEXT, st.lists(TEXT, max_size=4), st.integers(1, 6))
@example([0, 1, 2, 0, 1], [[2, 0, 1], [1, 0, 1, 2]], 3)
def test_coverage_is_what_trying_all_finds(text, sources, at_least):
    found = copy_coverage(text, sources, at_least)
    assert found == pytest.approx(slow_coverage(text, sources, at_least))
    assert (found > 0) == (longest_run(text, sources).length >= at_least)


@given(TEXT, st.lists(TEXT, max_size=3), TEXT, st.integers(1, 4))
def test_coverage_grows_with_sources_and_falls_with_the_length_asked_for(
    text, sources, more, at_least
):
    found = copy_coverage(text, sources, at_least)
    assert found <= copy_coverage(text, [*sources, more], at_least)
    assert found >= copy_coverage(text, sources, at_least + 1)
    if len(text) >= at_least:
        assert copy_coverage(text, [*sources, text], at_least) == 1.0


def test_coverage_by_hand():
    lines = (
        "the tenant shall pay the rent on the first day of each month",
        "the tenant shall pay the rent monthly",
        "on the first day of spring the tenant shall pay",
    )
    text, lease, other = (line.split() for line in lines)
    assert copy_coverage(text, [lease]) == pytest.approx(6 / 13)
    assert copy_coverage(text, [lease, other]) == pytest.approx(11 / 13)
    # "rent on" is in neither: a run does not go on from one source into the next.
    assert copy_coverage(text, [lease, other], at_least=7) == 0.0
    assert copy_coverage([], [lease]) == 0.0
    with pytest.raises(OptionError, match="at_least is 0"):
        copy_coverage(text, [lease], at_least=0)


def test_coverage_of_long_repetitive_texts_takes_no_square_of_time():
    began = time.perf_counter()
    assert copy_coverage([0] * 20_000 + [2], [[0] * 19_999 + [1]] * 2) == 20_000 / 20_001
    assert time.perf_counter() - began < 5
