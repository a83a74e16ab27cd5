"""What an LM in a GGUF file needs besides its weights, from the file itself or from beside it."""

from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from univerb.engines.llamacpp.gguf_checks import INPUT
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.gguf_tokenizer import GgufTokenizer
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
from univerb.files import read_regular
from univerb.locations import DEFAULT_MODEL, converted_default, default_gguf, locate
from univerb.model_folder import read_json_object
from univerb.modeling.card import Backbone, Card, check_backbone
from univerb.modeling.chat_template import ChatTemplate
from univerb.tokenizer import Tokenizer

_MAX_TEMPLATE = 1 << 20


class LanguageParts(NamedTuple):
    """How an LM reads and ends a text."""

    tokenizer: Tokenizer
    end_ids: frozenset[int]
    template: ChatTemplate | None


def parts_inside(gguf: GgufFile) -> LanguageParts:
    """Read what a GGUF file says itself."""
    tokenizer = GgufTokenizer(gguf)
    matrix = gguf.matrices[INPUT]
    if len(tokenizer.words) > matrix.rows:
        raise ModelError(
            f"{str(gguf.path)!r} has {len(tokenizer.words)} tokens, but embeddings of "
            f"{matrix.rows}. Get a fresh copy."
        )
    source = gguf.text("tokenizer.chat_template")
    template = ChatTemplate(source, tokenizer.template_texts, gguf.path.name) if source else None
    return LanguageParts(tokenizer, tokenizer.end_ids, template)


def parts_beside(gguf: GgufFile, card: Card, folder: Path) -> LanguageParts:
    """Read the files of an encoder's backbone, if the GGUF file is that backbone."""
    rust = _read_tokenizer(folder)
    tokenizer = Tokenizer(rust, _special_ids(rust, folder), is_private=True)
    check_fits(gguf, card, tokenizer)
    check_words(gguf, rust, card.backbone.name)
    return LanguageParts(tokenizer, _end_ids(gguf, folder), _template_in(folder))


def _end_ids(gguf: GgufFile, folder: Path) -> frozenset[int]:
    """Return the tokens that end a text, as the generation config or else the file says."""
    ids: object = gguf.number("tokenizer.ggml.eos_token_id")
    for name in ("config.json", "generation_config.json"):
        ids = (read_json_object(folder / name) or {}).get("eos_token_id", ids)
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in listed if isinstance(i, int))


def _template_in(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a folder, from either place that transformers looks at."""
    settings = read_json_object(folder / "tokenizer_config.json") or {}
    try:
        source: object = read_regular(folder / "chat_template.jinja", _MAX_TEMPLATE).decode()
    except (OSError, ValueError):
        source = settings.get("chat_template")
    if isinstance(source, list):
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        return None
    return ChatTemplate(source, _role_texts(settings), folder.name)


def _role_texts(settings: dict[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens by role (eos_token), as tokenizer_config.json has them."""
    roles = {key: value for key, value in settings.items() if key.endswith("_token")}
    texts = {key: v.get("content") if isinstance(v, dict) else v for key, v in roles.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Read the tokenizer.json of a model's folder."""
    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the Rust library raises plain exceptions
        raise ModelError(
            f"{str(folder)!r} has no readable tokenizer.json. Get a complete copy."
        ) from error


def _special_ids(rust: tokenizers.Tokenizer, folder: Path) -> set[int]:
    """Return the special tokens as transformers counts them: by flag, and by role (eos_token)."""
    added = rust.get_added_tokens_decoder().items()
    texts = _role_texts(read_json_object(folder / "tokenizer_config.json") or {})
    ids = [rust.token_to_id(text) for text in texts.values()]
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
    matrix = gguf.matrices[INPUT]
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
