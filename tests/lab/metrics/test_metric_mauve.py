"""MAUVE: its definition computed in another way, closed forms, and the authors' package."""

import sys

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import rel_entr

from univerb.errors import MissingExtra, OptionError
from univerb.lab.metrics.mauve import (
    SEEDS,
    Clusters,
    area,
    cog_pair,
    compare,
    divergence_curve,
    matched_pair,
    mauve,
    quantise,
)

COUNTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)


def histograms(counts):
    p, q = numpy.array(counts, dtype=float).T
    assume(p.sum() and q.sum())
    return p, q


def score(p, q, scale=2.0):
    return area(divergence_curve(p, q, scale))


def features(seed, size, shift=0.0):
    return numpy.random.default_rng(seed).normal(size=(size, 8)) + shift


def test_texts_joined_as_the_published_script_does():
    assert cog_pair("A b", " c d. ", " e") == ("A b c d.", "A b  e")
    assert cog_pair("A b", "  ", " e") is None


def test_matched_texts_have_one_length():
    assert matched_pair([1, 2], [3, 4, 5], [6, 7]) == ([1, 2, 3, 4], [1, 2, 6, 7])
    assert matched_pair([1], [3], [6, 7]) == ([1, 3], [1, 6])
    assert matched_pair([1], [], [6]) is None


def test_a_text_of_nothing_is_not_like_its_reference():
    assert matched_pair([1], [3, 4], []) == ([1, 3, 4], [1])


@pytest.mark.parametrize("scale", [0.5, 2.0, 5.0])
@given(COUNTS)
def test_curve_is_that_of_the_definition(scale, counts):
    p, q = histograms(counts)
    curve = divergence_curve(p, q, scale)
    assert curve.shape == (27, 2)
    assert curve[0].tolist() == [1.0, 0.0] and curve[-1].tolist() == [0.0, 1.0]
    p, q = p / p.sum(), q / q.sum()
    for weight, point in zip(numpy.linspace(1e-6, 1 - 1e-6, 25), curve[1:-1], strict=True):
        mixed = weight * p + (1 - weight) * q
        expected = [numpy.exp(-scale * rel_entr(own, mixed).sum()) for own in (q, p)]
        assert point == pytest.approx(expected, abs=1e-12)


@given(COUNTS, st.integers(0, 7))
def test_score_is_a_share_and_knows_no_order(counts, at):
    p, q = histograms(counts)
    found = score(p, q)
    assert 0.0 < found <= 1.0 + 1e-12
    assert score(q, p) == pytest.approx(found, abs=1e-12)
    assert score(p[::-1], q[::-1]) == pytest.approx(found, abs=1e-12)
    padded = [numpy.insert(side, min(at, len(side)), 0.0) for side in (p, q)]
    assert score(*padded) == pytest.approx(found, abs=1e-12)
    assert score(10 * p, 3 * q) == pytest.approx(found, abs=1e-12)


@given(COUNTS)
def test_joining_clusters_never_lowers_the_score(counts):
    """What cannot be told apart any more cannot differ: the rule of data processing."""
    p, q = histograms(counts)
    joined = [numpy.append(side[2:], side[:2].sum()) for side in (p, q)]
    assert score(*joined) >= score(p, q) - 1e-3  # The curve has 25 points, not all.


@given(COUNTS)
def test_equal_histograms_score_one(counts):
    p, _ = histograms(counts)
    assert score(p, p) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 1 / 2), (2.0, 1 / 6), (3.0, 1 / 20)])
def test_nothing_in_common_has_a_closed_form(scale, expected):
    """The curve is x = (1 - w)^c, y = w^c; its area is c B(c, c + 1)."""
    assert score([3, 0], [0, 8], scale) == pytest.approx(expected, abs=3e-3)


def test_identical_texts_score_one():
    pytest.importorskip("sklearn")
    own = features(0, 60)
    found = mauve(quantise(own, own))
    assert found.each == pytest.approx([1.0] * len(SEEDS), abs=1e-12)
    assert (found.texts, found.buckets, found.spread) == (60, 6, pytest.approx(0.0))
    assert found.mean == pytest.approx(1.0) and found.star == pytest.approx(1.0)


