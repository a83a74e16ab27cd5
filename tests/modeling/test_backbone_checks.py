"""What phrases need of a backbone, checked before it is used: fast tokenizer, plain logits."""

import re

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2ForSequenceClassification,
    GraniteConfig,
    GraniteForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from conftest import make_gpt2
from univerb.decoding.loop import generate
from univerb.errors import ModelError
from univerb.modeling.dynamic import DynamicLM

NEXT_STEP = re.compile(r"Use |Load ")
SIZES = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64}


class LetterTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, without character offsets."""

    vocab_size = 26

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + number): number for number in range(26)}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token) - 97

    def _convert_id_to_token(self, index: int) -> str:
        return chr(97 + index)


@pytest.mark.parametrize("tokenizer", [LetterTokenizer(), None, object()])
def test_a_tokenizer_that_is_not_fast_is_refused(tokenizer):
    with pytest.raises(ModelError, match="not a fast one") as caught:
        DynamicLM.wrap(make_gpt2(), tokenizer)
    assert NEXT_STEP.search(str(caught.value))


def without_output_layer() -> torch.nn.Module:
    return make_gpt2().transformer


def classifier() -> torch.nn.Module:
    config = make_gpt2().config
    return GPT2ForSequenceClassification(config).eval()


def encoder_and_decoder() -> torch.nn.Module:
    config = T5Config(vocab_size=320, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config).eval()


def state_space() -> torch.nn.Module:
    config = MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, state_size=4)
    return MambaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "make", [without_output_layer, classifier, encoder_and_decoder, state_space]
)
def test_a_model_that_is_no_causal_transformer_lm_is_refused(make, hf_tokenizer):
    with pytest.raises(ModelError, match="AutoModelForCausalLM"):
        DynamicLM.wrap(make(), hf_tokenizer)


def gemma2(cap: float | None, spread: float) -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    config = Gemma2Config(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        final_logit_softcapping=cap,
        initializer_range=spread,
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize(("cap", "spread"), [(30.0, 1.0), (5.0, 0.3), (0.5, 0.02)])
def test_a_backbone_that_caps_its_logits_is_refused(cap, spread, hf_tokenizer, tmp_path):
    with pytest.raises(ModelError, match="soft-capping"):
        DynamicLM.wrap(gemma2(cap, spread), hf_tokenizer)


def test_a_backbone_that_could_cap_its_logits_but_does_not_is_accepted(hf_tokenizer):
    lm = DynamicLM.wrap(gemma2(None, 0.3), hf_tokenizer)
    assert generate(lm, "The tenant", lm.vocabulary(["the premises"]), max_tokens=4).text


def test_a_capping_backbone_is_refused_from_a_folder_too(hf_tokenizer, tmp_path):
    gemma2(5.0, 0.3).save_pretrained(tmp_path / "gemma")
    hf_tokenizer.save_pretrained(tmp_path / "gemma")
    with pytest.raises(ModelError, match="soft-capping"):
        DynamicLM.from_pretrained(str(tmp_path / "gemma"))


def test_a_backbone_that_scales_its_logits_is_refused(hf_tokenizer):
    torch.manual_seed(0)
    config = GraniteConfig(
        **SIZES,
        num_hidden_layers=1,
        num_attention_heads=2,
        logits_scaling=3.0,
    )
    with pytest.raises(ModelError, match="scaling"):
        DynamicLM.wrap(GraniteForCausalLM(config).eval(), hf_tokenizer)


def test_a_model_in_training_mode_is_accepted_or_told_to_be_evaluated(hf_tokenizer):
    model = make_gpt2().train()
    try:
        DynamicLM.wrap(model, hf_tokenizer)
    except ModelError as error:
        assert "eval()" in str(error)
    assert model.training
