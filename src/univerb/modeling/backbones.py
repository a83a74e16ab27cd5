"""Loading the causal LM: safetensors only, no code from a checkpoint, no Hub unless allowed."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.locations import DEFAULT_MODEL, is_offline, locate
from univerb.modeling.default_model import ensure_default

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
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device is {device!r}; give cpu, cuda, cuda:1 or mps.") from error
    where = locate(name, offline)
    if name == DEFAULT_MODEL and not (isinstance(where, Path) and where.is_dir()):
        where = ensure_default()
    if isinstance(where, Path):
        refuse_unsafe(where)
    hub_allowed = not (is_offline() if offline is None else offline)
    local_only = isinstance(where, Path) or not hub_allowed
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(where), local_files_only=local_only)
        model = AutoModelForCausalLM.from_pretrained(
            str(where), local_files_only=local_only, use_safetensors=True, dtype=DTYPES[dtype]
        )
        model = model.to(place).eval()
    except OSError as error:
        raise ModelMissing(
            f"{name!r} could not be loaded: {_first_line(error)} Give a folder with config.json, "
            f"tokenizer.json and safetensors weights, or use {DEFAULT_MODEL!r} (univerb setup)."
        ) from error
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ModelError(
            f"{name!r} could not be loaded: {_first_line(error)} "
            "Give a causal LM that transformers knows."
        ) from error
    return model, tokenizer


def refuse_unsafe(folder: Path) -> None:
    """Refuse a model folder that asks for code or pickles to be run.

    Args:
        folder: The model's folder.

    Raises:
        ModelError: If its config names code of its own, or its only weights are pickles.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{str(folder)!r} has no readable config.json. Give the folder that "
            "save_pretrained wrote."
        ) from error
    if not isinstance(config, dict) or "auto_map" in config:
        raise ModelError(
            f"the config of {str(folder)!r} asks to run code of its own (auto_map), which univerb "
            "never does. Use a model that transformers knows."
        )
    if not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        raise ModelError(
            f"{str(folder)!r} has pickled weights (.bin), which univerb never opens. "
            "Convert them to safetensors with save_pretrained."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
