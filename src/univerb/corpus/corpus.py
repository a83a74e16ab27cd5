"""An open corpus: chunks for a query, phrases for the chunks, vectors for the phrases.

Opening reads the manifest and the sizes of the files; everything else is mapped into memory and
checked when it is first touched.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.corpus.manifest import MANIFEST, OBJECTS, Manifest, read_manifest
from univerb.corpus.objects import ObjectEntry, StoredObject, corrupt
from univerb.corpus.phrase_index import NO_ROW, Ids, StoredPhrases
from univerb.corpus.select import Selection, select_phrases
from univerb.corpus.shards import Shard, totals
from univerb.corpus.vectors import Rows, StoredVectors
from univerb.documents.chunks import Chunk
from univerb.errors import CorpusError, OptionError
from univerb.phrase import Document
from univerb.phrases.hashing import Ints
from univerb.retrieval.base import Hit, Index
from univerb.retrieval.methods import method_named
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

if TYPE_CHECKING:
    from univerb.modeling.phrase_model import PhraseModel

PROFILE = "profile.json"


class CorpusProfile(BaseModel):
    """How to decode with a corpus, as measured on held-out text."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    encoder: str = Field(max_length=128)
    phrase_bias: float = Field(ge=-100.0, le=100.0)
    tolerance: float = Field(ge=0.0, le=1.0)


def open_corpus(folder: str | Path) -> "Corpus":
    """Open a corpus that `univerb index` or `build_corpus` wrote.

    Args:
        folder: Where it lies.

    Returns:
        The corpus, memory-mapped.

    Raises:
        CorpusError: If there is none, or one of a newer version.
        CorruptCorpusError: If its files are damaged.
    """
    path = Path(folder).expanduser()
    return Corpus(path, read_manifest(path))