def test_more_distance_is_a_lower_score():
    pytest.importorskip("sklearn")
    own = features(0, 120)
    near, far = (mauve(quantise(own, features(1, 120, shift))) for shift in (0.0, 1.5))
    assert near.mean > far.mean + 0.2
    assert near.spread > 0.0 and len(near.each) == 5
    assert near.mean == pytest.approx(numpy.mean(near.each))
    assert near.spread == pytest.approx(numpy.std(near.each, ddof=1))


def test_half_a_text_for_each_cluster_is_the_star():
    own = Clusters(numpy.array([0, 0, 1]), numpy.array([1, 1, 1]), 3)
    found = mauve([own])
    assert found.mean == pytest.approx(score([2, 1, 0], [0, 3, 0]))
    assert found.star == pytest.approx(score([2.5, 1.5, 0.5], [0.5, 3.5, 0.5]))
    assert found.spread == 0.0


@pytest.mark.parametrize(("sizes", "expected"), [((4, 9), 2), ((34, 80), 3), ((96, 50), 5)])
def test_number_of_clusters(sizes, expected):
    pytest.importorskip("sklearn")
    [found] = quantise(features(0, sizes[0]), features(1, sizes[1]), seeds=[25])
    assert found.count == expected
    assert (len(found.reference), len(found.generated)) == sizes
    assert set(found.reference) | set(found.generated) == set(range(expected))


def test_length_of_features_does_not_matter():
    pytest.importorskip("sklearn")
    one, other = features(0, 40), features(1, 40, 1.0)
    factors = numpy.linspace(0.1, 9.0, 40)[:, None]
    [plain] = quantise(one, other, seeds=[3])
    [scaled] = quantise(one * factors, other / factors, seeds=[3])
    assert plain.reference.tolist() == scaled.reference.tolist()
    assert plain.generated.tolist() == scaled.generated.tolist()


def test_half_precision_features_are_widened():
    pytest.importorskip("sklearn")
    own = (features(0, 40) * 1e3).astype(numpy.float16)
    assert mauve(quantise(own, own)).mean == pytest.approx(1.0)


def test_main_axes_are_those_of_a_pca():
    decomposition = pytest.importorskip("sklearn.decomposition")
    from univerb.lab.metrics.mauve import _reduced

    own = features(0, 50) * numpy.linspace(0.2, 3.0, 8)
    rows = own / numpy.linalg.norm(own, axis=1, keepdims=True)
    pca = decomposition.PCA(whiten=False).fit(rows)
    kept = int((numpy.cumsum(pca.explained_variance_ratio_) < 0.9).sum()) + 1
    assert 1 < kept < 8
    expected = pca.transform(rows)[:, :kept]
    assert numpy.abs(_reduced(own)) == pytest.approx(numpy.abs(expected), abs=1e-9)


@pytest.mark.parametrize(
    "other",
    [numpy.ones((3, 5)), numpy.ones(4), numpy.ones((0, 4)), numpy.array([[1, 2, 3, numpy.nan]])],
)
def test_features_that_do_not_fit_are_refused(other):
    with pytest.raises(OptionError, match="features"):
        quantise(numpy.ones((3, 4)), other)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(MissingExtra, match="scikit-learn"):
        quantise(numpy.ones((3, 4)), numpy.ones((3, 4)))


def drawn(seed, weights, size=400, seeds=5):
    """Clusters as if texts came from a known histogram; the references are the same each time."""
    shares = numpy.array(weights) / sum(weights)
    reference = numpy.random.default_rng(99).integers(len(shares), size=size)
    draw = numpy.random.default_rng(seed)
    generated = draw.choice(len(shares), size=(seeds, size), p=shares)
    return [Clusters(reference, own, len(shares)) for own in generated]


def test_a_system_compared_with_itself():
    found = compare(drawn(1, [4, 2, 1, 1]), drawn(1, [4, 2, 1, 1]), resamples=20)
    assert found.ratio == pytest.approx((1.0, 1.0, 1.0))
    assert found.difference == pytest.approx((0.0, 0.0, 0.0))


