"""The exact likelihood of a text over V + P, which training, calibration and the lab share.

Phrases are fed as their tokens. The LM's states then depend on the text alone, so one pass over it
scores every unit at every position. The exact value sums over all segmentations of the text into
units; the strict one is that of a single segmentation, the longest phrase first. A text is taken as
a beginning: phrases that agree with it and go on beyond its end count, too. A text that ends has
its end token as its last, which no phrase contains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[numpy.float64]
Ints = NDArray[numpy.int64]
Key = tuple[int, ...]


class PhraseMatch(NamedTuple):
    """A phrase that agrees with a text from some position on, as far as the text goes."""

    phrase: int
    """Its index."""
    size: int
    """The phrase's tokens; the text may end before them."""


class ScoredMatch(NamedTuple):
    """The size of such a phrase, and its logit."""

    size: int
    score: float


@dataclass(frozen=True, slots=True)
class ScoredText:
    """One pass of an LM over a text; row t is about token t and what follows it."""

    token_logits: Floats
    """(T,), the logits of the text's tokens."""
    token_total: Floats
    """(T,), logsumexp over V."""
    phrase_total: Floats
    """(T,), logsumexp over P."""
    matches: list[list[ScoredMatch]]
    """For each position the phrases that the text goes on with."""

    def biased(self, bias: float) -> "ScoredText":
        """Add a `phrase_bias` to the logit of every phrase."""
        matches = [[ScoredMatch(m.size, m.score + bias) for m in here] for here in self.matches]
        return replace(self, phrase_total=self.phrase_total + bias, matches=matches)


def match_phrases(ids: Sequence[int], keys: Sequence[Key]) -> list[list[PhraseMatch]]:
    """Find the phrases that agree with a text at each position; `keys` has none twice.

    Phrases that go on beyond the end of the text are included.
    """
    indices = {key: index for index, key in enumerate(keys)}
    sizes = sorted({len(key) for key in keys})
    matches: list[list[PhraseMatch]] = []
    for begin in range(len(ids)):
        inside = [size for size in sizes if begin + size <= len(ids)]
        hits = [(indices.get(tuple(ids[begin : begin + size])), size) for size in inside]
        matches.append([PhraseMatch(index, size) for index, size in hits if index is not None])
    for begin in range(max(len(ids) - max(sizes, default=0) + 1, 0), len(ids)):
        rest = tuple(ids[begin:])
        beyond = [i for i, key in enumerate(keys) if key[: len(rest)] == rest != key]
        matches[begin] += [PhraseMatch(i, len(keys[i])) for i in beyond]
    return matches


def scored_text(
    matches: Sequence[Sequence[PhraseMatch]],
    token_logits: ArrayLike,
    token_total: ArrayLike,
    scores: NDArray[Any],
) -> ScoredText:
    """Reduce the phrases' logits (T, P) along a text to their sum and those that match.

    The other arguments are as `match_phrases` and `ScoredText` describe them.
    """
    return ScoredText(
        numpy.asarray(token_logits, dtype=numpy.float64),
        numpy.asarray(token_total, dtype=numpy.float64),
        log_sums(scores),
        [
            [ScoredMatch(match.size, float(row[match.phrase])) for match in here]
            for here, row in zip(matches, scores, strict=True)
        ],
    )


def exact_likelihood(text: ScoredText) -> float:
    """Return the log-probability that the LM's text begins with a text, over all segmentations.

    In nats.
    """
    size = len(text.token_logits)
    token_logits, total = text.token_logits.tolist(), _totals(text)
    # alpha[j]: the probability of the first j tokens, over all their segmentations. The last one
    # includes the phrases that go on beyond the end.
    alpha = [0.0, *[-math.inf] * size]
    for begin, matches in enumerate(text.matches):
        here = alpha[begin] - total[begin]
        alpha[begin + 1] = _log_add(alpha[begin + 1], here + token_logits[begin])
        for match in matches:
            end = min(begin + match.size, size)
            alpha[end] = _log_add(alpha[end], here + match.score)
    return alpha[-1]


def strict_likelihood(text: ScoredText) -> float:
    """Return the same of one segmentation: the longest phrase at each position."""
    size = len(text.token_logits)
    token_logits, total = text.token_logits.tolist(), _totals(text)
    likelihood = 0.0
    begin = 0
    while begin < size:
        longest = max((m for m in text.matches[begin] if begin + m.size <= size), default=None)
        likelihood += (token_logits[begin] if longest is None else longest.score) - total[begin]
        begin += 1 if longest is None else longest.size
    return likelihood


class Segmentations(NamedTuple):
    """All ways of writing a text in units."""

    log_likelihood: float
    """Over all of them, in nats."""
    posterior: Floats
    """(U,) the probability of each unit, given the text."""


def segmentations(
    begin: Ints, end: Ints, logprob: Floats, unit_price: float = 0.0
) -> Segmentations:
    """Sum over all ways of writing a text in units, forwards and backwards.

    Args:
        begin: (U,) where each unit begins, in order; the first begins the text.
        end: (U,) where it ends.
        logprob: (U,) its log-probability after the text before it.
        unit_price: Nats that a segmentation gains for each token more than its units.

    Returns:
        The log-likelihood, with the price, and the posterior of each unit.
    """
    first = int(begin[0])
    value = (logprob + unit_price * (end - begin - 1)).tolist()
    edges = list(zip((begin - first).tolist(), (end - first).tolist(), value, strict=True))
    size = int(end.max()) - first
    before, after = [0.0, *[-math.inf] * size], [*[-math.inf] * size, 0.0]
    for start, stop, score in edges:
        before[stop] = _log_add(before[stop], before[start] + score)
    for start, stop, score in reversed(edges):
        after[start] = _log_add(after[start], after[stop] + score)
    total = before[size]
    posterior = [math.exp(before[a] + score + after[b] - total) for a, b, score in edges]
    return Segmentations(total, numpy.array(posterior))


def bits_per_byte(log_likelihood: float, size: int) -> float:
    """Turn nats of a text into bits per byte of it; 0 for a text of no bytes."""
    return -log_likelihood / math.log(2) / size if size else 0.0


def _totals(text: ScoredText) -> list[float]:
    """Return the logsumexp over V + P at each position."""
    totals: list[float] = numpy.logaddexp(text.token_total, text.phrase_total).tolist()
    return totals


def _log_add(left: float, right: float) -> float:
    low, high = (left, right) if left < right else (right, left)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def log_sums(rows: NDArray[Any]) -> Floats:
    """Return the logarithm of the sum of exponentials of each row, in double precision."""
    return numpy.array([_logsumexp(row) for row in rows], dtype=numpy.float64)


def _logsumexp(row: NDArray[Any]) -> float:
    top = float(row.max(initial=-numpy.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(float(numpy.exp(row.astype(numpy.float64) - top).sum()))
