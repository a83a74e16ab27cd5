"""L_p, L_t and L_kl against a direct implementation: full logits, one position at a time."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from conftest import MAKERS
from univerb.training.config import LossConfig
from univerb.training.losses import Expanded, kl_loss, phrase_loss, token_loss

WORKED = [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7), (7, 9)]
"""Tokens and phrases of a worked example."""
V, D, P = 320, 32, 7


class Case:
    """Passages cut into units, and a pool whose vectors are leaves."""

    def __init__(self, tilings, seed=0):
        torch.manual_seed(seed)
        self.units, self.tokens, self.sigmas = [], [], []
        for tiling in tilings:
            ids = torch.randint(V, (tiling[-1][1],))
            phrase = torch.randint(P, (len(tiling),))
            units = [
                int(ids[s]) if e - s == 1 else V + int(k)
                for (s, e), k in zip(tiling, phrase, strict=True)
            ]
            self.tokens.append(ids)
            self.units.append(torch.tensor(units))
            self.sigmas.append(torch.tensor([e - 1 for _, e in tiling]))
        self.inputs = torch.randn(P, D, requires_grad=True)
        self.outputs = torch.randn(P, D, requires_grad=True)
        self.bias = torch.randn(P, requires_grad=True)

    def padded(self, rows):
        sizes = torch.tensor([len(row) for row in rows])
        ids = pad_sequence(rows, batch_first=True)
        return ids, torch.arange(ids.shape[1]) < sizes[:, None]

    def rows(self, model, units):
        embed = model.get_input_embeddings()
        rows = [self.inputs[u - V] if u >= V else embed(u) for u in units]
        return torch.stack(rows)

    def leaves(self, model):
        return [*model.parameters(), self.inputs, self.outputs, self.bias]


def chunked(case, model, chunk, alignment="context", support="V", detach="none", masked=()):
    """The code under test, padded as a batch."""
    units, unit_mask = case.padded(case.units)
    tokens, token_mask = case.padded(case.tokens)
    sigma, _ = case.padded(case.sigmas)
    rows = pad_sequence([case.rows(model, u) for u in case.units], batch_first=True)
    mixed = model.base_model(inputs_embeds=rows).last_hidden_state
    plain = model.base_model(input_ids=tokens).last_hidden_state
    output = model.get_output_embeddings()
    expanded = Expanded(output, case.outputs, case.bias)
    chosen = LossConfig(chunk=chunk, alignment=alignment, support=support, detach=detach)
    return (
        phrase_loss(mixed, units, unit_mask, expanded, chunk, masked),
        token_loss(plain, tokens, token_mask, output, chunk),
        kl_loss(mixed, plain, sigma, unit_mask, expanded, expanded, chosen),
    )


def direct(case, model, alignment, support, detach, masked=()):
    """One passage and one position at a time, probabilities written out."""
    phrase = token = kl = torch.zeros(())
    for b, (units, tokens, sigma) in enumerate(
        zip(case.units, case.tokens, case.sigmas, strict=True)
    ):
        mixed = model(inputs_embeds=case.rows(model, units)[None], output_hidden_states=True)
        plain = model(input_ids=tokens[None], output_hidden_states=True)

        def over(result, i, both):
            phrases = case.outputs @ result.hidden_states[-1][0, i] + case.bias
            return torch.cat([result.logits[0, i], phrases]) if both else result.logits[0, i]

        for i in range(len(units) - 1):
            scores = over(mixed, i, True).exp()
            forbidden = torch.tensor([(b, i, k - V) in masked for k in range(V + P)])
            phrase = phrase - (scores[units[i + 1]] / scores[~forbidden].sum()).log()
        for j in range(len(tokens) - 1):
            token = token - plain.logits[0, j].softmax(-1)[tokens[j + 1]].log()
        last = sigma.tolist()
        pairs = (
            list(enumerate(last))
            if alignment == "context"
            else [(i - 1, last[i] - 1) for i in range(1, len(last))]
        )
        for i, j in pairs:
            p = over(mixed, i, support == "V+P").softmax(-1)
            q = over(plain, j, support == "V+P").softmax(-1)
            q = q.detach() if detach == "static" else q
            kl = kl + (p * (p.log() - q.log())).sum()
    return phrase, token, kl


def model_of(name):
    model = MAKERS[name]()
    # The random models are sharp; softer ones keep single precision's rounding small.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return model


TILINGS = [WORKED, [(0, 3), (3, 4), (4, 5)], [(0, 1)], [(0, 1), (1, 3), (3, 7), (7, 8)]]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("alignment", ["context", "target"])
@pytest.mark.parametrize("support", ["V", "V+P"])
@pytest.mark.parametrize("detach", ["none", "static"])
def test_values_and_gradients_equal_the_direct_ones(name, alignment, support, detach):
    model, case = model_of(name), Case(TILINGS)
    found = chunked(case, model, 3, alignment, support, detach)
    expected = direct(case, model, alignment, support, detach)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.total, theirs, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(found, expected, strict=True):
        mine = grads(ours.total, case.leaves(model))
        for a, b in zip(mine, grads(theirs, case.leaves(model)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def grads(loss, leaves):
    given = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(given, leaves, strict=True)]


@settings(max_examples=25)
@given(chunk=st.integers(1, 20), seed=st.integers(0, 5))
def test_the_chunk_changes_nothing(chunk, seed):
    model, case = model_of("llama"), Case(TILINGS, seed)
    whole, parts = chunked(case, model, 1000), chunked(case, model, chunk)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a.total, b.total, rtol=1e-5, atol=1e-4)
        assert a.count == b.count
    for a, b in zip(
        grads(sum(one.total for one in whole), case.leaves(model)),
        grads(sum(one.total for one in parts), case.leaves(model)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_the_worked_example():
    """Which state predicts what, and which two states are compared."""
    sigma = [e - 1 for _, e in WORKED]
    assert sigma == [0, 1, 4, 5, 6, 8]
    case = Case([WORKED])
    units, mask = case.padded(case.units)
    mixed = torch.zeros(1, 6, V)
    output = nn.Linear(V, V, bias=False)
    nn.init.eye_(output.weight)
    output.requires_grad_(False)
    outputs, bias = torch.zeros(P, V), torch.zeros(P)
    expanded = Expanded(output, outputs, bias)
    uniform = torch.tensor(float(V + P)).log()
    # Only h'_1 points at the phrase that is unit 2.
    outputs[units[0, 2] - V, 0] = 1.0
    mixed[0, 1, 0] = 50.0
    found = phrase_loss(mixed, units, mask, expanded, 4)
    # At h'_1 token 0 is as likely as the phrase; elsewhere all units are alike.
    expected = 4 * uniform + torch.tensor(2.0).log()
    torch.testing.assert_close(found.total, expected)
    assert (found.count, found.phrases) == (5, 2)
    mixed.zero_()
    # After which token the plain pass differs, and whether that is compared: h_4 with h'_2 by
    # both; h_1 with h'_1 in context; h_3, in the middle of the phrase, with h'_1 by target.
    cases = {("context", 4): 1, ("target", 4): 1, ("context", 1): 1, ("target", 1): 0}
    for (alignment, token), pairs in (cases | {("context", 3): 0, ("target", 3): 1}).items():
        plain = torch.zeros(1, 9, V)
        plain[0, token, 7] = 3.0
        chosen = LossConfig(chunk=4, alignment=alignment)
        value = kl_loss(mixed, plain, torch.tensor([sigma]), mask, expanded, expanded, chosen)
        uniform = torch.full((V,), 1 / V)
        one = (uniform * (uniform.log() - plain[0, token].log_softmax(-1))).sum()
        torch.testing.assert_close(value.total, pairs * one, atol=1e-5, rtol=1e-4)
        assert value.count == (6 if alignment == "context" else 5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_without_phrases_kl_is_zero_and_both_losses_are_one(name):
    model = model_of(name)
    case = Case([[(i, i + 1) for i in range(9)], [(i, i + 1) for i in range(4)]])
    empty = torch.empty(0, D), torch.empty(0)
    case.outputs, case.bias = empty
    for support in ("V", "V+P"):
        phrase, token, kl = chunked(case, model, 4, support=support)
        assert float(kl.total.detach()) == pytest.approx(0.0, abs=1e-5)
        assert float(phrase.total.detach()) == pytest.approx(float(token.total.detach()), rel=1e-5)
        assert phrase.count == token.count == 11
        assert phrase.phrases == phrase.right == phrase.fired == 0


def test_gradients_reach_the_pool_from_both_sides():
    """Through L_p as input and as output, and through L_kl as input."""
    model, case = model_of("gpt2"), Case([WORKED])
    phrase, token, kl = chunked(case, model, 4)
    inputs, outputs, bias = grads(phrase.total, [case.inputs, case.outputs, case.bias])
    assert inputs.any() and outputs.any() and bias.any()
    # After the last unit nothing is predicted.
    read = {int(u) - V for u in case.units[0][:-1] if u >= V}
    assert {k for k in range(P) if inputs[k].any()} == read
    # Every phrase of the pool is a negative somewhere.
    assert outputs.any(dim=1).all()
    inputs, outputs = grads(kl.total, [case.inputs, case.outputs])
    assert inputs.any() and not outputs.any()
    assert not any(g.any() for g in grads(token.total, [case.inputs, case.outputs]))


def test_masked_phrases_are_not_in_the_pool_where_they_are_masked():
    model, case = model_of("llama"), Case(TILINGS)
    right = {
        (b, i, int(u) - V)
        for b, units in enumerate(case.units)
        for i, (_, u) in enumerate(pairwise(units))
        if u >= V
    }
    every = {(0, 0, 1), (0, 3, 2), (0, 3, 4), (1, 1, 0), (3, 2, 6)}
    masked = sorted(every - right)
    found, *_ = chunked(case, model, 2, masked=masked)
    expected, *_ = direct(case, model, "context", "V", "none", masked)
    torch.testing.assert_close(found.total, expected, rtol=1e-4, atol=1e-4)
    without, *_ = chunked(case, model, 2)
    assert float(found.total) < float(without.total)


def test_wins_are_counted():
    case = Case([WORKED])
    units, mask = case.padded(case.units)
    # The phrases that are units, and one that fires where a token should.
    output = nn.Linear(P, V, bias=False)
    nn.init.zeros_(output.weight)
    hidden = torch.zeros(1, 6, P)
    hidden[0, 1, units[0, 2] - V] = 9.0
    hidden[0, 3, 3] = 9.0
    found = phrase_loss(
        hidden, units, mask, Expanded(output, torch.eye(P), torch.zeros(P) - 1.0), 4
    )
    assert (found.right, found.phrases, found.fired, found.count) == (1, 2, 1, 5)


def test_an_output_layer_may_have_a_bias():
    torch.manual_seed(0)
    output = nn.Linear(D, V)
    hidden, ids = torch.randn(1, 5, D), torch.randint(V, (1, 5))
    mask = torch.ones(1, 5, dtype=torch.bool)
    found = token_loss(hidden, ids, mask, output, 2)
    expected = nn.functional.cross_entropy(output(hidden)[0, :-1], ids[0, 1:], reduction="sum")
    torch.testing.assert_close(found.total, expected)


@pytest.mark.parametrize("chunk", [2, 5])
def test_only_a_chunk_of_logits_is_alive(chunk):
    """Everything as wide as V that autograd would keep, forward and backward."""
    model, case = model_of("llama"), Case([[(i, i + 1) for i in range(40)]])
    largest, kept = 0, []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.dim() == 2 and result.shape[1] >= V:
                largest = max(largest, result.shape[0])
            return result

    def keep(tensor):
        if tensor.dim() == 2 and tensor.shape[1] >= V:
            kept.append(tensor.shape)
        return tensor

    with Watch(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = chunked(case, model, chunk)
        forward = list(kept)
        sum(one.total for one in losses).backward()
    # D x V are transposed weights.
    assert [shape for shape in forward if shape[0] != D] == []
    assert largest in (chunk, D)
    whole = chunked(case, model, 1000)
    assert whole[0].count == 39


def test_single_precision_under_autocast():
    torch.manual_seed(0)
    output = nn.Linear(D, V, bias=False)
    hidden, ids = torch.randn(1, 9, D), torch.randint(V, (1, 9))
    mask = torch.ones(1, 9, dtype=torch.bool)
    pool = Expanded(output, torch.randn(P, D), torch.zeros(P))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pool.logits(hidden[0]).dtype == torch.float32
        found = phrase_loss(hidden, ids, mask, pool, 4)
    exact = phrase_loss(hidden, ids, mask, pool, 4)
    assert found.total.dtype == torch.float32
    assert float(found.total) == pytest.approx(float(exact.total), rel=0.02)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_distributions_that_lie_far_apart_have_a_finite_kl(chunk):
    output = torch.nn.Linear(4, 6, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 1e4)
    expanded = Expanded(output, torch.randn(2, 4) * 1e4, torch.zeros(2))
    mixed = torch.randn(1, 4, 4, requires_grad=True)
    sigma, mask = torch.tensor([[0, 1, 2, 5]]), torch.ones(1, 4, dtype=torch.bool)
    chosen = LossConfig(chunk=chunk, support="V+P")
    found = kl_loss(mixed, torch.randn(1, 6, 4), sigma, mask, expanded, expanded, chosen)
    found.total.backward()
    assert found.total.isfinite() and mixed.grad is not None and mixed.grad.isfinite().all()