def test_a_better_system_is_found_better():
    better, worse = drawn(1, [3, 2, 2, 2]), drawn(2, [9, 1, 1, 1])
    found = compare(better, worse)
    ours, theirs = mauve(better).mean, mauve(worse).mean
    assert found.ratio.value == pytest.approx(ours / theirs)
    assert found.difference.value == pytest.approx(ours - theirs)
    assert 1.0 < found.ratio.low < found.ratio.value < found.ratio.high
    assert 0.0 < found.difference.low < found.difference.value < found.difference.high
    swapped = compare(worse, better)
    assert swapped.ratio.low == pytest.approx(1 / found.ratio.high)
    assert swapped.difference.high == pytest.approx(-found.difference.low)


def test_interval_is_as_wide_as_fresh_texts_scatter():
    better, worse = [4, 3, 2, 1, 1, 1], [9, 2, 1, 1, 1, 1]

    def fresh(trial):
        draw = numpy.random.default_rng(trial)
        reference, one, other = (
            draw.choice(6, size=400, p=numpy.array(weights) / sum(weights))
            for weights in ([1] * 6, better, worse)
        )
        return Clusters(reference, one, 6), Clusters(reference, other, 6)

    scores = numpy.log([[mauve([own]).mean for own in fresh(trial)] for trial in range(500)])
    scatter = (scores[:, 0] - scores[:, 1]).std(ddof=1)
    found = [compare([a], [b], resamples=100).ratio for a, b in map(fresh, range(12))]
    reach = numpy.mean([numpy.log(own.high / own.low) for own in found]) / 2
    assert reach / 1.645 == pytest.approx(scatter, rel=0.25)


def test_more_confidence_needs_more_room():
    one, other = drawn(1, [3, 2, 2, 2]), drawn(2, [4, 2, 2, 2])
    narrow, wide = (compare(one, other, level=level, resamples=200) for level in (0.5, 0.99))
    assert wide.ratio.low < narrow.ratio.low < narrow.ratio.high < wide.ratio.high
    assert compare(one, other, resamples=50) == compare(one, other, resamples=50)
    assert compare(one, other, resamples=50) != compare(one, other, resamples=50, seed=1)


def test_other_items_cannot_be_compared():
    with pytest.raises(OptionError, match="same items"):
        compare(drawn(1, [1, 1]), drawn(2, [1, 1], size=399))
    with pytest.raises(OptionError, match="same seeds"):
        compare(drawn(1, [1, 1]), drawn(2, [1, 1], seeds=4))


@pytest.fixture(scope="module")
def package():
    """The authors' implementation; GPL, so it is only ever a thing to compare with."""
    return pytest.importorskip("mauve")


def theirs(package, p, q, **options):
    return package.compute_mauve(
        p_features=p, q_features=q, mauve_scaling_factor=2.0, verbose=False, **options
    )


def test_same_clusters_give_what_the_package_gives(package):
    p, q = features(0, 150), features(1, 130, 0.4)
    found = theirs(package, p, q)
    assert len(found.p_hist) == 13
    curve = divergence_curve(found.p_hist, found.q_hist)
    assert area(curve) == pytest.approx(found.mauve, abs=1e-6)
    ours, other = (numpy.array(sorted(map(tuple, own))) for own in (curve, found.divergence_curve))
    assert ours == pytest.approx(other, abs=1e-6)
    stars = [hist * size + 0.5 for hist, size in ((found.p_hist, 150), (found.q_hist, 130))]
    assert score(*stars) == pytest.approx(found.mauve_star, abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_whole_pipeline_is_close_to_the_package(package, shift):
    pytest.importorskip("sklearn")
    p, q = features(0, 300), features(1, 300, shift)
    each = [theirs(package, p, q, seed=seed).mauve for seed in SEEDS]
    assert mauve(quantise(p, q)).mean == pytest.approx(numpy.mean(each), abs=0.05)
