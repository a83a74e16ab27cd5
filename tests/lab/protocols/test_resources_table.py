"""The formulas of FLOPs and memory against torch's counter and against bytes counted by hand."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from conftest import make_conditional, make_gpt2, make_llama, make_tokenizer
from univerb.lab.metrics.cost import forward_flops
from univerb.lab.protocols.resources_table import shape_of
from univerb.modeling.dynamic import DynamicLM

V, D, LAYERS = 320, 32, 3


@torch.inference_mode()
def counted_flops(lm, positions, vocabulary=None):
    """Count one pass from the tokens to the logits over V + P, the encoding of phrases apart."""
    if vocabulary is not None:
        lm.tensors(vocabulary)
    ids = torch.zeros(1, positions, dtype=torch.long)
    # Attention as plain products: the counter does not know the fused kernel of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        lm.forward(ids, vocabulary)
    return counter.get_total_flops()


@pytest.fixture
def gpt2():
    return DynamicLM.wrap(make_gpt2(), make_tokenizer())


def test_the_shape_of_an_lm(gpt2):
    found = shape_of(gpt2)
    assert (found.vocabulary, found.width, found.layers) == (V, D, LAYERS)
    # Tied: the output matrix is not counted again.
    assert found.parameters == (V + 512) * D + LAYERS * (12 * D**2 + 13 * D) + 2 * D
    held = {t.data_ptr(): t.nbytes for t in (*gpt2.model.parameters(), *gpt2.model.buffers())}
    assert found.size == sum(held.values())


@pytest.mark.parametrize("positions", [1, 100])
def test_gpt2_counts_as_the_formula(gpt2, lease, positions):
    """Nothing is left over: the counter, too, leaves out biases, norms and the softmax."""
    shape = shape_of(gpt2)
    assert counted_flops(gpt2, positions) == forward_flops(shape, positions)
    vocabulary = gpt2.vocabulary([lease])
    found = counted_flops(gpt2, positions, vocabulary)
    assert found == forward_flops(shape, positions, len(vocabulary))
    assert len(vocabulary) > 100


def test_the_conditional_form_costs_its_coordinates_where_there_are_phrases():
    lm, positions = make_conditional(), 20
    shape = shape_of(lm)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        lm.encoder.conditional.state(torch.ones(positions, D))
    assert counter.get_total_flops() == positions * shape.coordinates
    flat = replace(shape, coordinates=0)
    extra = forward_flops(shape, positions, 7) - forward_flops(flat, positions, 7)
    assert extra == positions * shape.coordinates
    assert forward_flops(shape, positions) == forward_flops(flat, positions)


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
