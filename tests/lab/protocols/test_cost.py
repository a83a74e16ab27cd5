"""Counted FLOPs against the formulas and against products counted by hand; bytes by hand."""

import pytest
import torch

from conftest import make_gpt2, make_llama, make_tokenizer
from univerb.errors import OptionError
from univerb.lab.metrics.cost import forward_flops
from univerb.lab.peak_memory import peak_megabytes
from univerb.lab.protocols.cost import counted_flops, footprint, module_bytes, shape_of
from univerb.modeling.dynamic import DynamicLM

V, D, LAYERS = 320, 32, 3


@pytest.fixture
def gpt2():
    return DynamicLM.wrap(make_gpt2(), make_tokenizer())


def test_the_shape_of_an_lm(gpt2):
    found = shape_of(gpt2)
    assert (found.vocabulary, found.width, found.layers) == (V, D, LAYERS)
    # Tied: the output matrix is not counted again.
    assert found.parameters == (V + 512) * D + LAYERS * (12 * D**2 + 13 * D) + 2 * D
    assert found.size == module_bytes(gpt2.model)


@pytest.mark.parametrize("positions", [1, 20, 100])
def test_gpt2_counts_as_the_formula(gpt2, lease, positions):
    """Nothing is left over: the counter, too, leaves out biases, norms and the softmax."""
    shape = shape_of(gpt2)
    assert counted_flops(gpt2, positions) == forward_flops(shape, positions)
    vocabulary = gpt2.vocabulary([lease])
    found = counted_flops(gpt2, positions, vocabulary)
    assert found == forward_flops(shape, positions, len(vocabulary))
    assert len(vocabulary) > 100


def test_llama_counts_by_its_own_products():
    """Two key-value heads of four, and three matrices of 2 d in the feed-forward layer."""
    n, kv, inner = 20, D // 2, 2 * D
    lm = DynamicLM.wrap(make_llama(), make_tokenizer())
    layer = 2 * n * (2 * D * D + 2 * D * kv + 3 * D * inner) + 4 * n**2 * D
    expected = 2 * n * V * D + LAYERS * layer
    assert counted_flops(lm, n) == expected != forward_flops(shape_of(lm), n)


def test_phrases_cost_2pdn_whatever_the_backbone(tiny_any_head, lease):
    lm, n = tiny_any_head, 17
    vocabulary = lm.vocabulary([lease])
    extra = counted_flops(lm, n, vocabulary) - counted_flops(lm, n)
    assert extra == 2 * len(vocabulary) * D * n
    assert counted_flops(lm, n, lm.vocabulary()) == counted_flops(lm, n)


def test_positions_beyond_the_context_are_refused(gpt2):
    for positions in (0, 513):
        with pytest.raises(OptionError, match=f"positions is {positions}. Allowed: 1 to 512"):
            counted_flops(gpt2, positions)


def test_bytes_of_what_is_kept(tiny_any_head, lease):
    lm = tiny_any_head
    vocabulary = lm.vocabulary([lease])
    found = footprint(lm, vocabulary)
    assert found.language_model == 4 * shape_of(lm).parameters + shape_of(lm).buffers
    held = [*lm.encoder.parameters(), *lm.encoder.buffers()]
    assert found.encoder == sum(4 * own.numel() for own in held)
    sides = 1 if lm.is_tied else 2
    assert found.phrases == sides * len(vocabulary) * D * 4
    assert found.cuda_peak is None
    assert footprint(lm).phrases == 0


def test_half_precision_takes_half(lease):
    lm = DynamicLM.wrap(make_llama().to(torch.bfloat16), make_tokenizer())
    found = footprint(lm, lm.vocabulary([lease]))
    assert found.language_model < 0.51 * shape_of(lm).size
    assert found.phrases == 2 * len(lm.vocabulary([lease])) * D * 2


def test_the_peak_is_seen(gpt2):
    before = footprint(gpt2).peak
    assert before > 50e6
    held = torch.ones(2**28, dtype=torch.uint8)
    assert held.sum() == 2**28
    after = footprint(gpt2).peak
    del held
    assert after >= before
    # What is given back stays in the peak.
    assert peak_megabytes() * 1e6 == pytest.approx(after, rel=0.01)
