"""Seconds per text, to prepare and to decode it (docs/method.md, Metrics: latency).

The paper's figures are those without a cache and without preparation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

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


@dataclass(frozen=True, slots=True)
class Latency:
    """Median seconds over texts; decoding is for 128 base tokens."""

    prepare: float
    decode: float
    total: float
    """Preparation and decoding with a cache."""
    decode_uncached: float | None
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
        prepare=median(timing.prepare for timing in timings),
        decode=median(decode),
        total=median(t.prepare + seconds for t, seconds in zip(timings, decode, strict=True)),
        decode_uncached=median(uncached) if uncached else None,
        uncached=len(uncached),
        texts=len(timings),
    )
