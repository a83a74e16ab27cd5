"""MAUVE (METHOD C.1): how close generated texts come to written ones, by the features of both.

Written from its definition (Pillutla et al., 2021). The features of both sides are put into
clusters; how far the two histograms are from their mixtures makes a curve, and the area under it is
the score. It depends on the featuriser, on the number of texts and on the clusters' seed: a report
names the first two, and the mean is taken over the third.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

from univerb.errors import MissingExtra, OptionError

Floats = NDArray[numpy.float64]
Labels = NDArray[numpy.int64]

SEEDS = (25, 26, 27, 28, 29)
SCALE = 2.0
"""The paper's scaling factor; that of the metric's authors is 5."""
MAX_TOKENS = 512
"""Features are those of a text's first tokens."""
_VARIANCE = 0.9
_RESTARTS = 5
_ITERATIONS = 500
_WEIGHTS = numpy.linspace(1e-6, 1.0 - 1e-6, 25)
_STAR = 0.5


class Pair(NamedTuple):
    """A written text and a generated one, each with the prefix that they share."""

    reference: str
    generated: str


class PairIds(NamedTuple):
    """The same as tokens."""

    reference: list[int]
    generated: list[int]


def cog_pair(prefix: str, reference: str, text: str) -> Pair | None:
    """Join texts for `mauve_cog`, as the script behind the published figures does.

    The reference keeps its whole length, and the space before the text is added to its own.

    Args:
        prefix: What both go on from.
        reference: How it goes on in the corpus.
        text: How the system went on.

    Returns:
        Both texts; None if there is no reference, for such items are left out.
    """
    own = reference.strip()
    return Pair(f"{prefix} {own}", f"{prefix} {text}") if own else None


def matched_pair(
    prefix: Sequence[int], reference: Sequence[int], text: Sequence[int]
) -> PairIds | None:
    """Join texts for `mauve_matched`: both go on for the same number of tokens.

    Args:
        prefix: The tokens that both go on from.
        reference: Those that follow in the corpus.
        text: Those that the system wrote.

    Returns:
        Both token lists; None if there is no reference. Where the system wrote nothing, the
        reference stays whole: an empty text must not count as a perfect one.
    """
    if not reference:
        return None
    size = min(len(reference), len(text)) or len(reference)
    return PairIds([*prefix, *reference[:size]], [*prefix, *text[:size]])


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each text. Where the sides are compared in pairs, text i is that of item i."""

    reference: Labels
    generated: Labels
    count: int

    def histograms(self, items: Labels | None = None) -> tuple[Floats, Floats]:
        """Count the texts of each cluster: (k,) for the references and for the generated ones.

        Args:
            items: Numbers of the items to count, in any number; None counts each once.

        Returns:
            Both histograms.
        """
        sides = (self.reference, self.generated)
        own = [side if items is None else side[items] for side in sides]
        reference, generated = (numpy.bincount(side, minlength=self.count) for side in own)
        return reference.astype(numpy.float64), generated.astype(numpy.float64)


def quantise(
    reference: NDArray[Any], generated: NDArray[Any], seeds: Sequence[int] = SEEDS
) -> list[Clusters]:
    """Put the features of both sides into clusters: one for ten texts of the smaller side.

    Args:
        reference: (N, d), features of written texts.
        generated: (M, d), features of generated ones.
        seeds: Of k-means.

    Returns:
        The clusters, for each seed.

    Raises:
        OptionError: If the features do not fit each other.
        MissingExtra: If scikit-learn is not installed.
    """
    _check(reference, generated)
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise MissingExtra("scikit-learn", "eval") from None
    size = len(reference)
    count = max(2, round(min(size, len(generated)) / 10))
    rows = _reduced(numpy.concatenate([reference, generated]).astype(numpy.float64))
    found = []
    for seed in seeds:
        means = KMeans(count, n_init=_RESTARTS, max_iter=_ITERATIONS, random_state=seed)
        labels = means.fit_predict(rows).astype(numpy.int64)
        found.append(Clusters(labels[:size], labels[size:], count))
    return found


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
    """Give rows the length 1, and turn them to the main axes that hold 90 % of the variance."""
    norms = numpy.linalg.norm(features, axis=1, keepdims=True)
    rows = features / numpy.where(norms > 0.0, norms, 1.0)
    rows -= rows.mean(axis=0)
    _, sizes, axes = numpy.linalg.svd(rows, full_matrices=False)
    variance = numpy.cumsum(sizes**2)
    kept = int(numpy.searchsorted(variance, _VARIANCE * variance[-1])) + 1
    reduced: Floats = rows @ axes[:kept].T
    return reduced


def divergence_curve(reference: ArrayLike, generated: ArrayLike, scale: float = SCALE) -> Floats:
    """Compare two histograms with their mixtures.

    Args:
        reference: (k,), counts or shares p of the references.
        generated: (k,), those of the generated texts, q.
        scale: How fast a point falls with its divergence.

    Returns:
        (27, 2): from (1, 0) to (0, 1) the points exp(-scale KL(q, r)), exp(-scale KL(p, r)) for 25
        mixtures r of p and q.
    """
    p, q = (numpy.asarray(side, dtype=numpy.float64) for side in (reference, generated))
    p, q = p / p.sum(), q / q.sum()
    mixed = _WEIGHTS[:, None] * p + (1.0 - _WEIGHTS[:, None]) * q
    points = numpy.exp(-scale * numpy.stack([_divergence(q, mixed), _divergence(p, mixed)], 1))
    return numpy.concatenate([[[1.0, 0.0]], points, [[0.0, 1.0]]])


def _divergence(own: Floats, mixed: Floats) -> Floats:
    """Return KL(own, r) for each row r."""
    there = own > 0.0
    terms = own[there] * numpy.log(own[there] / mixed[:, there])
    # Rounding may put the divergence of equal histograms below zero.
    found: Floats = numpy.maximum(terms.sum(axis=1), 0.0)
    return found


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
    star: float
    """MAUVE*, the mean: half a text is added to each cluster of each side."""
    each: tuple[float, ...]
    """By seed."""
    texts: int
    """Of the smaller side."""
    buckets: int


def mauve(clusters: Sequence[Clusters], scale: float = SCALE) -> Mauve:
    """Score generated texts.

    Args:
        clusters: What `quantise` found, seed by seed.
        scale: The scaling factor.

    Returns:
        The score, as a mean over seeds.
    """
    both = [own.histograms() for own in clusters]
    each = tuple(area(divergence_curve(p, q, scale)) for p, q in both)
    stars = [area(divergence_curve(p + _STAR, q + _STAR, scale)) for p, q in both]
    first = clusters[0]
    return Mauve(
        mean=statistics.fmean(each),
        spread=statistics.stdev(each) if len(each) > 1 else 0.0,
        star=statistics.fmean(stars),
        each=each,
        texts=min(len(first.reference), len(first.generated)),
        buckets=first.count,
    )


class Interval(NamedTuple):
    """A figure, and the ends of its confidence interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """How the scores of two systems stand to each other."""

    ratio: Interval
    difference: Interval


