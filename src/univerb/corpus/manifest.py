"""The manifest of a corpus: the one file that names all others, replaced atomically."""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from univerb._version import __version__
from univerb.config import describe
from univerb.corpus.objects import ObjectEntry, StrictModel, corrupt, unreadable
from univerb.corpus.phrase_index import MAX_SIZE
from univerb.corpus.vector_rows import VectorDtype
from univerb.errors import CorpusError, OptionError
from univerb.files import atomic_write, read_regular
from univerb.phrases.content import StopList
from univerb.phrases.guards import Guards

MANIFEST = "manifest.json"
OBJECTS = "objects"
FORMAT = 3
_MAX_BYTES = 1 << 26
_Count = Field(default=0, ge=0, le=1 << 48)
_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
# Format 1 had no such guards. They apply to what is read of it, and to all of it once it changes.
_SINCE_FORMAT_2 = {"content", "whole_numbers"}


class CorpusSettings(StrictModel):
    """What a corpus was built with; a corpus is a function of these and its documents.

    They are part of `phrases_key`: a new field requires a new `FORMAT`. What the retrieval method's
    name means is known to `univerb.retrieval` alone.
    """

    method: str = Field(default="bm25", max_length=4096)
    """Retrieval: bm25, dense:FOLDER, static:FOLDER, or hybrid:NAME+NAME."""
    splitter: str = Field(default="rules", max_length=64)
    """Sentences: rules, pysbd or clauses."""
    max_words: int = Field(default=128, ge=1, le=100_000)
    """Words per chunk."""
    overlap: int = Field(default=0, ge=0, le=1000)
    """Sentences that adjacent chunks share."""
    sizes: tuple[_Size, _Size] = (2, 8)
    """Shortest and longest phrase, in tokens."""
    min_count: int = Field(default=8, ge=1, le=1 << 40)
    """Minimum number of occurrences of a phrase; of the 4,096 most frequent ones, 2."""
    content: StopList = "en"
    """Language of the stop list; a phrase has a word that is not on it. none: any words."""
    whole_numbers: bool = True
    """No phrase begins or ends inside a number such as 1,500 or § 12(3)."""
    max_phrases: int = Field(default=2_000_000, ge=0, le=1 << 31)
    """Maximum number of phrases."""
    dtype: VectorDtype = "int8"
    """Of the vectors on disk: int8, float16 or float32."""
    vectors: bool = True
    """Encode the phrases; without vectors, a corpus serves retrieval and mining."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  (checked by pydantic)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise OptionError(describe(error, type(self))) from None

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.sizes[0] > self.sizes[1]:
            raise ValueError("sizes must ascend")
        return self

    @property
    def guards(self) -> Guards:
        """The rules for phrases."""
        return Guards(content=self.content, whole_numbers=self.whole_numbers)


class Manifest(StrictModel):
    """All parts of a corpus."""

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

    @model_validator(mode="after")
    def _check_vectors(self) -> Self:
        if self.encoder and not self.width:
            raise ValueError("vectors have a width")
        return self

    def entries(self) -> list[ObjectEntry]:
        """Return the entries of all objects."""
        single = [entry for entry in (self.index, self.phrases) if entry]
        return [*self.shards, *single, *self.vectors]


def index_key(shards: Iterable[ObjectEntry]) -> str:
    """Return a hash of all that the retrieval index depends on."""
    return _hash(entry.sha256 for entry in shards)


def phrases_key(
    shards: Iterable[ObjectEntry],
    settings: CorpusSettings,
    vectors: Sequence[ObjectEntry],
    version: int = FORMAT,
) -> str:
    """Return a hash of all that the list of phrases depends on, as a version of the format has."""
    unknown = _SINCE_FORMAT_2 if version < 2 else set()
    parts = [index_key(shards), settings.model_dump_json(exclude=unknown)]
    return _hash([*parts, *(entry.sha256 for entry in vectors)])


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    """Replace the manifest of a corpus."""
    body = manifest.model_dump_json()
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    atomic_write(folder / name, text)


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Read a manifest and check its hash and its values."""
    path = folder / name
    fields = _read_fields(path)
    version = fields.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise CorpusError(
            f"{str(folder)!r} has format {version}; this version of univerb reads up to {FORMAT}. "
            "Update univerb, or build the corpus again."
        )
    if sys.byteorder != "little":
        raise CorpusError("corpora are little-endian, this machine is not. Build it elsewhere.")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        raise corrupt(path, "has values that are not allowed") from error
    if not _names_match(manifest):
        raise corrupt(path, "names objects that were not made for this corpus")
    return manifest


def _read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a manifest whose hash is right."""
    try:
        outer = json.loads(read_regular(path, _MAX_BYTES))
        body, sha256 = outer["body"], outer["sha256"]
        is_whole = hashlib.sha256(body.encode()).hexdigest() == sha256
        fields = json.loads(body)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise corrupt(path, "cannot be read") from error
    if not is_whole or not isinstance(fields, dict):
        raise corrupt(path, "is not what was written")
    return fields


def _names_match(manifest: Manifest) -> bool:
    """Tell whether the objects' names follow from the settings and the documents."""
    index = index_key(manifest.shards)
    phrases = phrases_key(manifest.shards, manifest.settings, manifest.vectors, manifest.format)
    names = [entry.name for entry in (manifest.index, manifest.phrases) if entry]
    return names == [f"index-{index}", f"phrases-{phrases}"]
