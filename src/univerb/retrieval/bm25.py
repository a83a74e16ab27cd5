"""BM25 over words, with the bm25s package."""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from univerb.files import map_array
from univerb.retrieval.base import Features, top_ranked

if TYPE_CHECKING:
    from bm25s import BM25 as Ranker

Ints = NDArray[numpy.int32]

_WORD = re.compile(r"\w\w+")
_VOCABULARY = TypeAdapter(dict[str, Annotated[int, Field(strict=True)]])


@dataclass(frozen=True, slots=True)
class BM25:
    """Ranks texts by the rare words that they share with the query."""

    @property
    def name(self) -> str:
        """The method's name."""
        return "bm25"

    def features(self, texts: Sequence[str]) -> Features:
        """Return each text's words as numbers, and the vocabulary that they index."""
        tokenized = [_words(text) for text in texts]
        vocabulary = sorted({word for words in tokenized for word in words})
        number = {word: i for i, word in enumerate(vocabulary)}
        terms = [number[word] for words in tokenized for word in words]
        return {
            "terms": numpy.array(terms, dtype=numpy.int32),
            "lengths": numpy.array([len(words) for words in tokenized], dtype=numpy.int32),
            "vocabulary": numpy.frombuffer("\n".join(vocabulary).encode(), dtype=numpy.uint8),
        }

    def index(self, shards: Sequence[Features]) -> "BM25Index":
        """Build the index; how texts are divided among shards makes no difference."""
        lists = [_terms_of(shard) for shard in shards]
        vocabulary = sorted({word for words in lists for word in words})
        number = {word: i for i, word in enumerate(vocabulary)}
        texts: list[list[int]] = []
        for shard, words in zip(shards, lists, strict=True):
            renumber = numpy.array([number[word] for word in words], dtype=numpy.int32)
            texts += _divided(renumber[shard["terms"]], shard["lengths"])
        ranker = _ranker()
        if vocabulary:
            ranker.index((texts, number), create_empty_token=False, show_progress=False)
        else:
            # bm25s would divide by a mean length of zero.
            ranker.vocab_dict = {}
            ranker.scores = {
                "data": numpy.zeros(0, dtype=numpy.float32),
                "indices": numpy.zeros(0, dtype=numpy.int32),
                "indptr": numpy.zeros(1, dtype=numpy.int64),
                "num_docs": len(texts),
            }
            ranker.nonoccurrence_array = None
        return BM25Index(ranker)

    def load(self, folder: Path, count: int) -> "BM25Index":
        """Open a saved index, memory-mapped; not with bm25s, which believes every number."""
        data = map_array(folder / "data.csc.index.npy", numpy.float32, 1)
        indices = map_array(folder / "indices.csc.index.npy", numpy.int32, 1)
        indptr = map_array(folder / "indptr.csc.index.npy", numpy.int64, 1)
        vocabulary = _VOCABULARY.validate_json((folder / "vocab.index.json").read_bytes())
        terms = numpy.fromiter(vocabulary.values(), numpy.int64)
        is_right = (
            indptr[0] == 0
            and len(data) == len(indices) == indptr[-1]
            and (indptr[1:] >= indptr[:-1]).all()
            and indices.min(initial=0) >= 0
            and indices.max(initial=-1) < count
            and terms.min(initial=0) >= 0
            and terms.max(initial=-1) < len(indptr) - 1
            and numpy.isfinite(data).all()
        )
        if not is_right:
            raise ValueError("its numbers do not fit each other")
        ranker = _ranker()
        ranker.vocab_dict, ranker.nonoccurrence_array = vocabulary, None
        ranker.scores = {"data": data, "indices": indices, "indptr": indptr, "num_docs": count}
        return BM25Index(ranker)


class BM25Index:
    """Texts ranked by BM25; it never changes, so threads may share it."""

    def __init__(self, ranker: "Ranker") -> None:
        self._ranker = ranker

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return at most `k` texts that share a word with the query, best first."""
        terms = self._ranker.get_tokens_ids(_words(query))
        if not terms or k < 1:
            return []
        scores = self._ranker.get_scores_from_ids(terms)
        numbers = numpy.flatnonzero(scores > 0)
        return top_ranked(numbers, scores[numbers], k)

    def save(self, folder: Path) -> None:
        """Write the index as JSON and .npy files."""
        self._ranker.save(folder, show_progress=False)


def _ranker() -> "Ranker":
    # Takes a third of a second.
    import bm25s

    return bm25s.BM25(k1=1.5, b=0.75, backend="numpy", csc_backend="numpy")


def _words(text: str) -> list[str]:
    stop_words = _stop_words()
    return [word for word in _WORD.findall(text.lower()) if word not in stop_words]


def _terms_of(shard: Features) -> list[str]:
    joined = shard["vocabulary"].tobytes().decode()
    return joined.split("\n") if joined else []


def _divided(terms: Ints, lengths: Ints) -> Iterator[list[int]]:
    ends = numpy.cumsum(lengths, dtype=numpy.int64)
    flat = terms.tolist()
    return (flat[end - n : end] for end, n in zip(ends.tolist(), lengths.tolist(), strict=True))


@functools.cache
def _stop_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)
