"""The one file that says what a store is: replaced as a whole, or not at all."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb._version import __version__
from univerb.corpus.objects import ObjectEntry, StoredObject, corrupt, sync
from univerb.errors import CorpusError

MANIFEST = "manifest.json"
OBJECTS = "objects"
FORMAT = 1
_MAX_BYTES = 1 << 26
_Count = Field(default=0, ge=0, le=1 << 48)
_Size = Annotated[int, Field(ge=1, le=64)]


class CorpusSettings(BaseModel):
    """What a store was built with; a store is a function of these and its documents.

    They are part of `phrases_key`: another field makes another `FORMAT`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(default="bm25", max_length=4096)
    """How chunks are retrieved."""
    splitter: str = Field(default="rules", max_length=64)
    max_words: int = Field(default=128, ge=1, le=100_000)
    overlap: int = Field(default=0, ge=0, le=1000)
    sizes: tuple[_Size, _Size] = (2, 8)
    """Shortest and longest phrase, in tokens."""
    min_count: int = Field(default=2, ge=1, le=1 << 40)
    max_phrases: int = Field(default=2_000_000, ge=0, le=1 << 31)
    dtype: Literal["float16", "float32"] = "float16"
    """Of the vectors on disk."""
    vectors: bool = True
    """Whether phrases are encoded; without, a store serves retrieval and phrase mining."""


class Manifest(BaseModel):
    """Everything that a store consists of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=FORMAT, ge=1, le=1 << 16)
    created_by: str = Field(default=f"univerb {__version__}", max_length=256)
    byteorder: Literal["little"] = "little"
    settings: CorpusSettings
    tokenizer: str = Field(max_length=128)
    """The tokenizer's fingerprint."""
    model: str = Field(default="", max_length=4096)
    """The name of the model whose encoder made the vectors."""
    encoder: str = Field(default="", max_length=128)
    """The encoder's fingerprint; empty without vectors."""
    width: int = Field(default=0, ge=0, le=1 << 20)
    """Numbers per vector."""
    is_tied: bool = False
    """Whether input and output vectors are the same and stored once."""
    shards: tuple[ObjectEntry, ...] = ()
    index: ObjectEntry | None = None
    phrases: ObjectEntry | None = None
    vectors: tuple[ObjectEntry, ...] = ()
    documents: int = _Count
    chunks: int = _Count
    characters: int = _Count
    tokens: int = _Count
    phrase_count: int = _Count

    def entries(self) -> list[ObjectEntry]:
        """Return all objects that the manifest names."""
        single = [entry for entry in (self.index, self.phrases) if entry]
        return [*self.shards, *single, *self.vectors]


def index_key(shards: Iterable[ObjectEntry]) -> str:
    """Return a hash of everything that the retrieval index depends on."""
    return _hash(entry.sha256 for entry in shards)


def phrases_key(
    shards: Iterable[ObjectEntry], settings: CorpusSettings, vectors: Sequence[ObjectEntry]
) -> str:
    """Return a hash of everything that the list of phrases depends on."""
    made_of = [index_key(shards), settings.model_dump_json()]
    return _hash([*made_of, *(entry.sha256 for entry in vectors)])


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in the place of the one before, at once."""
    body = manifest.model_dump_json()
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    draft = folder / f".{MANIFEST}"
    draft.write_text(text, encoding="utf-8")
    sync(draft)
    os.replace(draft, folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest and check that it is what was written and that its files are there.

    Args:
        folder: The store.

    Returns:
        The manifest.

    Raises:
        CorpusError: If there is no store, or one of a newer version of univerb.
        CorruptCorpusError: If it was changed or damaged, or a file has another size.
    """
    path = folder / MANIFEST
    if not path.is_file():
        what = "holds no finished store" if folder.is_dir() else "does not exist"
        raise CorpusError(f"{str(folder)!r} {what}. Build one with: univerb index DOCS -o {folder}")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise corrupt(path, "is larger than any that is written")
        outer = json.loads(path.read_bytes())
        body = outer["body"]
        is_whole = hashlib.sha256(body.encode()).hexdigest() == outer["sha256"]
        fields = json.loads(body)
        version = fields["format"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise corrupt(path, "cannot be read") from error
    if not is_whole:
        raise corrupt(path, "is not what was written")
    if isinstance(version, int) and version > FORMAT:
        raise CorpusError(
            f"{str(folder)!r} has format {version}; this version of univerb reads up to {FORMAT}. "
            "Update univerb, or build the store again."
        )
    if sys.byteorder != "little":
        raise CorpusError("stores are little-endian, and this machine is not. Build it elsewhere.")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        raise corrupt(path, "has values that are not allowed") from error
    if not _fits(manifest):
        raise corrupt(path, "names objects that were not made for this store")
    for entry in manifest.entries():
        StoredObject(folder / OBJECTS, entry).check_sizes()
    return manifest


def _fits(manifest: Manifest) -> bool:
    """Tell whether the objects are those that follow from the settings and the documents."""
    index = index_key(manifest.shards)
    phrases = phrases_key(manifest.shards, manifest.settings, manifest.vectors)
    wanted = [f"index-{index}", f"phrases-{phrases}"]
    return wanted == [entry.name for entry in (manifest.index, manifest.phrases) if entry]
