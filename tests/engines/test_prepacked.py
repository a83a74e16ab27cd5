"""The model laid out for a few rows: the same function, the same weights, only where it may be."""

import numpy
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from conftest import MAKERS, make_tokenizer, stir
from univerb.config import Lora
from univerb.decoding.loop import generate
from univerb.engines.torch import prepacked, session
from univerb.engines.torch.prepacked import (
    Float16Linear,
    Float32Linear,
    can_prepack,
    prepacked_model,
    skip_padding,
)
from univerb.engines.torch.session import TorchSession
from univerb.modeling.adapter import attach
from univerb.modeling.dynamic import DynamicLM


@pytest.fixture(params=MAKERS)
def lm(request):
    return stir(DynamicLM.wrap(MAKERS[request.param](), make_tokenizer()))


def states(body, rows):
    return body(inputs_embeds=rows, use_cache=False).last_hidden_state


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_packed_model_computes_what_the_model_does(lm, count):
    torch.manual_seed(3)
    rows = torch.randn(1, count, lm.width)
    twin = prepacked_model(lm, "float32")
    own = states(lm.model.base_model, rows)
    torch.testing.assert_close(states(twin.body, rows), own, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        twin.output(own), lm.embeddings.output(own), atol=1e-5, rtol=1e-5
    )  # fmt: skip


@torch.inference_mode()
def test_a_row_is_the_same_whatever_rows_are_beside_it():
    layer = torch.nn.Linear(64, 96)
    fast, rows = Float32Linear(layer.weight, layer.bias), torch.randn(1, 8, 64)
    together = fast(rows)
    for size in (1, 2, 5):
        assert torch.equal(fast(rows[:, :size]), together[:, :size])


@torch.inference_mode()
@pytest.mark.parametrize("make", [Float32Linear, Float16Linear])
def test_padding_is_not_multiplied_and_rows_that_count_stay_the_same(make):
    layer = torch.nn.Linear(64, 96)
    fast, rows = make(layer.weight, layer.bias), torch.randn(3, 4, 64)
    whole = fast(rows)
    counted = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    rows[~counted] = torch.nan
    with skip_padding(counted):
        found, last = fast(rows), fast(rows[1:2, -1:])
    assert torch.equal(found[counted], whole[counted]) and not found[~counted].any()
    # Rows of another shape are not those of the batch.
    assert torch.equal(last, whole[1:2, -1:])
    assert torch.equal(fast(rows)[counted], whole[counted]) and fast(rows).isnan().any()


@torch.inference_mode()
def test_a_batch_multiplies_no_padding(lm, monkeypatch):
    seen, multiply = [], Float32Linear.multiply
    monkeypatch.setattr(
        Float32Linear, "multiply",
        lambda self, rows: (seen.append(rows.shape[:2].numel()), multiply(self, rows))[1],
    )  # fmt: skip
    session = TorchSession(lm, has_phrases=True)
    session.prefill([[5, 9, 17], [7, 8]])
    seen.clear()
    outputs = session.step([[1, 2, 3, 4], [6]])
    assert set(seen) == {5}
    for output, ids in zip(outputs, ([5, 9, 17, 1, 2, 3, 4], [7, 8, 6]), strict=True):
        expected = lm.model(torch.tensor([ids])).logits[0, -1].numpy()
        assert numpy.allclose(output.logits[-1], expected, atol=1e-4)


def test_the_model_itself_stays_as_it_is(lm):
    before = {name: (id(own), own.clone()) for name, own in lm.model.named_parameters()}
    prepacked_model(lm, "float32")
    for name, own in lm.model.named_parameters():
        assert id(own) == before[name][0] and torch.equal(own, before[name][1])
    assert not any(isinstance(module, Float32Linear) for module in lm.model.modules())


def test_it_is_laid_out_once_and_anew_when_weights_change(lm):
    first = prepacked_model(lm, "float32")
    assert prepacked_model(lm, "float32") is first
    with torch.no_grad():
        next(lm.model.base_model.parameters()).add_(1.0)
    assert prepacked_model(lm, "float32") is not first