def compare(
    system: Sequence[Clusters],
    baseline: Sequence[Clusters],
    scale: float = SCALE,
    level: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems that went on from the same prefixes, by a paired bootstrap.

    A resample draws items with everything that belongs to them, and one seed. The clusters stay as
    they are: drawing repeats texts, and clusters made anew would be pulled towards the repeated.

    Args:
        system: Its clusters, by seed.
        baseline: Those of the other system, for the same seeds and the same items.
        scale: The scaling factor.
        level: How sure the intervals are.
        resamples: How often items are drawn.
        seed: Of the drawing.

    Returns:
        The system's score in relation to the baseline's, each with its interval.

    Raises:
        OptionError: If the two are not about the same items.
    """
    sizes = {len(side) for own in (*system, *baseline) for side in (own.reference, own.generated)}
    if len(sizes) != 1 or len(system) != len(baseline):
        raise OptionError(
            f"systems with {sorted(sizes)} texts and {len(system)} and {len(baseline)} seeds cannot"
            " be compared in pairs. Give the same items and the same seeds for both."
        )
    [size] = sizes
    draw = numpy.random.default_rng(seed)
    drawn = numpy.empty((resamples, 2))
    for row in drawn:
        items, turn = draw.integers(size, size=size), int(draw.integers(len(system)))
        for side, clusters in enumerate((system[turn], baseline[turn])):
            row[side] = area(divergence_curve(*clusters.histograms(items), scale))
    ours, theirs = mauve(system, scale).mean, mauve(baseline, scale).mean
    logs = numpy.log(drawn)
    ratio = _interval(math.log(ours / theirs), logs[:, 0] - logs[:, 1], level)
    difference = _interval(ours - theirs, drawn[:, 0] - drawn[:, 1], level)
    return Comparison(Interval(*map(math.exp, ratio)), difference)


def _interval(value: float, drawn: Floats, level: float) -> Interval:
    """Return the normal interval: the spread of the draws around the value.

    Drawn histograms are noisier than the given ones, so that draws lie off the value, mostly in
    favour of the better system: their own quantiles would be too sure of it.
    """
    reach = statistics.NormalDist().inv_cdf((1.0 + level) / 2.0) * float(drawn.std(ddof=1))
    return Interval(value, value - reach, value + reach)
