"""FLOPs and memory by the paper's formulas: its table, and docs/method.md's figures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics.cost import (
    GIB,
    GPT2,
    Shape,
    extra_compute_share,
    extra_memory_share,
    forward_flops,
    generation_flops,
    paper_memory,
    step_flops,
)

PAPER_MEMORY = {
    0: 1.2411,
    32: 1.2412,
    128: 1.2415,
    2048: 1.2529,
    8192: 1.2880,
    16384: 1.3349,
    65536: 1.6161,
}


def teras(prefix, steps, phrases=0, cached=False):
    return generation_flops(GPT2, prefix, steps, phrases, cached=cached) / 1e12


def test_gpt2_has_the_parameters_of_its_shape():
    d, rows = GPT2.width, GPT2.vocabulary + 1024
    assert GPT2.parameters == rows * d + GPT2.layers * (12 * d**2 + 13 * d) + 2 * d


def test_base_of_the_papers_memory_table():
    found = paper_memory(GPT2, GPT2, 0)
    assert found == pytest.approx(PAPER_MEMORY[0], abs=0.001)
    assert found == pytest.approx(1.2404, abs=5e-5)
    assert (GPT2.size - GPT2.buffers) / GIB == pytest.approx(0.4636, abs=5e-5)
    assert 2 * GPT2.buffers / GIB == pytest.approx(0.0234, abs=5e-5)
    projector, rows = (GPT2.width + 1) * GPT2.width * 4, 2 * GPT2.vocabulary * GPT2.width * 4
    assert projector / GIB == pytest.approx(0.0022, abs=5e-5)
    assert rows / GIB == pytest.approx(0.2876, abs=5e-5)
    assert found * GIB == pytest.approx(2 * GPT2.size + projector + rows)


@pytest.mark.parametrize("phrases", sorted(set(PAPER_MEMORY) - {128}))
def test_increments_of_the_papers_memory_table(phrases):
    found = paper_memory(GPT2, GPT2, phrases) - paper_memory(GPT2, GPT2, 0)
    assert found == pytest.approx(PAPER_MEMORY[phrases] - PAPER_MEMORY[0], abs=0.0002)


def test_one_row_of_the_papers_memory_table_has_half_the_increment():
    """128 phrases cost 0.0004 there, one row of each; from 2,048 on it is two rows of each."""
    found = paper_memory(GPT2, GPT2, 128) - paper_memory(GPT2, GPT2, 0)
    assert found == pytest.approx(0.00073, abs=5e-6)
    assert found / 2 == pytest.approx(PAPER_MEMORY[128] - PAPER_MEMORY[0], abs=5e-5)


def test_memory_of_an_encoder_of_another_width():
    small = Shape(vocabulary=10, width=4, layers=2, parameters=100)
    found = paper_memory(replace(small, width=6, parameters=50), small, phrases=3)
    projector, rows = (4 * 6 + 6) * 4, 2 * (10 + 3) * 6 * 4
    assert found * GIB == pytest.approx(200 + 400 + projector + rows)


def test_extra_memory_counts_the_encoder_and_one_row():
    lm, encoder = Shape(10, 5, 1, parameters=100), Shape(10, 5, 1, parameters=20)
    assert extra_memory_share(lm, encoder, 0) == pytest.approx(80 / 480)
    assert extra_memory_share(lm, encoder, 4) == pytest.approx(160 / 560)


def test_a_pass_by_hand():
    tiny = Shape(vocabulary=7, width=3, layers=2, parameters=0)
    assert forward_flops(tiny, 5, phrases=4) == 2 * 5 * 11 * 3 + 2 * (24 * 5 * 9 + 4 * 25 * 3)
    assert step_flops(tiny, 5, phrases=4) == 2 * 11 * 3 + 2 * (24 * 9 + 4 * 5 * 3)


def test_flops_of_a_generation():
    """Prefix 32, 128 steps: 3.07 T without a cache, 0.040 T with it; 96 steps, 8,192 phrases."""
    assert teras(32, 128) == pytest.approx(3.07, abs=0.005)
    assert teras(32, 128, cached=True) == pytest.approx(0.040, abs=0.0005)
    assert teras(32, 96, phrases=8192) == pytest.approx(2.01, abs=0.005)


def test_the_papers_base_row_counts_the_head_twice():
    """With the new position in each pass (prefix 33): 4.06 T against 4.07 in print."""
    assert teras(33, 128, phrases=GPT2.vocabulary) == pytest.approx(4.06, abs=0.005)
    assert teras(33, 96, phrases=2 * 8192 + GPT2.vocabulary) == pytest.approx(2.73, abs=0.005)


@given(st.integers(1, 300), st.integers(0, 100_000))
def test_shares_agree_with_the_papers_percentage(positions, phrases):
    v, d, layers = GPT2.vocabulary, GPT2.width, GPT2.layers
    expected = phrases / (v + phrases + (12 * d + 2 * positions) * layers)
    found = extra_compute_share(GPT2, positions, phrases)
    assert found == pytest.approx(expected)
    with_phrases = forward_flops(GPT2, positions, phrases)
    assert with_phrases - forward_flops(GPT2, positions) == 2 * phrases * d * positions


@given(st.integers(1, 50), st.integers(0, 20))
def test_a_cache_never_costs_arithmetic(prefix, steps):
    cached, whole = (teras(prefix, steps, cached=cached) for cached in (True, False))
    assert cached <= whole
    assert (cached == whole) == (steps <= 1)
