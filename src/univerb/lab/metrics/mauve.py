"""MAUVE: how close generated texts come to human ones (docs/method.md, Metrics: MAUVE).

Written from its definition (Pillutla et al., 2021). The features of both sides are clustered; the
divergences of the two histograms from their mixtures form a curve, and the area under it is the
score. It depends on the featuriser, on the number of texts and on the clusters' seed: a report
names the first two, and the mean is taken over the third.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

from univerb.errors import MissingExtra, OptionError

Floats = NDArray[numpy.float64]
Counts = NDArray[numpy.int64]

SEEDS = (25, 26, 27, 28, 29)
SCALE = 2.0
"""The paper's scaling factor; that of the metric's authors is 5."""
MAX_TOKENS = 512
"""Features are those of a text's first tokens."""
_VARIANCE = 0.9
_RESTARTS = 5
_ITERATIONS = 500
_WEIGHTS = numpy.linspace(1e-6, 1.0 - 1e-6, 25)


def cog_pair(prefix: str, reference: str, text: str) -> tuple[str, str] | None:
    """Join texts for `mauve_cog`, as the script behind the published figures does.

    The reference (the continuation in the corpus) keeps its whole length, and the system's text
    gets a second space before it. Returns both with the prefix; None if there is no reference:
    such items are left out.
    """
    stripped = reference.strip()
    return (f"{prefix} {stripped}", f"{prefix} {text}") if stripped else None


def matched_pair(
    prefix: Sequence[int], reference: Sequence[int], text: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Join texts for `mauve_matched`: both continuations have the same number of tokens.

    Returns the tokens of both with the prefix; None if there is no reference. If the system's text
    is empty, the reference stays whole: an empty text must not count as a perfect one.
    """
    if not reference:
        return None
    size = min(len(reference), len(text)) or len(reference)
    return [*prefix, *reference[:size]], [*prefix, *text[:size]]


class Histograms(NamedTuple):
    """The number of texts in each cluster, (k,)."""

    reference: Counts
    generated: Counts


def quantise(
    reference: NDArray[Any], generated: NDArray[Any], seeds: Sequence[int] = SEEDS
) -> list[Histograms]:
    """Cluster the features of human texts (N, d) and generated ones (M, d), for each seed.

    There is one cluster for ten texts of the smaller side. Raises OptionError if the features do
    not fit each other, MissingExtra if scikit-learn is not installed.
    """
    _check(reference, generated)
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise MissingExtra("scikit-learn", "eval") from None
    size = len(reference)
    count = max(2, round(min(size, len(generated)) / 10))
    rows = _reduced(numpy.concatenate([reference, generated]).astype(numpy.float64))
    histograms = []
    for seed in seeds:
        means = KMeans(count, n_init=_RESTARTS, max_iter=_ITERATIONS, random_state=seed)
        labels = means.fit_predict(rows)
        sides = (numpy.bincount(side, minlength=count) for side in (labels[:size], labels[size:]))
        histograms.append(Histograms(*sides))
    return histograms


def _check(reference: NDArray[Any], generated: NDArray[Any]) -> None:
    shapes = reference.shape, generated.shape
    if any(len(shape) != 2 or 0 in shape for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise OptionError(
            f"features have the shapes {shapes[0]} and {shapes[1]}. "
            "Give one row for each text, of the same featuriser on both sides."
        )
    if not (numpy.isfinite(reference).all() and numpy.isfinite(generated).all()):
        raise OptionError(
            "some features are not finite. Compute them in float32, and leave out empty texts."
        )


def _reduced(features: Floats) -> Floats:
    """Normalise rows to length 1, and project them to the axes that hold 90 % of the variance."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    reduced: Floats = PCA(_VARIANCE, svd_solver="full").fit_transform(normalize(features))
    return reduced


def divergence_curve(reference: ArrayLike, generated: ArrayLike, scale: float = SCALE) -> Floats:
    """Compare the histograms of references p and generated texts q, (k,), with their mixtures.

    Returns (27, 2): from (1, 0) to (0, 1) the points exp(-scale KL(q, r)), exp(-scale KL(p, r)) for
    25 mixtures r of p and q.
    """
    p, q = (numpy.asarray(side, dtype=numpy.float64) for side in (reference, generated))
    p, q = p / p.sum(), q / q.sum()
    mixed = _WEIGHTS[:, None] * p + (1.0 - _WEIGHTS[:, None]) * q
    points = numpy.exp(-scale * numpy.stack([_divergence(q, mixed), _divergence(p, mixed)], 1))
    return numpy.concatenate([[[1.0, 0.0]], points, [[0.0, 1.0]]])


def _divergence(shares: Floats, mixed: Floats) -> Floats:
    """Return KL(shares, r) for each row r."""
    support = shares > 0.0
    terms = shares[support] * numpy.log(shares[support] / mixed[:, support])
    # Rounding may put the divergence of equal histograms below zero.
    divergence: Floats = numpy.maximum(terms.sum(axis=1), 0.0)
    return divergence


def area(curve: Floats) -> float:
    """Return the area under a curve: the mean of that over its one axis and over the other."""
    x, y = curve.T
    return (_under(x, y) + _under(y, x)) / 2.0


def _under(x: Floats, y: Floats) -> float:
    # The curve falls: where points share their x, the highest comes first.
    order = numpy.lexsort((-y, x))
    return float(numpy.trapezoid(y[order], x[order]))


@dataclass(frozen=True, slots=True)
class Mauve:
    """The score, from 0 to 1, over the seeds of the clusters."""

    mean: float
    spread: float
    """The standard deviation over seeds."""
    texts: int
    """Of the smaller side."""


def mauve(seeded: Sequence[Histograms]) -> Mauve:
    """Score generated texts by the histograms of each seed."""
    scores = [area(divergence_curve(*histograms)) for histograms in seeded]
    return Mauve(
        mean=statistics.fmean(scores),
        spread=statistics.stdev(scores) if len(scores) > 1 else 0.0,
        texts=int(min(side.sum() for side in seeded[0])),
    )
