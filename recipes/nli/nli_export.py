"""Writing a cross-encoder as univerb's lab reads it: matrices in int8, and a card."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.entailment.cross_encoder import CARD, SCALE, WEIGHTS, CrossEncoderCard
from univerb.files import atomic_write
from univerb.modeling.card import sha256

_MAX = 127


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
        scale = plain.float().abs().amax(1, keepdim=True) / _MAX
        # A row of zeros has no scale of its own: any will do.
        scale[scale == 0] = 1.0
        packed[name] = (plain / scale).round().to(torch.int8).contiguous()
        packed[name + SCALE] = scale
    return packed


def write_cross_encoder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: HFTokenizer,
    *,
    name: str,
    trained_on: str,
    max_length: int,
    threshold: float,
) -> None:
    """Write a folder that `read_cross_encoder` reads; the card comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    save_file(pack_int8(model.state_dict()), folder / WEIGHTS)
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card = CrossEncoderCard(
        name=name,
        trained_on=trained_on,
        max_length=max_length,
        threshold=threshold,
        sha256=sha256(folder / WEIGHTS),
    )
    write_card(folder, card)


def write_card(folder: Path, card: CrossEncoderCard) -> None:
    """Write entailment.json, for instance with accuracies that were measured since."""
    atomic_write(folder / CARD, card.model_dump_json(indent=2) + "\n")
