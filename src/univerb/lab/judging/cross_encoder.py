"""A cross-encoder on disk: a classifier of text pairs in int8, a quarter of its size.

weights.safetensors   matrices as int8 with a scale for each row, vectors as they are
config.json, tokenizer.json, tokenizer_config.json     as transformers writes them
entailment.json       what it is, when it says yes, what it was measured at, sha256 of the weights;
                      written last, so a folder that has it is complete
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb._version import __version__
from univerb.errors import CheckpointError
from univerb.modeling.backbones import refuse_unsafe
from univerb.modeling.card import check_file, sha256

FORMAT = 1
CARD, WEIGHTS = "entailment.json", "weights.safetensors"
_SCALE = ".scale"
_LARGEST = 127


class CrossEncoderCard(BaseModel):
    """The content of entailment.json."""

    model_config = ConfigDict(frozen=True)

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    univerb: str = __version__
    name: str
    """What reports call it."""
    trained_on: str
    max_length: int = Field(ge=32, le=1 << 20)
    """Tokens of a pair; a longer premise is cut into windows."""
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    """Entailed from this probability on."""
    accuracies: dict[str, float] = {}
    """In percent, by test set."""
    sha256: str = ""
    """Of the weights; filled in when they are written."""


class CrossEncoder(NamedTuple):
    """A classifier of text pairs, as it is loaded."""

    model: PreTrainedModel
    tokenizer: HFTokenizer
    card: CrossEncoderCard


def pack_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices to int8, symmetrically, each row with the scale that its largest value needs.

    Args:
        tensors: Weights by name.

    Returns:
        The same names; a matrix `m` has its rows' scales beside it, as `m.scale` (rows, 1).
    """
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu()
        if plain.ndim != 2 or not plain.is_floating_point():
            packed[name] = plain.contiguous()
            continue
        scale = plain.float().abs().amax(1, keepdim=True) / _LARGEST
        # A row of zeros has no scale of its own: any will do.
        scale[scale == 0] = 1.0
        packed[name] = (plain / scale).round().to(torch.int8).contiguous()
        packed[name + _SCALE] = scale
    return packed


def unpack_int8(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo `pack_int8`: every value is within half a step of what it was."""
    return {
        name: tensor.float() * packed[name + _SCALE] if name + _SCALE in packed else tensor
        for name, tensor in packed.items()
        if not name.endswith(_SCALE)
    }


def write_cross_encoder(folder: Path, encoder: CrossEncoder) -> None:
    """Save a cross-encoder.

    Args:
        folder: Where to; made if it is not there.
        encoder: What to save.

    Raises:
        CheckpointError: If the folder cannot be written.
    """
    model, tokenizer, card = encoder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD).unlink(missing_ok=True)
        save_file(pack_int8(model.state_dict()), folder / WEIGHTS)
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error
    write_cross_encoder_card(folder, card.model_copy(update={"sha256": sha256(folder / WEIGHTS)}))


def write_cross_encoder_card(folder: Path, card: CrossEncoderCard) -> None:
    """Write entailment.json in one step, for instance with what was measured since.

    Args:
        folder: The cross-encoder's.
        card: Its new content.

    Raises:
        CheckpointError: If it cannot be written.
    """
    draft = folder / f".{CARD}.{os.getpid()}"
    try:
        draft.write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        os.replace(draft, folder / CARD)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        draft.unlink(missing_ok=True)


def read_cross_encoder(folder: Path) -> CrossEncoder:
    """Load what `write_cross_encoder` saved.

    Args:
        folder: Where it lies.

    Returns:
        The model in full precision and evaluation mode, its tokenizer and its card.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    card = read_cross_encoder_card(folder)
    check_file(folder / WEIGHTS, card.sha256)
    refuse_unsafe(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_config(
            config, attn_implementation="sdpa", trust_remote_code=False
        )
        model.load_state_dict(unpack_int8(load_file(folder / WEIGHTS)))
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files can make transformers raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise CheckpointError(
            f"the cross-encoder in {str(folder)!r} cannot be loaded: {reason}. Get a fresh copy."
        ) from error
    return CrossEncoder(model.eval(), tokenizer, card)


def read_cross_encoder_card(folder: Path) -> CrossEncoderCard:
    """Read entailment.json.

    Args:
        folder: The cross-encoder's.

    Returns:
        Its content.

    Raises:
        CheckpointError: If it is missing, damaged, or of another format.
    """
    try:
        return CrossEncoderCard.model_validate(json.loads((folder / CARD).read_text("utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(
            f"{CARD} in {str(folder)!r} cannot be read by univerb {__version__}: {reason[:160]}. "
            "Get a fresh copy, or upgrade univerb."
        ) from error


def _unwritable(folder: Path, error: Exception) -> CheckpointError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return CheckpointError(
        f"cannot write {str(folder)!r}: {reason}. Make room, or give a folder that can be written."
    )
