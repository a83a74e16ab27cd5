"""Paired intervals of differences."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.lab.metrics.bootstrap import difference

numbers = st.lists(
    st.tuples(st.floats(0, 100) | st.none(), st.floats(0, 100) | st.none()), min_size=1, max_size=9
)


@given(numbers, st.integers(0, 99))
def test_differences_are_those_of_the_means_and_change_sides(pairs, seed):
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    known = [[v for v in side if v is not None] for side in (ours, theirs)]
    if not all(known):
        with pytest.raises(OptionError, match="cannot be compared in pairs"):
            difference(ours, theirs)
        return
    found = difference(ours, theirs, resamples=50, seed=seed)
    assert found.value == pytest.approx(numpy.mean(known[0]) - numpy.mean(known[1]), abs=1e-9)
    back = difference(theirs, ours, resamples=50, seed=seed)
    assert back == pytest.approx((-found.value, -found.high, -found.low), abs=1e-9)
    assert found.low <= found.high


def test_intervals_are_paired():
    theirs = [float(value) for value in range(0, 100, 5)]
    ours = [value + 3.0 for value in theirs]
    assert difference(ours, theirs) == pytest.approx((3.0, 3.0, 3.0))
    # Over unpaired questions the interval is that of the mean of 20 draws: about 1.64 * 6.4.
    found = difference(ours, [0.0] * 20, resamples=4000)
    assert found.value == pytest.approx(50.5)
    assert (found.high - found.low) / 2 == pytest.approx(1.645 * numpy.std(ours) / 20**0.5, rel=0.1)
    with pytest.raises(OptionError, match="3 and 2 answers"):
        difference([1.0, 2.0, 3.0], [1.0, 2.0])
