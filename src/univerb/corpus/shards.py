"""Shards: text, chunks, tokens and retrieval features of half a megabyte of documents each.

A shard depends on its documents and the settings alone, so any worker may make it, and one that
exists is found by its key.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import tokenizers
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.objects import (
    ObjectEntry,
    StoredObject,
    corrupt,
    narrowed,
    unreadable,
    within,
    write_object,
)
from univerb.documents.chunks import Chunk, chunked
from univerb.documents.sentences import splitter_named
from univerb.errors import CorpusError, CorruptCorpusError
from univerb.phrase import Document
from univerb.phrases.hashing import Ints, prepend_zero
from univerb.phrases.tokenized import BREAK, TokenArrays, TokenizedText, tokenize_lines
from univerb.retrieval.base import Features
from univerb.retrieval.methods import method_named
from univerb.tokenizer import Tokenizer

SHARD_CHARACTERS = 500_000
_FEATURE = "feature."
GAP = "\n\n"
"""Separates chunks that are tokenized together: a blank line never counts as a wrapped line."""
_SHARD_SETTINGS = {"method", "splitter", "max_words", "overlap", "content", "whole_numbers"}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What a worker needs to make a shard."""

    root: Path
    documents: tuple[Document, ...]
    settings: CorpusSettings
    tokenizer: str
    """The tokenizer as JSON."""
    special_ids: tuple[int, ...]

    @property
    def key(self) -> str:
        """A hash of all that the shard depends on."""
        parts = (
            self.settings.model_dump(include=_SHARD_SETTINGS),
            hashlib.sha256(self.tokenizer.encode()).hexdigest(),
            [(document.name, digest(document.text)) for document in self.documents],
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def digest(text: str) -> str:
    """Return the hash by which a document's text is known."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def grouped(documents: Iterable[Document]) -> Iterator[tuple[Document, ...]]:
    """Group documents, in their order, by the size of a shard."""
    group: list[Document] = []
    size = 0
    for document in documents:
        if group and size + len(document.text) > SHARD_CHARACTERS:
            yield tuple(group)
            group, size = [], 0
        group.append(document)
        size += len(document.text)
    if group:
        yield tuple(group)


def make_shard(task: ShardTask) -> ObjectEntry:
    """Make a shard, unless it exists."""
    return write_object(task.root, "shard", task.key, lambda folder: _write(task, folder))


def _write(task: ShardTask, folder: Path) -> None:
    settings = task.settings
    splitter = splitter_named(settings.splitter)
    chunks = [chunked(d, settings.max_words, settings.overlap, splitter) for d in task.documents]
    # Sentences that overlapping chunks share must not count twice.
    disjoint = chunks
    if settings.overlap:
        disjoint = [chunked(d, settings.max_words, 0, splitter) for d in task.documents]
    text = GAP.join(chunk.text for chunk in chain.from_iterable(disjoint))
    tokenizer = _tokenizer(task.tokenizer, task.special_ids)
    tokenized = tokenize_lines(Document(text, "shard"), tokenizer, settings.guards)
    ids, flags = tokenized.arrays()
    texts = [chunk.text for chunk in chain.from_iterable(chunks)]
    features = method_named(settings.method).features(texts)
    arrays = _text_arrays(task.documents, chunks)
    # A break is 0: whole numbers without a sign need half the space.
    arrays |= {"tokens": narrowed(ids + 1), "flags": flags}
    arrays["chunk_tokens"] = narrowed(_chunk_tokens(tokenized, chunks, disjoint))
    arrays |= {_FEATURE + name: column for name, column in features.items()}
    for name, column in arrays.items():
        numpy.save(folder / f"{name}.npy", column, allow_pickle=False)
    listed = [
        {"name": d.name, "digest": digest(d.text), "characters": len(d.text)}
        for d in task.documents
    ]
    (folder / "documents.json").write_text(json.dumps(listed), encoding="utf-8")


def _text_arrays(
    documents: Sequence[Document], chunks: Sequence[Sequence[Chunk]]
) -> dict[str, NDArray[Any]]:
    rows: list[tuple[int, int, int, int, int]] = []
    encoded: list[bytes] = []
    begin = 0
    for number, (document, parts) in enumerate(zip(documents, chunks, strict=True)):
        byte = begin + _byte_offsets(document.text)
        rows += [(number, c.start, c.end, int(byte[c.start]), int(byte[c.end])) for c in parts]
        encoded.append(document.text.encode())
        begin += len(encoded[-1])
    return {
        "text": numpy.frombuffer(b"".join(encoded), dtype=numpy.uint8),
        "text_ends": numpy.cumsum([len(data) for data in encoded]),
        "chunks": numpy.array(rows, dtype=numpy.int64).reshape(-1, 5),
    }


def _chunk_tokens(
    tokenized: TokenizedText, chunks: Sequence[Sequence[Chunk]], disjoint: Sequence[Sequence[Chunk]]
) -> Ints:
    """Return where the tokens of each chunk begin and end, one row for each (C, 2)."""
    # Where each token is in the documents, which are numbered one after the other.
    begins = numpy.cumsum([0, *(len(c.text) + len(GAP) for c in chain.from_iterable(disjoint))])
    chunk = numpy.searchsorted(begins, tokenized.visible, side="right") - 1
    places = tokenized.visible - begins[chunk] + _characters(disjoint)[chunk, 0]
    token = numpy.searchsorted(places, _characters(chunks))
    return numpy.append(tokenized.positions, len(tokenized.arrays().ids))[token]


def _characters(chunks: Sequence[Sequence[Chunk]]) -> Ints:
    """Return where chunks begin and end in documents that stand one after the other, (C, 2)."""
    lengths = numpy.cumsum([0, *(max((c.end for c in part), default=0) for part in chunks)])
    spans = [
        (chunk.start + before, chunk.end + before)
        for part, before in zip(chunks, lengths.tolist(), strict=False)
        for chunk in part
    ]
    return numpy.array(spans, dtype=numpy.int64).reshape(-1, 2)


def _byte_offsets(text: str) -> NDArray[numpy.int64]:
    """Return the offset in the UTF-8 text of each character, and of the end."""
    codes = numpy.frombuffer(text.encode("utf-32-le"), dtype=numpy.uint32)
    sizes = 1 + (codes >= 0x80).astype(numpy.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return prepend_zero(numpy.cumsum(sizes))


@lru_cache(maxsize=4)
def _tokenizer(json_text: str, special_ids: tuple[int, ...]) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(json_text), special_ids)


class ListedDocument(TypedDict):
    """What a shard lists of a document."""

    name: str
    digest: str
    """Hash of its text."""
    characters: int


_LIST = TypeAdapter(list[ListedDocument])


class Shard:
    """A shard that is open for reading."""

    def __init__(self, stored: StoredObject) -> None:
        self._stored = stored

    @cached_property
    def listed(self) -> list[ListedDocument]:
        """The documents without their texts."""
        path = self._stored.path("documents.json")
        try:
            return _LIST.validate_json(path.read_bytes())
        except OSError as error:
            raise unreadable(path, error) from error
        except ValidationError as error:
            raise corrupt(path, "does not list documents") from error

    @cached_property
    def chunks(self) -> NDArray[numpy.int64]:
        """One row for each chunk: document, first and last character, first and last byte."""
        chunks = numpy.asarray(self._stored.array("chunks", numpy.int64, 2))
        if chunks.shape[1] != 5:
            raise self._corrupt("chunks")
        return chunks

    @cached_property
    def _text(self) -> NDArray[numpy.uint8]:
        return self._stored.array("text", numpy.uint8, 1)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk with its text."""
        document, start, end, first, last = self.chunks[number].tolist()
        if not (0 <= document < len(self.listed) and start >= 0 and 0 <= first <= last):
            raise self._corrupt("chunks")
        text = self._decoded(first, last)
        if end - start != len(text):
            raise self._corrupt("chunks")
        return Chunk(self.listed[document]["name"], start, text)

    def documents(self) -> list[Document]:
        """Return the documents with their texts."""
        ends = self._stored.array("text_ends", numpy.int64, 1)
        begins = prepend_zero(ends)
        is_whole = begins[-1] == len(self._text) and (begins[1:] >= begins[:-1]).all()
        if len(ends) != len(self.listed) or not is_whole:
            raise self._corrupt("text_ends")
        edges = zip(self.listed, begins.tolist(), ends.tolist(), strict=False)
        return [Document(self._decoded(begin, end), d["name"]) for d, begin, end in edges]

    def arrays(self) -> TokenArrays:
        """Return the tokens of all chunks."""
        flags = self._stored.array("flags", numpy.uint8, 1)
        if len(self._ids) != len(flags):
            raise self._corrupt("flags")
        return TokenArrays(self._ids, flags)

    def chunk_ids(self, number: int) -> NDArray[numpy.int32]:
        """Return the tokens of a chunk, with a break after each line."""
        if "chunk_tokens.npy" not in self._stored.entry.sizes:
            raise CorpusError(
                f"{str(self._stored.folder.parent.parent)!r} was built by an earlier version, "
                "which did not keep the tokens of each chunk. Build it again with `univerb index`."
            )
        spans = self._stored.array("chunk_tokens", dimensions=2)
        if spans.shape != (len(self.chunks), 2) or spans.dtype.kind not in "iu":
            raise self._corrupt("chunk_tokens")
        begin, end = spans[number].tolist()
        if not 0 <= begin <= end <= len(self._ids):
            raise self._corrupt("chunk_tokens")
        return self._ids[begin:end]

    @cached_property
    def _ids(self) -> NDArray[numpy.int32]:
        """The tokens of all chunks; before format 3, as they are."""
        is_old = "ids.npy" in self._stored.entry.sizes
        stored = self._stored.integers("ids" if is_old else "tokens")
        if not within(stored, BREAK if is_old else 0, 1 << 31):
            raise self._corrupt("tokens")
        return stored if is_old else stored.astype(numpy.int32) + numpy.int32(BREAK)

    def verify(self) -> None:
        """Read every chunk and every document, and compare these with their digests."""
        for number in range(len(self.chunks)):
            self.chunk(number)
        for document, listed in zip(self.documents(), self.listed, strict=True):
            text = document.text
            if (digest(text), len(text)) != (listed["digest"], listed["characters"]):
                raise self._corrupt("text")

    def _decoded(self, begin: int, end: int) -> str:
        try:
            return self._text[begin:end].tobytes().decode()
        except UnicodeDecodeError as error:
            raise self._corrupt("text") from error

    def _corrupt(self, name: str) -> CorruptCorpusError:
        return corrupt(self._stored.folder / f"{name}.npy", "has values that do not fit the others")

    def features(self) -> Features:
        """Return what the retrieval index is made of."""
        names = [n.removesuffix(".npy") for n in self._stored.entry.sizes if n.startswith(_FEATURE)]
        return {name.removeprefix(_FEATURE): self._stored.array(name) for name in names}


def totals(shards: Sequence[Shard]) -> dict[str, int]:
    """Count what shards hold, by the manifest's names."""
    listed = [document for shard in shards for document in shard.listed]
    return {
        "documents": len(listed),
        "chunks": sum(len(shard.chunks) for shard in shards),
        "characters": sum(document["characters"] for document in listed),
        "tokens": sum(int((shard.arrays().ids >= 0).sum()) for shard in shards),
    }
