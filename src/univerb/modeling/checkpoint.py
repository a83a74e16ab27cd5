"""An encoder on disk: safetensors and JSON, written atomically, checked when read, no pickle.

encoder.safetensors       the weights, token embeddings left out where the LM's are used
encoder_tokenizer.json    only for an encoder with a tokenizer of its own
adapter/                  a LoRA adapter of the backbone, if one was trained
NAME/                     the backbone, if it was trained: the card has its name
univerb.json              versions, settings, the backbone it belongs to, sha256 of the files;
                          written last, so a folder that has it is complete
"""

from pathlib import Path

import tokenizers
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from univerb.config import Profile
from univerb.errors import CheckpointError, first_line
from univerb.files import atomic_path, atomic_write
from univerb.modeling.card import (
    CARD,
    FORMAT,
    OWN_TOKENIZER,
    WEIGHTS,
    Backbone,
    Card,
    check_backbone,
    check_file,
    read_card,
    sha256,
    writing_to,
)
from univerb.modeling.encoder import PhraseEncoder, shallow_body
from univerb.modeling.heads import make_heads
from univerb.modeling.parameters import first_not_finite
from univerb.tokenizer import Tokenizer

# Keys that could make transformers run or download code that the file names.
_UNSAFE_KEYS = {"auto_map", "attn_implementation", "quantization_config"}


def describe(model: PreTrainedModel, tokenizer: Tokenizer) -> Backbone:
    """Describe a model, so that an encoder can be matched with it."""
    config = model.config.get_text_config()
    return Backbone(
        name=model.name_or_path or config.model_type,
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        static_size=model.get_output_embeddings().weight.shape[0],
        tokenizer=tokenizer.fingerprint(),
    )


def write_checkpoint(
    folder: Path,
    encoder: PhraseEncoder,
    backbone: Backbone,
    profile: Profile,
    is_half: bool = False,
) -> None:
    """Save an encoder, the LM that it belongs to, and the pair's default generation options."""
    dtype = torch.float16 if is_half else None
    body = encoder.body.config.to_dict() if encoder.tokenizer else None
    with writing_to(folder, "the encoder"):
        tensors = {
            name: tensor.detach().to("cpu", dtype).contiguous()
            for name, tensor in encoder.state_dict().items()
        }
        with atomic_path(folder / WEIGHTS) as draft:
            save_file(tensors, draft)
        names = [WEIGHTS]
        if encoder.tokenizer:
            atomic_write(folder / OWN_TOKENIZER, encoder.tokenizer.to_json())
            names.append(OWN_TOKENIZER)
        card = Card(
            format=FORMAT,
            backbone=backbone,
            encoder=encoder.config,
            profile=profile,
            body=body,
            sha256={name: sha256(folder / name) for name in names},
        )
        atomic_write(folder / CARD, card.model_dump_json(indent=2) + "\n")


def read_checkpoint(
    folder: Path, model: PreTrainedModel, backbone: Backbone
) -> tuple[PhraseEncoder, Profile]:
    """Load an encoder, on its LM's device and in its dtype, and the saved profile.

    A CheckpointError if it is damaged, or was saved for another backbone than the LM's.
    """
    card = read_card(folder)
    check_backbone(card.backbone, backbone)
    for name in [WEIGHTS] if card.body is None else [WEIGHTS, OWN_TOKENIZER]:
        check_file(folder / name, card.sha256.get(name, "none"))
    body, tokenizer = _body(card, folder, model)
    heads = make_heads(
        body.config.get_text_config().hidden_size, backbone.hidden_size, card.encoder
    )
    encoder = PhraseEncoder(body, heads, card.encoder, tokenizer)
    try:
        weights = load_file(folder / WEIGHTS)
        encoder.load_state_dict(weights, strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"{WEIGHTS} in {str(folder)!r} does not fit its {CARD}: "
            f"{first_line(error)}. Get a fresh copy."
        ) from error
    if damaged := first_not_finite(weights.items()):
        raise CheckpointError(
            f"{str(folder / WEIGHTS)!r} holds numbers that are not finite (NaN or infinite), in "
            f"{damaged}. Get a fresh copy."
        )
    return encoder.to(device=model.device, dtype=model.dtype).eval(), card.profile


def _body(
    card: Card, folder: Path, model: PreTrainedModel
) -> tuple[PreTrainedModel, Tokenizer | None]:
    if card.body is None:
        return shallow_body(model, card.encoder.layers), None
    safe = {k: v for k, v in card.body.items() if not (k.startswith("_") or k in _UNSAFE_KEYS)}
    try:
        config = AutoConfig.for_model(safe.pop("model_type"), **safe)
        _check_fits(config, folder / WEIGHTS)
        tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(folder / OWN_TOKENIZER)))
        body = AutoModel.from_config(config, dtype=model.dtype, attn_implementation="sdpa")
        return body, tokenizer
    except Exception as error:  # a damaged config can make transformers raise anything
        raise CheckpointError(
            f"the encoder's own body in {str(folder)!r} cannot be built: {first_line(error)}. "
            "Get a fresh copy."
        ) from error


def _check_fits(config: PretrainedConfig, weights: Path) -> None:
    """Refuse sizes that the weights cannot have, before anything of that size is allocated."""
    with safe_open(weights, framework="pt") as file:
        tensors = len(list(file.keys()))
    largest = config.vocab_size * config.hidden_size
    if config.num_hidden_layers > tensors or largest > weights.stat().st_size:
        raise ValueError("its sizes are larger than its weights")
