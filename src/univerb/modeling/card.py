"""The card of an encoder on disk, univerb.json: what it is and which backbone it belongs to.

Read without torch, so that an engine that has none can match an encoder with its LM.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from univerb._version import __version__
from univerb.config import EncoderConfig, Profile, first_problem
from univerb.errors import CheckpointError
from univerb.locations import packaged_encoder
from univerb.model_folder import read_json_object

FORMAT = 1
CARD, WEIGHTS, OWN_TOKENIZER = "univerb.json", "encoder.safetensors", "encoder_tokenizer.json"
ADAPTER = "adapter"
"""The folder of a LoRA adapter beside an encoder."""


class Backbone(BaseModel):
    """The LM that an encoder belongs to."""

    model_config = ConfigDict(frozen=True)

    name: str
    """What it is loaded by; a folder beside the encoder if it was trained with it."""
    trained_from: str | None = None
    """The LM that it was before, if so."""
    model_type: str
    hidden_size: int = Field(ge=1, le=1 << 20)
    static_size: int = Field(ge=1, le=1 << 30)
    tokenizer: str
    """Fingerprint of the tokenizer's vocabulary."""


class Card(BaseModel):
    """The content of univerb.json."""

    format: int = Field(ge=1)
    univerb: str = __version__
    backbone: Backbone
    encoder: EncoderConfig
    profile: Profile
    body: dict[str, Any] | None = None
    """The HF config of a body of its own; None for the backbone's first layers."""
    sha256: dict[str, str]


def find_encoder(name: str) -> tuple[Path | None, str]:
    """Return an encoder's folder, or None, and a name for it that works from any folder.

    A name is that of a folder with an encoder, or of a backbone that univerb ships one for.
    """
    path = Path(name).expanduser()
    if (path / CARD).is_file():
        return path, str(path.resolve())
    if (path / WEIGHTS).is_file():
        raise CheckpointError(
            f"{name!r} has {WEIGHTS} but no {CARD}: its save was interrupted. Save it again."
        )
    return packaged_encoder(name), name


def backbone_of(folder: Path) -> str:
    """Return the backbone that an encoder names: a folder beside it, or what it was saved with."""
    name = read_card(folder).backbone.name
    return str(folder / name) if (folder / name).is_dir() else name


def adapter_beside(folder: Path | None, name: str) -> Path:
    """Return the adapter in an encoder's folder; the name is for the error."""
    if folder is None or not (folder / ADAPTER).is_dir():
        raise CheckpointError(
            f"there is no {ADAPTER}/ beside the encoder of {name!r}. Load it without, or train one "
            "with regime: lora."
        )
    return folder / ADAPTER


def read_card(folder: Path) -> Card:
    """Read univerb.json; a missing, damaged or newer one is a CheckpointError."""
    raw = read_json_object(folder / CARD)
    if raw is None:
        raise CheckpointError(
            f"{str(folder)!r} has no readable {CARD}. Give a folder that save_pretrained wrote."
        )
    number = raw.get("format", FORMAT)
    if number != FORMAT:
        raise CheckpointError(
            f"{CARD} in {str(folder)!r} has format {str(number)[:20]}; univerb {__version__} reads "
            f"{FORMAT}. Upgrade univerb, or get a fresh copy."
        )
    try:
        return Card.model_validate(raw)
    except ValidationError as error:
        raise CheckpointError(
            f"{CARD} in {str(folder)!r} is damaged: {first_problem(error)}. "
            "Save the encoder again, or get a fresh copy."
        ) from error


@contextmanager
def writing_to(folder: Path, what: str) -> Iterator[None]:
    """Make a folder to write to; errors of the disk become a CheckpointError that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {what} to {str(folder)!r}: {error}. "
            "Give a folder that can be written, with enough space."
        ) from error


def check_backbone(expected: Backbone, actual: Backbone) -> None:
    """Refuse a backbone that an encoder was not made for."""
    for field in ("model_type", "hidden_size", "static_size", "tokenizer"):
        before, now = getattr(expected, field), getattr(actual, field)
        if before != now:
            raise CheckpointError(
                f"this encoder was made for {expected.name!r} ({field} {before}), not for "
                f"{actual.name!r} ({field} {now}). Load it with its own backbone."
            )


def check_regular(path: Path) -> None:
    """Refuse a path that is no regular file: opening a pipe would wait for ever."""
    if not path.is_file():
        raise CheckpointError(
            f"{str(path)!r} cannot be read: it is missing or no regular file. Get a fresh copy."
        )


def check_file(path: Path, expected: str) -> None:
    """Refuse a file that is not the one that a card names."""
    check_regular(path)
    try:
        actual = sha256(path)
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read. Get a fresh copy.") from error
    if actual != expected:
        raise CheckpointError(
            f"{str(path)!r} is damaged: its sha256 is {actual[:12]}…, not {expected[:12]}…. "
            "Get a fresh copy."
        )


def sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
