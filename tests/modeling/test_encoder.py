"""One causal pass gives every prefix, and padding, grouping and sharing change nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2Model

from conftest import make_gpt2, make_llama, make_tokenizer, stir
from univerb.config import EncoderConfig
from univerb.errors import PhraseError
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import Embeddings, PhraseEncoder
from univerb.modeling.encoder_plan import plan
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer

keys = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple), max_size=60)


def phrase(*ids: int) -> Phrase:
    return Phrase(ids, "x" * len(ids))


@given(keys)
def test_every_key_is_a_prefix_of_its_window(given_keys):
    layout = plan(given_keys)
    for key, row, column in zip(given_keys, layout.row, layout.column, strict=True):
        assert layout.windows[row][: column + 1] == key


@given(keys)
def test_no_window_could_be_spared(given_keys):
    windows = plan(given_keys).windows
    distinct = set(given_keys)
    longest = {k for k in distinct if not any(o != k and o[: len(k)] == k for o in distinct)}
    assert sorted(windows) == sorted(longest)


def test_prefix_encoded_equals_separately_encoded(tiny_any_head):
    lm = tiny_any_head if tiny_any_head.encoder.config.heads == "tied" else stir(tiny_any_head)
    window = (5, 9, 17, 33, 2, 250, 7, 11)
    prefixes = [phrase(*window[:n]) for n in range(1, 9)]
    together = lm.encoder.encode(prefixes, lm.embeddings)
    for index, one in enumerate(prefixes):
        alone = lm.encoder.encode([one], lm.embeddings)
        assert torch.allclose(together.inputs[index], alone.inputs[0], atol=1e-5)
        assert torch.allclose(together.outputs[index], alone.outputs[0], atol=1e-5)


def test_the_order_of_phrases_does_not_matter(tiny):
    lm = stir(tiny)
    some = [phrase(5, 9), phrase(5, 9, 17), phrase(1, 2, 3, 4), phrase(8, 9, 7), phrase(5, 9)]
    forward, backward = (
        lm.encoder.encode(some, lm.embeddings),
        lm.encoder.encode(some[::-1], lm.embeddings),
    )
    assert torch.allclose(forward.inputs, backward.inputs.flip(0), atol=1e-6)
    assert torch.allclose(forward.outputs, backward.outputs.flip(0), atol=1e-6)
    assert torch.equal(forward.inputs[0], forward.inputs[4])


def test_padding_on_the_right_does_not_change_real_positions(tiny):
    body = tiny.encoder.body
    ids = torch.tensor([[5, 9, 17, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    embedded = tiny.embeddings.input(ids)
    with torch.no_grad():
        padded = body(inputs_embeds=embedded, attention_mask=mask).last_hidden_state[:, :3]
        bare = body(inputs_embeds=embedded[:, :3]).last_hidden_state
    assert torch.allclose(padded, bare, atol=1e-5)


def test_padding_on_the_left_with_position_ids_does_not_change_real_positions(tiny):
    body = tiny.encoder.body
    ids = torch.tensor([[0, 0, 5, 9, 17]])
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        padded = body(
            inputs_embeds=tiny.embeddings.input(ids), attention_mask=mask, position_ids=positions
        ).last_hidden_state[:, 2:]
        bare = body(inputs_embeds=tiny.embeddings.input(ids[:, 2:])).last_hidden_state
    assert torch.allclose(padded, bare, atol=1e-5)


def test_a_fresh_split_head_is_the_first_and_last_tokens_own_rows(tiny):
    vectors = tiny.encoder.encode([phrase(5, 9, 17)], tiny.embeddings)
    assert torch.equal(vectors.inputs[0], tiny.embeddings.input(torch.tensor(17)))
    assert torch.equal(vectors.outputs[0], tiny.embeddings.output_weight[5])
    assert tiny.encoder.heads.bias.item() == -3.0


def test_a_fresh_tied_head_gives_one_vector_as_long_as_the_lms_rows(hf_tokenizer):
    lm = DynamicLM.wrap(make_gpt2(), hf_tokenizer, EncoderConfig(heads="tied"))
    vectors = lm.encoder.encode([phrase(n, n + 1) for n in range(1, 200)], lm.embeddings)
    assert vectors.inputs is vectors.outputs
    rows = lm.embeddings.output_weight.norm(dim=-1).mean()
    assert 0.5 < float(vectors.inputs.norm(dim=-1).mean() / rows) < 2.0


@pytest.mark.parametrize("projector", ["linear", "act_linear", "mlp2"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_projector_of_the_tied_head_encodes(hf_tokenizer, projector, activation):
    config = EncoderConfig(heads="tied", projector=projector, activation=activation)
    lm = DynamicLM.wrap(make_gpt2(), hf_tokenizer, config)
    vectors = lm.encoder.encode([phrase(5, 9), phrase(6, 9)], lm.embeddings)
    assert vectors.outputs.isfinite().all()
    assert not torch.equal(vectors.outputs[0], vectors.outputs[1])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_body_is_the_backbones_first_layers(layers):
    model = make_llama()
    encoder = PhraseEncoder.from_backbone(model, EncoderConfig(layers=layers))
    own, theirs = encoder.body.state_dict(), model.base_model.state_dict()
    assert {k for k in own if k.startswith("layers.")}
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert not any("embed" in name for name in own), "the token embeddings are the LM's own"
    assert f"layers.{layers - 1}.mlp.up_proj.weight" in own
    assert f"layers.{layers}.mlp.up_proj.weight" not in own


def test_the_encoder_does_not_share_memory_with_the_backbone():
    model = make_llama()
    before = model.base_model.layers[0].mlp.up_proj.weight.clone()
    encoder = PhraseEncoder.from_backbone(model)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1.0)
    assert torch.equal(model.base_model.layers[0].mlp.up_proj.weight, before)


@pytest.mark.parametrize("heads", ["split", "tied"])
def test_an_encoder_with_another_tokenizer_and_width_reads_the_text(hf_tokenizer, heads):
    torch.manual_seed(3)
    other = make_tokenizer()
    body = GPT2Model(GPT2Config(vocab_size=320, n_embd=24, n_layer=2, n_head=2)).eval()
    model = make_llama()
    embeddings = Embeddings(model.get_input_embeddings(), model.get_output_embeddings())
    encoder = PhraseEncoder.from_model(
        body, Tokenizer(other.backend_tokenizer), embeddings, EncoderConfig(heads=heads)
    )
    lm = DynamicLM.wrap(model, hf_tokenizer, encoder)
    if heads == "split":
        stir(lm)
    vocabulary = lm.vocabulary(["quiet enjoyment of the premises", "quiet enjoyment"])
    view = lm.tensors(vocabulary)
    assert view.inputs.shape == (2, 32)
    assert not torch.allclose(view.outputs[0], view.outputs[1])
    alone = lm.encoder.encode([next(iter(vocabulary))], lm.embeddings)
    assert torch.allclose(alone.outputs[0], view.outputs[0], atol=1e-5)


def test_a_phrase_longer_than_the_encoder_reads_is_refused(tiny):
    with pytest.raises(PhraseError, match="at most 512"):
        tiny.encoder.encode([Phrase(tuple([5] * 513), "x" * 513)], tiny.embeddings)


@pytest.mark.parametrize("tokens", [1, 7, 1 << 20])
def test_the_size_of_a_pass_does_not_change_vectors(tiny, monkeypatch, tokens):
    lm = stir(tiny)
    some = [phrase(*range(n, n + length)) for n in range(30, 1, -3) for length in (3, 1, 5, 2)]
    usual = lm.encoder.encode(some, lm.embeddings)
    monkeypatch.setattr("univerb.modeling.encoder_plan._PASS_TOKENS", tokens)
    other = lm.encoder.encode(some, lm.embeddings)
    assert torch.allclose(usual.inputs, other.inputs, atol=1e-5)
    assert torch.allclose(usual.outputs, other.outputs, atol=1e-5)


def test_states_carry_gradients_and_no_phrases_give_no_rows(tiny):
    states = tiny.encoder.states([phrase(5, 9), phrase(5, 9, 17)], tiny.embeddings)
    states.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in tiny.encoder.body.parameters())
    assert len(tiny.encoder.states([], tiny.embeddings)) == 0
