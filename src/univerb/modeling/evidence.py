"""What documents themselves say of phrases at a place of a text: how often each stands in them.

An encoder knows what a phrase means, but not that these documents have it twelve times, nor that
the text is in the middle of one of their sentences. Both are counted, and learned weights turn the
counts into scores (`conditional`), as an n-gram model of the documents would.
"""

from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.int64]

MAX_OVERLAP = 4
"""Tokens of the text that are looked at before a phrase, to see whether it goes on a longer one."""


class Evidence(NamedTuple):
    """Counts for phrases, or for the tokens that phrases begin with, at one place or several."""

    counts: Ints
    """How often each stands in the documents; 1 for one that is in none."""
    overlaps: Ints
    """Tokens before the place that are, together with it, a phrase, or the beginning of one."""
    overlap_counts: Ints
    """How often that longer phrase stands in the documents; 1 where there is none."""

    def bonus(self, overlap: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """Return what the counts add to scores.

        Args:
            overlap: (MAX_OVERLAP,) for one, two … tokens.
            weights: (2,) of the logarithms of both counts.

        Returns:
            The bonus; 0 for what stands once in the documents and goes on no longer phrase.
        """
        result: NDArray[Any] = numpy.append(overlap.dtype.type(0.0), overlap)[self.overlaps]
        for weight, each in zip(weights, (self.counts, self.overlap_counts), strict=True):
            result = result + weight * numpy.log(each).astype(overlap.dtype)
        return result
