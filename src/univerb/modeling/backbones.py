"""The causal LM: loaded by name, and checked for what phrases need of it."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, OptionError, first_line
from univerb.locations import DEFAULT_MODEL, is_converted, locate
from univerb.modeling.default_model import ensure_default
from univerb.modeling.phrase_model import check_highest
from univerb.modeling.pretrained import dtype_named, load_pretrained

_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def load_backbone(
    name: str = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a causal LM, in evaluation mode, and its tokenizer; the options are `univerb.load`'s.

    ModelMissing if it is not on this machine and may not or cannot be downloaded, ModelError if it
    is there but cannot be loaded safely.
    """
    torch_dtype, torch_device = dtype_named(dtype), _device(device)
    where = locate(name, offline)
    if name == DEFAULT_MODEL and not is_converted():
        where = ensure_default()
    advice = (
        "Get it again with: univerb setup --force"
        if name == DEFAULT_MODEL
        else "Give a causal LM that transformers knows: a folder with config.json, tokenizer.json "
        f"and safetensors weights, or a Hub id; or use {DEFAULT_MODEL!r} (univerb setup)."
    )
    model, tokenizer = load_pretrained(
        where, lambda _: AutoModelForCausalLM, advice, dtype=torch_dtype, offline=offline
    )
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(f"{name!r} has no tokenizer.json with a vocabulary. Get a complete copy.")
    # The name to load it by again: a saved encoder finds its backbone with it.
    path = Path(name).expanduser()
    model.name_or_path = str(path.resolve()) if path.is_dir() else name
    return model.to(torch_device), tokenizer


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # each backend has its own way of not being there
        raise OptionError(
            f"device is {name!r}, which this machine does not have: {first_line(error)}. "
            "Give cpu, or cuda, cuda:1 or mps where there is one."
        ) from error
    if device.type == "meta":
        raise OptionError("device is 'meta', which computes nothing. Give cpu, cuda or mps.")
    return device


def check_usable(model: PreTrainedModel, tokenizer: HFTokenizer) -> None:
    """Refuse a model or a tokenizer that phrases cannot be put beside."""
    name = model.name_or_path or type(model).__name__
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ModelError(
            f"the tokenizer of {name!r} is not a fast one; univerb needs character offsets. "
            "Load it with AutoTokenizer and a tokenizer.json."
        )
    config = model.config.get_text_config()
    is_other = getattr(model, "_is_stateful", False) or config.is_encoder_decoder
    if model.get_output_embeddings() is None or is_other:
        raise ModelError(
            f"{name!r} is not a causal Transformer with an output layer and a KV cache. "
            "Use AutoModelForCausalLM with a decoder-only Transformer."
        )
    # Soft-capping or scaling after the output layer: by its settings, and by what it does.
    settings = [getattr(config, name, None) for name in _LOGIT_SETTINGS]
    if any(value not in (None, 0, 1) for value in settings) or not _ends_with_output_layer(model):
        raise ModelError(
            f"{name!r} changes its logits after the output layer (soft-capping or scaling), so "
            "phrase logits would be on another scale. Use a backbone without it."
        )


def _ends_with_output_layer(model: PreTrainedModel) -> bool:
    if model.training:
        return True  # dropout would make any two passes differ
    with torch.inference_mode():
        probe = torch.zeros(1, 2, dtype=torch.long, device=model.device)
        hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
        apart = model.get_output_embeddings()(hidden)
        whole = model(input_ids=probe, use_cache=False).logits
    check_highest(float(whole.max()), model.name_or_path or type(model).__name__)
    return torch.allclose(apart, whole, atol=1e-4, rtol=1e-3)
