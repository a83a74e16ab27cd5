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
    Histograms,
    area,
    cog_pair,
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


@given(COUNTS, st.sampled_from([0.5, 2.0, 5.0]))
def test_curve_is_that_of_the_definition(counts, scale):
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
    assert (found.mean, found.spread) == pytest.approx((1.0, 0.0), abs=1e-12)
    assert found.texts == 60


def test_more_distance_is_a_lower_score():
    pytest.importorskip("sklearn")
    own = features(0, 120)
    clusters = quantise(own, features(1, 120))
    near, far = mauve(clusters), mauve(quantise(own, features(1, 120, 1.5)))
    assert near.mean > far.mean + 0.2
    each = [mauve([seeded]).mean for seeded in clusters]
    assert len(each) == 5 and near.mean == pytest.approx(numpy.mean(each))
    assert near.spread == pytest.approx(numpy.std(each, ddof=1)) != 0.0


def test_one_seed_has_no_spread():
    found = mauve([Histograms(numpy.array([2, 1, 0]), numpy.array([0, 3, 0]))])
    assert found.mean == pytest.approx(score([2, 1, 0], [0, 3, 0]))
    assert found.spread == 0.0


@pytest.mark.parametrize(("sizes", "expected"), [((4, 9), 2), ((34, 80), 3), ((96, 50), 5)])
def test_number_of_clusters(sizes, expected):
    pytest.importorskip("sklearn")
    [found] = quantise(features(0, sizes[0]), features(1, sizes[1]), seeds=[25])
    assert (found.reference.sum(), found.generated.sum()) == sizes
    assert len(found.reference + found.generated) == expected
    assert (found.reference + found.generated > 0).all()


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


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_whole_pipeline_is_close_to_the_package(package, shift):
    pytest.importorskip("sklearn")
    p, q = features(0, 300), features(1, 300, shift)
    each = [theirs(package, p, q, seed=seed).mauve for seed in SEEDS]
    assert mauve(quantise(p, q)).mean == pytest.approx(numpy.mean(each), abs=0.05)
