"""An open corpus: chunks for a query, phrases for the chunks, vectors for the phrases.

Opening reads the manifest and the sizes of the files; everything else is mapped into memory and
checked when it is first read. Others may change the corpus meanwhile: it stays as it was opened.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from univerb.corpus.manifest import MANIFEST, OBJECTS, Manifest, read_manifest
from univerb.corpus.objects import ObjectEntry, StoredObject, corrupt, unreadable
from univerb.corpus.phrase_index import NO_ROW, Ids, StoredPhrases
from univerb.corpus.request_vectors import RequestVectors
from univerb.corpus.select import Selection, select_phrases
from univerb.corpus.shards import ListedDocument, Shard, totals
from univerb.corpus.vector_rows import VectorRows
from univerb.corpus.vectors import StoredVectors, row_format
from univerb.corpus.versions import finish_sweep, lease, missing_corpus
from univerb.documents.chunks import Chunk
from univerb.errors import (
    CorpusError,
    CorruptCorpusError,
    OptionError,
    UniverbError,
    first_line,
    shown,
)
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.hashing import Ints
from univerb.retrieval.base import Hit, Index
from univerb.retrieval.methods import method_named
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

if TYPE_CHECKING:
    from univerb.modeling.phrase_model import PhraseModel


def open_corpus(folder: str | Path) -> "Corpus":
    """Open a corpus that `univerb index` or `build_corpus` wrote.

    Args:
        folder: The corpus.

    Returns:
        It, memory-mapped.

    Raises:
        CorpusError: If there is none, or one of a newer version.
        CorruptCorpusError: If its files are damaged.
    """
    path = corpus_folder(folder)
    while (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        try:
            corpus = Corpus(path, manifest)
        except CorruptCorpusError:
            if read_manifest(path) == manifest:
                raise
            # A writer has replaced this version before it was leased.
            continue
        finish_sweep(path)
        return corpus
    raise missing_corpus(path)


def corpus_folder(folder: str | Path) -> Path:
    """Return the folder that a user names, with `~` for the home; one that cannot be is refused."""
    try:
        path = Path(folder).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # no home, too long, no path
        name = str(folder) if isinstance(folder, Path) else folder
        raise CorpusError(f"there is no corpus {shown(name)}. Give its folder.") from error
    return path


class Corpus:
    """Documents on disk, with an index to find chunks and the vectors of their phrases."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._lease = weakref.finalize(self, os.close, lease(folder, manifest))
        for entry in manifest.entries():
            self._object(entry).check_sizes()

    def close(self) -> None:
        """Let the files go once another version has replaced this one; do not read it any more.

        The end of the last reference or of the process does the same.
        """
        self._lease()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder that made the vectors; empty if there are none."""
        return self.manifest.encoder

    @property
    def content(self) -> str:
        """The name of the retrieval index, which has a hash of the texts."""
        return self.manifest.index.name if self.manifest.index else ""

    @property
    def has_vectors(self) -> bool:
        """Whether the phrases are encoded."""
        return bool(self.manifest.encoder)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the `k` chunks that a query is about, best first."""
        return [Hit(self.chunk(number), score) for number, score in self.rank(query, k)]

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return the numbers and scores of the `k` chunks that a query is about, best first."""
        if k < 1:
            raise OptionError(f"k is {k}; give 1 or more.")
        return self._index.rank(query, k)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk by its number."""
        shard, place = self._place(number)
        return shard.chunk(place)

    def _place(self, number: int) -> tuple[Shard, int]:
        if not 0 <= number < self._edges[-1]:
            raise corrupt(self.folder, f"has an index that names a chunk {number}")
        shard = int(numpy.searchsorted(self._edges, number, side="right")) - 1
        return self.shards[shard], number - int(self._edges[shard])

    def select(
        self,
        query: str,
        tokenizer: Tokenizer,
        k: int = 32,
        *,
        max_phrases: int | None = None,
        others: bool = False,
        guards: Guards | None = None,
    ) -> Selection:
        """Return the phrases of the chunks that a query is about.

        Args:
            query: What the text is about, such as its beginning.
            tokenizer: The LM's.
            k: Number of chunks.
            max_phrases: Maximum number: those that save the most tokens in the chunks.
            others: Include n-grams that the corpus does not hold: they are encoded, and kept in
                the user's cache.
            guards: Rules for phrases; by default those of the corpus.

        Returns:
            The phrases with their sources, and the number of those that are stored.
        """
        self.check_tokenizer(tokenizer)
        hits = self.search(query, k)
        settings = self.manifest.settings
        rules = guards or settings.guards
        return select_phrases(
            hits, tokenizer, self.phrases, settings.sizes, max_phrases, others, rules
        )

    def vocabulary(
        self, lm: "PhraseModel", query: str, k: int = 32, guards: Guards | None = None
    ) -> DynamicVocabulary:
        """Return the stored phrases that `select` returns as a vocabulary of an LM.

        With `lm.attach(corpus)` the LM takes their vectors from the corpus.
        """
        return self.select(query, lm.tokenizer, k, guards=guards).vocabulary(lm)

    def vectors(self, keys: Sequence[tuple[int, ...]]) -> tuple[Ints, VectorRows, VectorRows]:
        """Return the indices of those keys that are stored, their input and output vectors."""
        tokens = numpy.array([i for key in keys for i in key], dtype=numpy.int32)
        ends = numpy.cumsum([len(key) for key in keys], dtype=numpy.int64)
        rows = self.phrases.rows_of(tokens, ends)
        stored = numpy.flatnonzero(rows != NO_ROW)
        return stored, *self._vectors.read(rows[stored])

    @property
    def kept(self) -> RequestVectors:
        """Vectors that are not stored here and that requests had to encode."""
        return RequestVectors(self.fingerprint, row_format(self.manifest))

    def chunk_ids(self, number: int) -> NDArray[numpy.int32]:
        """Return the token ids of a chunk, with -1 after each line.

        Args:
            number: The chunk's, as `rank` gives it.

        Returns:
            Its ids (T,), without a copy of them.

        Raises:
            CorpusError: If an earlier version built the corpus, which did not keep them.
        """
        shard, place = self._place(number)
        return shard.chunk_ids(place)

    def listed(self) -> list[ListedDocument]:
        """Return name, digest and number of characters of all documents."""
        return [document for shard in self.shards for document in shard.listed]

    def documents(self) -> Iterator[Document]:
        """Yield all documents."""
        for shard in self.shards:
            yield from shard.documents()

    def verify(self) -> int:
        """Check every byte and every number of the manifest; return the number of bytes."""
        size = sum(self._object(entry).verify() for entry in self.manifest.entries())
        counts = totals(self.shards) | {"phrase_count": len(self.phrases.numbers)}
        if self.manifest.model_dump(include=set(counts)) != counts:
            raise corrupt(self.folder / MANIFEST, "has other numbers than the files")
        for shard in self.shards:
            shard.verify()
        self._index  # noqa: B018  (loading checks it)
        if self.has_vectors:
            self._vectors.verify()
        return size

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer that the corpus was not built with."""
        if tokenizer.fingerprint() != self.manifest.tokenizer:
            raise CorpusError(
                f"{str(self.folder)!r} was built with another tokenizer (model "
                f"{self.manifest.model or 'unknown'!r}). Use that model, or build it again."
            )

    def check_encoder(self, fingerprint: str) -> None:
        """Refuse an encoder that did not make the vectors."""
        if fingerprint != self.manifest.encoder:
            raise CorpusError(
                f"the vectors of {str(self.folder)!r} were made by another encoder (model "
                f"{self.manifest.model or 'none'!r}, fingerprint {self.manifest.encoder or 'none'};"
                f" this one is {fingerprint}). Use that model and dtype, or build it again."
            )

    def reusable_rows(self, tokens: Ids, ends: Ints) -> tuple[list[ObjectEntry], Ints, int]:
        """Find the vectors that serve phrases (their ids, concatenated) of a new version.

        Returns the objects to reuse, in order; for each phrase its row among theirs, or `NO_ROW`;
        the number of their rows. Objects of which half is unused are dropped.
        """
        rows = self.phrases.rows_of(tokens, ends)
        edges = self._vectors.edges
        part = numpy.searchsorted(edges, rows, side="right") - 1
        reused: list[ObjectEntry] = []
        result = numpy.full(len(rows), NO_ROW)
        total = 0
        for number, entry in enumerate(self.manifest.vectors):
            users = numpy.flatnonzero((part == number) & (rows != NO_ROW))
            count = int(edges[number + 1] - edges[number])
            if 2 * len(users) > count:
                reused.append(entry)
                result[users] = rows[users] - edges[number] + total
                total += count
        return reused, result, total

    def _object(self, entry: ObjectEntry | None) -> StoredObject:
        if entry is None:
            raise corrupt(self.folder, "lacks an object")
        return StoredObject(self.folder / OBJECTS, entry)

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards that hold the documents."""
        return [Shard(self._object(entry)) for entry in self.manifest.shards]

    @cached_property
    def _edges(self) -> Ints:
        edges = numpy.cumsum([0, *(len(shard.chunks) for shard in self.shards)])
        if edges[-1] != self.manifest.chunks:
            raise corrupt(self.folder / MANIFEST, "has another number of chunks than the files")
        return edges

    @cached_property
    def _index(self) -> Index:
        stored = self._object(self.manifest.index)
        for name in stored.entry.sizes:
            stored.path(name)
        method, count = method_named(self.manifest.settings.method), int(self._edges[-1])
        try:
            return method.load(stored.folder, count)
        except UniverbError:
            raise
        except OSError as error:
            raise unreadable(stored.folder, error) from error
        except Exception as error:  # of readers of JSON and arrays
            problem = f"is not the index of {count} chunks: {first_line(error)}"
            raise corrupt(stored.folder, problem) from error

    @cached_property
    def phrases(self) -> StoredPhrases:
        """All phrases."""
        phrases = StoredPhrases(self._object(self.manifest.phrases))
        if len(phrases.numbers) != self.manifest.phrase_count:
            raise corrupt(self.folder / MANIFEST, "has another number of phrases than the files")
        return phrases

    @cached_property
    def _vectors(self) -> StoredVectors:
        if not self.has_vectors:
            raise CorpusError(
                f"{str(self.folder)!r} was built without vectors. Build it again with them."
            )
        vectors = StoredVectors([self._object(e) for e in self.manifest.vectors], self.manifest)
        last = int(self.phrases.rows.max(initial=NO_ROW))
        # Each phrase has a row, and most rows have a phrase; otherwise the width is wrong.
        if not last < len(vectors) < max(2 * len(self.phrases), 1):
            raise corrupt(self.folder / MANIFEST, "has a width that does not fit the vectors")
        return vectors
