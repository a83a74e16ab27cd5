"""The numpy sampler does what transformers' filters do."""

from collections import Counter

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.config import GenerationConfig
from univerb.engines.llamacpp.sampling import make_sampler
from univerb.engines.torch.sampling import make_sampler as make_torch

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=60, unique=True)


@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.9]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 500]),
    penalty=st.sampled_from([0.5, 1.0, 1.3]),
    seen=st.lists(st.integers(0, 2), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_filters_keep_what_transformers_keeps(logits, temperature, top_p, top_k, penalty, seen):
    own = numpy.array(logits, dtype=numpy.float32)
    before = own.copy()
    config = GenerationConfig(
        temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=penalty
    )
    seen = seen or [0]
    ours = make_sampler(config).filtered(own, seen)
    theirs = make_torch(config).filtered(own, seen)
    assert numpy.array_equal(own, before), "the logits are the engine's, not ours to change"
    # Where the mass of the tail is the limit to the last bit, one more may fall.
    differ = numpy.isfinite(ours) != numpy.isfinite(theirs)
    assert differ.sum() <= 1
    numpy.testing.assert_allclose(ours[~differ], theirs[~differ], rtol=1e-5, atol=1e-5)
    assert make_sampler(config).is_greedy == make_torch(config).is_greedy


@given(
    logits=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False)
        | st.sampled_from([3.4e38, -3.4e38, 1e36, -numpy.inf]),
        min_size=3,
        max_size=9,
    ),
    temperature=st.floats(0.0, 100.0) | st.sampled_from([1e-45, 1e-38, 0.001, 100.0]),
    top_p=st.floats(1e-6, 1.0),
    top_k=st.sampled_from([0, 1, 5, 1 << 30]),
    penalty=st.floats(0.01, 100.0),
)
@pytest.mark.parametrize("make", [make_sampler, make_torch], ids=["numpy", "torch"])
def test_any_allowed_options_pick_from_any_logits(make, logits, **options):
    options["repetition_penalty"] = options.pop("penalty")
    sampler = make(GenerationConfig(**options))
    filtered = sampler.filtered(numpy.array(logits, dtype=numpy.float32), [0, 1])
    assert not numpy.isnan(filtered).any()
    assert filtered[sampler.pick(filtered)] > -numpy.inf or numpy.isneginf(filtered).all()


def test_draws_follow_the_distribution_and_the_seed():
    logits = numpy.log(numpy.array([0.5, 0.3, 0.2, 1e-30], dtype=numpy.float32))
    logits[3] = -numpy.inf
    sampler = make_sampler(GenerationConfig(temperature=1.0, seed=3))
    drawn = [sampler.pick(logits) for _ in range(4000)]
    shares = Counter(drawn)
    for unit, share in enumerate((0.5, 0.3, 0.2, 0.0)):
        assert shares[unit] / 4000 == pytest.approx(share, abs=0.03)
    again = make_sampler(GenerationConfig(temperature=1.0, seed=3))
    assert [again.pick(logits) for _ in range(4000)] == drawn
    other = make_sampler(GenerationConfig(temperature=1.0, seed=4))
    assert [other.pick(logits) for _ in range(4000)] != drawn


def test_greedy_takes_the_first_of_the_best():
    assert (
        make_sampler(GenerationConfig()).pick(numpy.array([1.0, 3.0, 3.0], dtype=numpy.float32))
        == 1
    )
