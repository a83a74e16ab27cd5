"""Seconds for a text (METHOD C.4): to prepare it, and to decode it with and without a cache.

The paper's figures are those without a cache and without preparation.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from univerb.errors import OptionError

PER = 128
"""Base tokens that decoding is given for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one text took, in seconds."""

    prepare: float
    """Retrieval, choice and encoding of phrases."""
    decode: float
    """With a cache, the prefill included."""
    tokens: int
    """Base tokens written."""
    steps: int
    """Units written."""
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
    """How many these are."""
    tokens_per_step: float
    texts: int


def latency(each: Sequence[Timing], per: int = PER) -> Latency:
    """Put timings together.

    Args:
        each: Warm-ups left out, and texts of no token too.
        per: Base tokens that decoding is given for.

    Returns:
        The figures.

    Raises:
        OptionError: If there is no text, or one without a token or a step.
    """
    if not each or any(own.tokens < 1 or own.steps < 1 for own in each):
        raise OptionError(
            f"{len(each)} timings, of which {sum(own.tokens < 1 or own.steps < 1 for own in each)} "
            "have no token or step. Give at least one, and leave out those of empty texts."
        )
    decode = [own.decode * per / own.tokens for own in each]
    uncached = [
        own.decode_uncached * per / own.tokens for own in each if own.decode_uncached is not None
    ]
    return Latency(
        prepare=_seconds([own.prepare for own in each]),
        decode=_seconds(decode),
        total=_seconds([own.prepare + seconds for own, seconds in zip(each, decode, strict=True)]),
        decode_uncached=_seconds(uncached) if uncached else None,
        uncached=len(uncached),
        tokens_per_step=sum(own.tokens for own in each) / sum(own.steps for own in each),
        texts=len(each),
    )


def _seconds(values: Sequence[float]) -> Seconds:
    return Seconds(statistics.fmean(values), statistics.median(values))