def test_what_is_large_or_not_in_full_precision_is_left_alone(lm, monkeypatch):
    assert can_prepack(lm.model)
    monkeypatch.setattr(prepacked, "MAX_BYTES", 1000)
    assert not can_prepack(lm.model) and prepacked_model(lm, "float32") is None
    monkeypatch.undo()
    assert not can_prepack(lm.model.to(torch.bfloat16))


def test_without_phrases_it_is_not_used(lm, monkeypatch):
    monkeypatch.setattr(session, "prepacked_model", lambda *_: pytest.fail("prepacked"))
    TorchSession(lm)
    for vocabulary in (None, lm.vocabulary()):
        assert generate(lm, "The tenant shall", vocabulary, max_tokens=4, ignore_eos=True).text


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 2, 7])
def test_half_precision_weights_are_right_to_three_digits(lm, count):
    torch.manual_seed(3)
    twin = prepacked_model(lm, "float16")
    assert twin.dtype == "float16" and twin.min_rows == 1
    own = states(lm.model.base_model, torch.randn(1, count, lm.width))
    rows = lm.embeddings.output(own)
    assert float((twin.output(own) - rows).abs().max()) < 2e-3 * float(rows.abs().max())


def test_half_precision_is_for_those_who_ask_and_never_for_verify(lm, monkeypatch):
    asked = []
    monkeypatch.setattr(
        session,
        "prepacked_model",
        lambda lm, dtype: asked.append(dtype) or prepacked_model(lm, dtype),
    )
    vocabulary = lm.vocabulary(["quiet enjoyment of the premises"])

    def used(**options):
        asked.clear()
        generate(lm, "The tenant shall", vocabulary, max_tokens=4, ignore_eos=True, **options)
        return "float16" in asked

    assert not used() and used(dtype="float16") and not used(dtype="float16", mode="verify")
    lm.profile = lm.profile.model_copy(update={"dtype": "float16"})
    assert used() and not used(dtype="float32") and not used(mode="verify")


def text_of(lm, vocabulary, **options):
    return generate(lm, "the tenant", vocabulary, max_tokens=20, ignore_eos=True, **options).text


@torch.no_grad()
def test_weights_that_were_replaced_or_cast_are_laid_out_again(lm, lease):
    vocabulary = lm.vocabulary([lease])
    text_of(lm, vocabulary, mode="verify")
    before = prepacked_model(lm, "float32")
    layer = next(own for own in lm.model.base_model.modules()
                 if type(own) in (torch.nn.Linear, Conv1D))  # fmt: skip
    weight = torch.nn.Parameter(layer.weight + 0.5, requires_grad=layer.weight.requires_grad)
    while weight._version < layer.weight._version:
        weight.add_(0.0)
    layer.weight = weight
    assert prepacked_model(lm, "float32") is not before
    assert text_of(lm, vocabulary, mode="verify") == text_of(lm, None)
    lm.model.to(torch.bfloat16)
    assert prepacked_model(lm, "float32") is None
    text_of(lm, vocabulary, mode="unfold")


def test_a_model_with_layers_of_peft_is_left_as_it_is(lm, lease):
    vocabulary = lm.vocabulary([lease])
    attach(lm.model, Lora())
    lm.model.eval()
    assert not can_prepack(lm.model)
    assert text_of(lm, vocabulary, mode="verify") == text_of(lm, None)


def test_a_layer_that_somebody_listens_to_is_called(lm):
    layer = next(own for own in lm.model.base_model.modules()
                 if type(own) in (torch.nn.Linear, Conv1D))  # fmt: skip
    heard = []
    layer.register_forward_hook(lambda *_: heard.append(1))
    with torch.inference_mode():
        states(prepacked_model(lm, "float32").body, torch.randn(1, 3, lm.width))
    assert heard
