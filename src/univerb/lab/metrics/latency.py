"""Seconds per text, to prepare and to decode it (docs/method.md, Metrics: latency).

The paper's figures are those without a cache and without preparation.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from univerb.errors import OptionError

PER = 128
"""Base tokens that decoding is reported for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one text."""

    prepare: float
    """Retrieval, selection and encoding of phrases."""
    decode: float
    """With a cache, the prefill included."""
    tokens: int
    """Base tokens generated."""
    steps: int
    """Units generated."""
    decode_uncached: float | None = None
    """The same text without a cache, if measured."""


class Seconds(NamedTuple):
    """Over texts."""

    mean: float
    median: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Over texts; decoding is for 128 base tokens."""

    prepare: Seconds
    decode: Seconds
    total: Seconds
    """Preparation and decoding with a cache."""
    decode_uncached: Seconds | None
    """Of the texts for which it was measured."""
    uncached: int
    """Number of these texts."""
    texts: int


def latency(timings: Sequence[Timing]) -> Latency:
    """Summarise timings, at least one, without warm-ups and empty texts."""
    empty = sum(timing.tokens < 1 or timing.steps < 1 for timing in timings)
    if not timings or empty:
        raise OptionError(
            f"{len(timings)} timings, of which {empty} have no token or step. Give at least one, "
            "and leave out those of empty texts."
        )
    decode = [timing.decode * PER / timing.tokens for timing in timings]
    uncached = [
        timing.decode_uncached * PER / timing.tokens
        for timing in timings
        if timing.decode_uncached is not None
    ]
    return Latency(
        prepare=_seconds([timing.prepare for timing in timings]),
        decode=_seconds(decode),
        total=_seconds([t.prepare + seconds for t, seconds in zip(timings, decode, strict=True)]),
        decode_uncached=_seconds(uncached) if uncached else None,
        uncached=len(uncached),
        texts=len(timings),
    )


def _seconds(values: Sequence[float]) -> Seconds:
    return Seconds(statistics.fmean(values), statistics.median(values))
