"""The LoRA adapter of the `lora` regime, through peft; on disk safetensors and JSON, no pickle.

adapter_model.safetensors   the low-rank matrices
adapter_config.json         what peft reads, too; written last, so a folder that has it is complete
"""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from univerb.config import Lora, first_problem
from univerb.errors import CheckpointError, MissingExtra, OptionError, first_line
from univerb.files import atomic_path, atomic_write
from univerb.model_folder import read_json_object
from univerb.modeling.card import check_regular, writing_to
from univerb.modeling.parameters import first_not_finite

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
# What peft writes for the reader; none of it changes the adapter.
_REMARKS = {"base_model_name_or_path", "revision", "inference_mode", "peft_version", "task_type"}


class _Settings(BaseModel):
    """The keys of adapter_config.json that make an adapter what it is."""

    model_config = ConfigDict(strict=True)

    peft_type: str = Field(pattern="^LORA$")
    r: int = Field(ge=1, le=1024)
    lora_alpha: int = Field(ge=1, le=4096)
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    target_modules: str | list[str]
    fan_in_fan_out: bool = False


def attach(model: PreTrainedModel, settings: Lora) -> "PeftModel":
    """Put a fresh adapter into a model and freeze the model's weights.

    The linear layers are changed in place, the embeddings are not: an OptionError if they are
    among the layers. The result is the model as peft sees it, which can switch the adapter off.
    """
    targets = settings.targets
    config = _lora_config()(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        # GPT-2's linear layers store their matrices with the input first.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    return _wrapped(model, config)


def save_adapter(model: "PeftModel", folder: Path) -> None:
    """Save the adapter that `attach` put into a model, and nothing else of it."""
    from peft import get_peft_model_state_dict

    # Without embeddings, or peft asks the Hub for their number.
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    settings = model.peft_config["default"].to_dict()
    settings = {k: sorted(v) if isinstance(v, set) else v for k, v in settings.items()}
    settings |= {"inference_mode": True}
    with writing_to(folder, "the adapter"):
        with atomic_path(folder / WEIGHTS) as draft:
            save_file(plain, draft, metadata={"format": "pt"})
        atomic_write(folder / SETTINGS, json.dumps(settings, indent=2, default=str) + "\n")


def copy_adapter(folder: Path, target: Path) -> None:
    """Copy a saved adapter into another folder, or raise a CheckpointError."""
    with writing_to(target, f"the adapter of {str(folder)!r}"):
        for name in (WEIGHTS, SETTINGS):
            atomic_write(target / name, (folder / name).read_bytes())


def load_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge an adapter that `save_adapter` or peft wrote into the model it was trained for.

    The weights are changed in place. A CheckpointError if it is damaged, unsafe, or made for
    another model.
    """
    lora_config = _lora_config()
    settings = _read_settings(folder)
    check_regular(folder / WEIGHTS)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{str(folder / WEIGHTS)!r} cannot be read: {error}. Get a fresh copy."
        ) from error
    config = lora_config(**settings.model_dump(exclude={"peft_type"}), task_type="CAUSAL_LM")
    try:
        wrapped = _wrapped(model, config)
    except OptionError as error:
        raise CheckpointError(f"the adapter in {str(folder)!r} does not fit: {error}") from error
    try:
        _fill(wrapped, tensors, folder)
    except CheckpointError:
        wrapped.unload()
        raise
    merged: PreTrainedModel = wrapped.merge_and_unload()
    return merged.eval().requires_grad_(False)


def _lora_config() -> "type[LoraConfig]":
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtra("peft", "train") from error
    return LoraConfig


def _wrapped(model: PreTrainedModel, config: "LoraConfig") -> "PeftModel":
    from peft import get_peft_model

    rows = (model.get_input_embeddings(), model.get_output_embeddings())
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise OptionError(
            f"lora.targets is {config.target_modules!r}: {first_line(error)}. "
            "Give all-linear, or names of linear layers of the model."
        ) from error
    if (model.get_input_embeddings(), model.get_output_embeddings()) != rows:
        wrapped.unload()
        raise OptionError(
            f"lora.targets is {config.target_modules!r}, which has the embeddings: phrases are "
            "made from them, so they stay as they are. Leave them out, or give all-linear."
        )
    return wrapped


def _fill(wrapped: "PeftModel", tensors: dict[str, Any], folder: Path) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    model_tensors = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    expected = {name: tuple(tensor.shape) for name, tensor in model_tensors.items()}
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise CheckpointError(
                f"the adapter in {str(folder)!r} does not fit the model: {name} is "
                f"{actual.get(name, 'missing')}, not {expected.get(name, 'missing')}. Load it with "
                "the model that it was trained for."
            )
    if damaged := first_not_finite(tensors.items()):
        raise CheckpointError(
            f"{str(folder / WEIGHTS)!r} holds numbers that are not finite (NaN or infinite), in "
            f"{damaged}. Get a fresh copy."
        )
    set_peft_model_state_dict(wrapped, tensors)


def _read_settings(folder: Path) -> _Settings:
    if not (folder / WEIGHTS).is_file() and any(folder.glob("*.bin")):
        raise CheckpointError(
            f"{str(folder)!r} has a pickled adapter (.bin), which univerb never opens. "
            "Save it again with peft's save_pretrained, which writes safetensors."
        )
    raw = read_json_object(folder / SETTINGS)
    if raw is None:
        raise CheckpointError(
            f"{str(folder)!r} has no readable {SETTINGS}. Give an adapter's folder."
        )
    try:
        settings = _Settings.model_validate(raw)
    except ValidationError as error:
        raise CheckpointError(
            f"{SETTINGS} in {str(folder)!r}: {first_problem(error)}. "
            "Give a LoRA adapter that `univerb train` or peft wrote."
        ) from error
    _refuse_extras(raw, folder)
    return settings


def _refuse_extras(raw: dict[str, Any], folder: Path) -> None:
    """Refuse keys that would change what is computed, or name code: only their defaults pass."""
    known = {*_Settings.model_fields, *_REMARKS}
    defaults = {f.name: f.default for f in fields(_lora_config()) if f.default is not MISSING}
    for key, value in raw.items():
        if key in known or value in (None, False, {}, []) or value == defaults.get(key):
            continue
        raise CheckpointError(
            f"{SETTINGS} in {str(folder)!r} asks for {key} = {str(value)[:40]!r}, which univerb "
            "does not run. Give a plain LoRA adapter."
        )
