"""Units per text, and the part of it written as phrases (docs/method.md, Metrics: compression)."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Units:
    """A text as its system wrote it, or as another tokenizer would."""

    size: int
    """UTF-8 bytes."""
    units: int
    """A phrase counts once."""
    tokens: int
    """Tokens of the static vocabulary."""
    phrase_lengths: tuple[int, ...] = ()
    """The tokens of each phrase."""


def retokenised(text: str, tokens: int) -> Units:
    """Return a text as a plain tokenizer has it: each token is a unit."""
    return Units(len(text.encode()), tokens, tokens)


@dataclass(frozen=True, slots=True)
class Compression:
    """Figures over texts."""

    units: float
    """Per text, a mean: what the paper's tables call NSL."""
    bytes_per_unit: float
    """The mean of the ratios of texts, as in the paper."""
    bytes_per_unit_pooled: float
    """All bytes by all units."""
    phrase_share: float
    """The share of tokens that are part of phrases."""
    hit_rate: float
    """The share of units that are phrases."""
    phrase_lengths: dict[int, int]
    """Number of phrases by length in tokens."""


def compression(texts: Sequence[Units]) -> Compression:
    """Measure texts; figures are zero where there is nothing to divide by.

    A text without a unit counts in the number of units, but has no ratio.
    """
    written = [text for text in texts if text.units]
    units = sum(text.units for text in written)
    lengths = Counter(length for text in written for length in text.phrase_lengths)
    ratios = [text.size / text.units for text in written]
    return Compression(
        units=_ratio(units, len(texts)),
        bytes_per_unit=statistics.fmean(ratios) if ratios else 0.0,
        bytes_per_unit_pooled=_ratio(sum(text.size for text in written), units),
        phrase_share=_ratio(
            sum(length * count for length, count in lengths.items()),
            sum(text.tokens for text in written),
        ),
        hit_rate=_ratio(lengths.total(), units),
        phrase_lengths=dict(sorted(lengths.items())),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