class Corpus:
    """Documents on disk, with an index to find chunks and the vectors of their phrases."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the encoder that made the vectors; empty if there are none."""
        return self.manifest.encoder

    @property
    def has_vectors(self) -> bool:
        """Whether the phrases are encoded."""
        return bool(self.manifest.encoder)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the `k` chunks that a query is about, best first."""
        if k < 1:
            raise OptionError(f"k is {k}; give 1 or more.")
        return [Hit(self.chunk(number), score) for number, score in self._index.rank(query, k)]

    def chunk(self, number: int) -> Chunk:
        """Return a chunk by its number."""
        if not 0 <= number < self._edges[-1]:
            raise corrupt(self.folder, f"has an index that names a chunk {number}")
        shard = int(numpy.searchsorted(self._edges, number, side="right")) - 1
        return self.shards[shard].chunk(number - int(self._edges[shard]))

    def select(
        self,
        query: str,
        tokenizer: Tokenizer,
        k: int = 32,
        *,
        max_phrases: int | None = None,
        others: bool = False,
    ) -> Selection:
        """Return the phrases of the chunks that a query is about.

        Args:
            query: What the text is about, such as its beginning.
            tokenizer: The LM's.
            k: From how many chunks.
            max_phrases: Keep at most so many: those that save the most tokens in the chunks.
            others: Take also the n-grams that the corpus does not hold; they must be encoded.

        Returns:
            The phrases with their places, and how many of them are stored.
        """
        self.check_tokenizer(tokenizer)
        hits = self.search(query, k)
        sizes = self.manifest.settings.sizes
        return select_phrases(hits, tokenizer, self._phrases, sizes, max_phrases, others)

    def vocabulary(
        self,
        lm: "PhraseModel",
        query: str,
        k: int = 32,
        *,
        max_phrases: int | None = None,
        others: bool = False,
    ) -> DynamicVocabulary:
        """Return the phrases of the chunks that a query is about as a vocabulary.

        Args:
            lm: The model; with `lm.attach(corpus)` it takes the vectors from the corpus.
            query: What the text is about, such as the prompt.
            k: From how many chunks.
            max_phrases: Keep at most so many.
            others: Take also the n-grams that the corpus does not hold; they are encoded.

        Returns:
            A vocabulary for the LM.
        """
        found = self.select(query, lm.tokenizer, k, max_phrases=max_phrases, others=others)
        return DynamicVocabulary(lm.static_size, found.phrases)

    def vectors(self, keys: Sequence[tuple[int, ...]]) -> tuple[Ints, Rows, Rows]:
        """Look up vectors of phrases by their ids.

        Args:
            keys: The phrases' ids.

        Returns:
            Which of them are stored, as places in `keys`; their input and output vectors.
        """
        tokens = numpy.array([i for key in keys for i in key], dtype=numpy.int32)
        ends = numpy.cumsum([len(key) for key in keys], dtype=numpy.int64)
        rows = self._phrases.rows_of(tokens, ends)
        places = numpy.flatnonzero(rows != NO_ROW)
        return places, *self._vectors.read(rows[places])

    def profile(self) -> CorpusProfile | None:
        """Return what `univerb calibrate` found, or None if it did not run."""
        path = self.folder / PROFILE
        try:
            return CorpusProfile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise corrupt(path, "cannot be read") from error

    def profile_options(self, fingerprint: str, mode: str | None = None) -> dict[str, Any]:
        """Return the decoding options that `univerb calibrate` found for this corpus, if it ran.

        Args:
            fingerprint: The encoder's that is to be used.
            mode: The decode mode, if one was asked for: they were found for `unfold`.

        Returns:
            `phrase_bias` and `tolerance`; nothing if they were found for another encoder.
        """
        profile = self.profile()
        if profile is None or profile.encoder != fingerprint or mode == "atomic":
            return {}
        names = {"phrase_bias"} if mode == "verify" else {"phrase_bias", "tolerance"}
        return profile.model_dump(include=names)

    def listed(self) -> list[dict[str, Any]]:
        """Return name, digest and number of characters of all documents."""
        return [document for shard in self.shards for document in shard.listed]

    def documents(self) -> Iterator[Document]:
        """Yield all documents."""
        for shard in self.shards:
            yield from shard.documents()

    @property
    def phrases(self) -> StoredPhrases:
        """All phrases."""
        return self._phrases

    def verify(self) -> int:
        """Check every byte and every number of the manifest.

        Returns:
            How many bytes there are.

        Raises:
            CorruptCorpusError: If one is not as it was written.
        """
        size = sum(self._object(entry).verify() for entry in self.manifest.entries())
        found = totals(self.shards)._asdict() | {"phrase_count": len(self._phrases)}
        if self.manifest.model_dump(include=set(found)) != found:
            raise corrupt(self.folder / MANIFEST, "has other numbers than the files")
        if self.has_vectors:
            self._vectors.read(self._phrases.rows[:1])
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

    def kept_rows(self, tokens: Ids, ends: Ints) -> tuple[list[ObjectEntry], Ints, int]:
        """Say which vectors serve phrases of a new version of the corpus.

        Args:
            tokens: The ids of the phrases, one after the other.
            ends: Where each phrase ends.

        Returns:
            The objects to keep, in their order; for each phrase its row among theirs, or
            `NO_ROW`; how many rows they have. Objects of which half is not used are given up.
        """
        rows = self._phrases.rows_of(tokens, ends)
        edges = self._vectors.edges
        part = numpy.searchsorted(edges, rows, side="right") - 1
        kept: list[ObjectEntry] = []
        result = numpy.full(len(rows), NO_ROW)
        total = 0
        for number, entry in enumerate(self.manifest.vectors):
            own = numpy.flatnonzero((part == number) & (rows != NO_ROW))
            count = int(edges[number + 1] - edges[number])
            if 2 * len(own) > count:
                kept.append(entry)
                result[own] = rows[own] - edges[number] + total
                total += count
        return kept, result, total

    def _object(self, entry: ObjectEntry | None) -> StoredObject:
        if entry is None:
            raise corrupt(self.folder, "lacks an object")
        return StoredObject(self.folder / OBJECTS, entry)

    @cached_property
    def shards(self) -> list[Shard]:
        """The portions that the documents are kept in."""
        return [Shard(self._object(entry)) for entry in self.manifest.shards]

    @cached_property
    def _edges(self) -> Ints:
        return numpy.cumsum([0, *(len(shard.chunks) for shard in self.shards)])

    @cached_property
    def _index(self) -> Index:
        stored = self._object(self.manifest.index)
        for name in stored.entry.sizes:
            stored.path(name)
        return method_named(self.manifest.settings.method).load(stored.folder)

    @cached_property
    def _phrases(self) -> StoredPhrases:
        phrases = StoredPhrases(self._object(self.manifest.phrases))
        if len(phrases) != self.manifest.phrase_count:
            raise corrupt(self.folder / MANIFEST, "has another number of phrases than the files")
        return phrases

    @cached_property
    def _vectors(self) -> StoredVectors:
        if not self.has_vectors:
            raise CorpusError(
                f"{str(self.folder)!r} was built without vectors. Build it again with them."
            )
        vectors = StoredVectors([self._object(e) for e in self.manifest.vectors], self.manifest)
        last = int(self._phrases.rows.max(initial=NO_ROW))
        # Each phrase has a row, and most rows have a phrase; otherwise the width is wrong.
        if not last < len(vectors) < max(2 * len(self._phrases), 1):
            raise corrupt(self.folder / MANIFEST, "has a width that does not fit the vectors")
        return vectors
