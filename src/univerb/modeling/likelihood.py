"""The likelihood of a text over V + P, when phrases are fed as their tokens (DESIGN 6).

The LM's states then depend on the text alone, so one pass over it scores every unit at every place.
The exact value adds up all ways to write the text; the strict one is that of one way, the longest
phrase first. A text is taken as a beginning: phrases that agree with it and go on beyond its end
count too. A text that ends has its end token as its last, which no phrase contains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[numpy.float64]
Key = tuple[int, ...]


class Fit(NamedTuple):
    """A phrase that a text goes on with, as far as the text goes."""

    phrase: int
    size: int
    """The phrase's tokens; the text may end before them."""


class Unit(NamedTuple):
    """Such a phrase with its score."""

    size: int
    score: float


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What one pass of an LM says about a text; row t is about token t and what follows it."""

    own: Floats
    """(T,), the logit of the text's own token."""
    tokens: Floats
    """(T,), logsumexp over V."""
    phrases: Floats
    """(T,), logsumexp over P, without a bias of the decoding."""
    units: list[list[Unit]]
    """For each place the phrases that the text goes on with."""


def fits(ids: Sequence[int], keys: Sequence[Key]) -> list[list[Fit]]:
    """Find the phrases that agree with a text, place by place.

    Args:
        ids: The text's tokens.
        keys: The phrases' tokens, no key twice.

    Returns:
        For each place the phrases that begin there, those that go on beyond the end included.
    """
    numbers = {key: number for number, key in enumerate(keys)}
    sizes = sorted({len(key) for key in keys})
    found: list[list[Fit]] = []
    for place in range(len(ids)):
        inside = [size for size in sizes if place + size <= len(ids)]
        known = [(numbers.get(tuple(ids[place : place + size])), size) for size in inside]
        found.append([Fit(number, size) for number, size in known if number is not None])
    for place in range(max(len(ids) - max(sizes, default=0) + 1, 0), len(ids)):
        rest = tuple(ids[place:])
        beyond = [n for n, key in enumerate(keys) if key[: len(rest)] == rest]
        found[place] += [Fit(n, len(keys[n])) for n in beyond if len(keys[n]) > len(rest)]
    return found


def scored_text(
    found: Sequence[Sequence[Fit]], own: ArrayLike, tokens: ArrayLike, scores: NDArray[Any]
) -> ScoredText:
    """Put together what the likelihoods need.

    Args:
        found: What `fits` returned.
        own: (T,), the logit of the text's own token at each place.
        tokens: (T,), logsumexp of the logits over V.
        scores: (T, P), the phrases' logits, without a bias of the decoding.

    Returns:
        The same, with P reduced to what matters.
    """
    return ScoredText(
        numpy.asarray(own, dtype=numpy.float64),
        numpy.asarray(tokens, dtype=numpy.float64),
        numpy.array([_logsumexp(row) for row in scores], dtype=numpy.float64),
        [
            [Unit(fit.size, float(scores[place, fit.phrase])) for fit in own_fits]
            for place, own_fits in enumerate(found)
        ],
    )


def bare_likelihood(text: ScoredText) -> float:
    """Return the log-probability of a text without phrases, in nats."""
    return float((text.own - text.tokens).sum())


def exact_likelihood(text: ScoredText, biases: Sequence[float]) -> Floats:
    """Return the log-probability that the LM's text begins with a text, over all segmentations.

    Args:
        text: The text and its scores.
        biases: Values of `phrase_bias`.

    Returns:
        For each bias the log-probability, in nats.
    """
    bias, whole = _with_bias(text, biases)
    size = len(text.own)
    # alpha[j]: the probability of the first j tokens, over all ways to write them. The last one
    # also takes the phrases that go on: what follows them is not asked.
    alpha = numpy.full((size + 1, len(bias)), -numpy.inf)
    alpha[0] = 0.0
    for place, units in enumerate(text.units):
        here = alpha[place] - whole[place]
        alpha[place + 1] = numpy.logaddexp(alpha[place + 1], here + text.own[place])
        for unit in units:
            end = min(place + unit.size, size)
            alpha[end] = numpy.logaddexp(alpha[end], here + unit.score + bias)
    last: Floats = alpha[-1]
    return last


def strict_likelihood(text: ScoredText, biases: Sequence[float]) -> Floats:
    """Return the log-probability of one segmentation: at each place the longest phrase that fits.

    Args:
        text: The text and its scores.
        biases: Values of `phrase_bias`.

    Returns:
        For each bias the log-probability, in nats.
    """
    bias, whole = _with_bias(text, biases)
    total = numpy.zeros(len(bias))
    place = 0
    while place < len(text.own):
        inside = [unit for unit in text.units[place] if place + unit.size <= len(text.own)]
        longest = max(inside, default=None)
        total -= whole[place]
        total += text.own[place] if longest is None else longest.score + bias
        place += 1 if longest is None else longest.size
    return total


def bits_per_byte(log_likelihood: float, size: int) -> float:
    """Turn nats of a text into bits per byte of it; 0 for a text of no bytes."""
    return -log_likelihood / math.log(2) / size if size else 0.0


def _with_bias(text: ScoredText, biases: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the biases as an array (B,), and the logsumexp over V + P with each of them (T, B)."""
    bias = numpy.asarray(biases, dtype=numpy.float64)
    return bias, numpy.logaddexp(text.tokens[:, None], text.phrases[:, None] + bias)


def _logsumexp(row: NDArray[Any]) -> float:
    top = float(row.max(initial=-numpy.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(float(numpy.exp(row.astype(numpy.float64) - top).sum()))
