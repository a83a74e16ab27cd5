"""Paired bootstrap: how sure a difference of means over the same items is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.errors import OptionError

LEVEL = 0.9
"""Of confidence intervals."""


class Interval(NamedTuple):
    """A value, and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def difference(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return our mean minus theirs over the same questions, with a paired bootstrap's interval.

    Values are a measure of each answer; None counts for no mean.
    """
    both = numpy.array([ours, theirs], dtype=float) if len(ours) == len(theirs) else None
    if both is None or numpy.isnan(both).all(axis=1).any():
        raise OptionError(
            f"{len(ours)} and {len(theirs)} answers cannot be compared in pairs. Give values of "
            "the same questions, at least one on each side."
        )
    draws = numpy.random.default_rng(seed).integers(len(ours), size=(resamples, len(ours)))
    tail = 50.0 * (1.0 - LEVEL)
    # A draw can miss every question that a system has a value for.
    low, high = numpy.nanpercentile(_mean_gaps(both[:, draws]), [tail, 100.0 - tail])
    return Interval(float(_mean_gaps(both)), float(low), float(high))


def _mean_gaps(both: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return the difference of the means over the last axis; NaN where a side has no value."""
    counts = (~numpy.isnan(both)).sum(axis=-1)
    sums = numpy.nansum(both, axis=-1)
    means = numpy.divide(sums, counts, out=numpy.full_like(sums, numpy.nan), where=counts > 0)
    gaps: NDArray[numpy.float64] = means[0] - means[1]
    return gaps
