"""A cross-encoder on disk: a classifier of text pairs in int8, a quarter of its size.

weights.safetensors   matrices as int8 with a scale for each row, vectors as they are
config.json, tokenizer.json, tokenizer_config.json     as transformers writes them
entailment.json       name, threshold, accuracies, sha256 of the weights; written last, so a folder
                      that has it is complete

`recipes/nli` in the repository writes such folders.
"""

import json
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb._version import __version__
from univerb.errors import CheckpointError, first_line
from univerb.model_folder import refuse_unsafe
from univerb.modeling.card import check_file

FORMAT = 1
CARD, WEIGHTS = "entailment.json", "weights.safetensors"
SCALE = ".scale"
"""The suffix of the tensor of a matrix's row scales, (rows, 1)."""


class CrossEncoderCard(BaseModel):
    """The content of entailment.json."""

    model_config = ConfigDict(frozen=True)

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    univerb: str = __version__
    name: str
    """In reports."""
    trained_on: str
    max_length: int = Field(ge=32, le=1 << 20)
    """Tokens of a pair; a longer premise is cut into windows."""
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    """Entailed from this probability on."""
    accuracies: dict[str, float] = {}
    """In percent, by test set."""
    sha256: str
    """Of the weights."""


class CrossEncoder(NamedTuple):
    """A classifier of text pairs, loaded."""

    model: PreTrainedModel
    tokenizer: HFTokenizer
    card: CrossEncoderCard


def unpack_int8(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in full precision: a matrix's int8 values times its rows' scales."""
    return {
        name: tensor.float() * packed[name + SCALE] if name + SCALE in packed else tensor
        for name, tensor in packed.items()
        if not name.endswith(SCALE)
    }


def read_cross_encoder(folder: Path) -> CrossEncoder:
    """Load a cross-encoder in full precision and evaluation mode."""
    card = _read_card(folder)
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
        raise CheckpointError(
            f"the cross-encoder in {str(folder)!r} cannot be loaded: {first_line(error)}. "
            "Get a fresh copy."
        ) from error
    return CrossEncoder(model.eval(), tokenizer, card)


def _read_card(folder: Path) -> CrossEncoderCard:
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
