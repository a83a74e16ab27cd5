"""The files that make up an LM in a GGUF file: their paths, and whether they belong together."""

from pathlib import Path

import tokenizers

from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
from univerb.locations import DEFAULT_MODEL, converted_default, default_gguf, locate
from univerb.model_folder import read_json_object
from univerb.modeling.card import Backbone, Card, check_backbone
from univerb.tokenizer import Tokenizer

INPUT, OUTPUT = "token_embd.weight", "output.weight"
"""The two embedding matrices; where they are tied, the file has only the first."""


def read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Read the tokenizer.json of a model's folder."""
    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the Rust library raises plain exceptions
        raise ModelError(
            f"{str(folder)!r} has no readable tokenizer.json. Get a complete copy."
        ) from error


def special_ids(rust: tokenizers.Tokenizer, folder: Path) -> set[int]:
    """Return the special tokens as transformers counts them: by flag, and by role (eos_token)."""
    added = rust.get_added_tokens_decoder().items()
    settings = read_json_object(folder / "tokenizer_config.json") or {}
    roles = [value for key, value in settings.items() if key.endswith("_token")]
    words = [role.get("content") if isinstance(role, dict) else role for role in roles]
    ids = [rust.token_to_id(word) for word in words if isinstance(word, str)]
    return {i for i, token in added if token.special} | {i for i in ids if i is not None}


def default_file(backbone: str, name: str) -> Path:
    """Return the default model's GGUF file, if that is the backbone."""
    if backbone != DEFAULT_MODEL:
        raise OptionError(
            f"{name!r} belongs to {backbone!r}, whose GGUF file is not known. "
            "Give it as gguf='FILE'."
        )
    path = default_gguf()
    if path is None:
        raise ModelMissing("the default model's weights are not installed. Run: univerb setup")
    return path


def tokenizer_folder(folder: Path, backbone: str, offline: bool | None) -> Path:
    """Return the folder that has the tokenizer: the encoder's or its backbone's."""
    if (folder / "tokenizer.json").is_file():
        return folder
    where = converted_default() if backbone == DEFAULT_MODEL else locate(backbone, offline)
    if isinstance(where, Path) and (where / "tokenizer.json").is_file():
        return where
    advice = (
        "Run: univerb setup"
        if backbone == DEFAULT_MODEL
        else "Put the backbone's tokenizer.json and tokenizer_config.json beside the encoder."
    )
    raise ModelMissing(f"the tokenizer of {backbone!r} is not on this machine. {advice}")


def check_fits(gguf: GgufFile, card: Card, tokenizer: Tokenizer) -> None:
    """Refuse a file that is not the encoder's backbone."""
    matrix = gguf.matrices.get(INPUT)
    if matrix is None:
        raise ModelError(
            f"{str(gguf.path)!r} has no token embeddings. Give the whole model in one GGUF file."
        )
    backbone = Backbone(
        name=gguf.path.name,
        model_type=card.backbone.model_type,
        hidden_size=matrix.width,
        static_size=matrix.rows,
        tokenizer=tokenizer.fingerprint(),
    )
    check_backbone(card.backbone, backbone)


def check_words(gguf: GgufFile, rust: tokenizers.Tokenizer, name: str) -> None:
    """Refuse a file with other tokens; a few added ones are spelled differently in some files."""
    spellings = gguf.strings("tokenizer.ggml.tokens")
    words = [(i, word) for word, i in rust.get_vocab().items() if i < len(spellings)]
    different = sum(spellings[i] != word.encode() for i, word in words)
    if different > len(words) // 100:
        raise CheckpointError(
            f"{gguf.path.name!r} spells {different} of {len(words)} tokens differently from the "
            f"tokenizer of {name!r}. Give the GGUF file of that model."
        )
