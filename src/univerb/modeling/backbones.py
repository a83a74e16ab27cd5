"""Loading the causal LM: safetensors only, no code from a checkpoint, no Hub unless allowed."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.locations import DEFAULT_MODEL, is_converted, is_offline, locate
from univerb.modeling.default_model import ensure_default

_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_backbone(
    name: str = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a causal LM and its tokenizer.

    Args:
        name: A folder, the default model's name, or a Hub id.
        device: Where to put it, as torch names devices.
        dtype: float32, bfloat16 or float16.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The model in evaluation mode, and its tokenizer.

    Raises:
        ModelMissing: If it is not on this machine and may not or cannot be downloaded.
        ModelError: If it is there but cannot be loaded safely.
        OptionError: If device or dtype is unknown.
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}. Allowed: {', '.join(DTYPES)}.")
    place = _device(device)
    where = locate(name, offline)
    if name == DEFAULT_MODEL and not is_converted():
        where = ensure_default()
    if isinstance(where, Path):
        refuse_unsafe(where)
    hub_allowed = not (is_offline() if offline is None else offline)
    local_only = isinstance(where, Path) or not hub_allowed
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(where), local_files_only=local_only, trust_remote_code=False
        )
        model, missing = _load_model(str(where), local_only, DTYPES[dtype])
    except OSError as error:
        raise ModelMissing(
            f"{name!r} could not be loaded: {_first_line(error)} {_advice(name)}"
        ) from error
    except Exception as error:  # damaged files can make transformers raise anything
        raise ModelError(
            f"{name!r} could not be loaded: {_first_line(error)} {_advice(name)}"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(f"{name!r} has no tokenizer.json with a vocabulary. Get a complete copy.")
    if missing:
        raise ModelError(
            f"the weights of {name!r} lack {missing[0]} and {len(missing) - 1} more, which its "
            "config asks for. Get a complete copy."
        )
    return model.to(place).eval(), tokenizer


def _load_model(
    where: str, local_only: bool, dtype: torch.dtype
) -> tuple[PreTrainedModel, list[str]]:
    """Load the weights; returns the model and the names of those that were not there."""
    config = AutoConfig.from_pretrained(where, local_files_only=local_only, trust_remote_code=False)
    known = AutoModelForCausalLM._model_mapping[type(config)]
    model, report = AutoModelForCausalLM.from_pretrained(
        where,
        config=config,
        local_files_only=local_only,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=dtype,
        # Chosen here, or a config could name a kernel on the Hub.
        attn_implementation="sdpa" if known._supports_sdpa else "eager",
        output_loading_info=True,
    )
    return model, sorted(report["missing_keys"])


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # each backend has its own way of not being there
        raise OptionError(
            f"device is {name!r}, which this machine does not have: {_first_line(error)} "
            "Give cpu, or cuda, cuda:1 or mps where there is one."
        ) from error
    if device.type == "meta":
        raise OptionError("device is 'meta', which computes nothing. Give cpu, cuda or mps.")
    return device


def refuse_unsafe(folder: Path) -> None:
    """Refuse a model folder that asks for code or pickles to be run.

    Args:
        folder: The model's folder.

    Raises:
        ModelError: If its config names code of its own, or its only weights are pickles.
    """
    for name in ("config.json", "tokenizer_config.json"):
        if name != "config.json" and not (folder / name).exists():
            continue
        if "auto_map" in _read_object(folder / name):
            raise ModelError(
                f"{name} of {str(folder)!r} asks to run code of its own (auto_map), which univerb "
                "never does. Use a model that transformers knows."
            )
    if not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        raise ModelError(
            f"{str(folder)!r} has pickled weights (.bin), which univerb never opens. "
            "Convert them to safetensors with save_pretrained."
        )


def _advice(name: str) -> str:
    if name == DEFAULT_MODEL:
        return "Get it again with: univerb setup --force"
    return (
        "Give a causal LM that transformers knows: a folder with config.json, tokenizer.json and "
        f"safetensors weights, or a Hub id; or use {DEFAULT_MODEL!r} (univerb setup)."
    )


def _read_object(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ModelError(
            f"{str(path.parent)!r} has no readable {path.name}. Give the folder that "
            "save_pretrained wrote."
        )
    return value


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line[:200].rstrip(".") + "."


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
    return torch.allclose(apart, whole, atol=1e-4, rtol=1e-3)
