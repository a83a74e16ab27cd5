"""BM25 over words, with the bm25s package."""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from univerb.errors import MissingExtra, OptionError
from univerb.retrieval.base import Features

if TYPE_CHECKING:
    from bm25s import BM25 as Ranker

Ints = NDArray[numpy.int32]

_WORD = re.compile(r"\w\w+")


@dataclass(frozen=True, slots=True)
class BM25:
    """Ranks texts by the rare words that they share with the query."""

    k1: float = 1.5
    """Weight of repeated words."""
    b: float = 0.75
    """Length normalisation: 0 for none, 1 for full."""

    def __post_init__(self) -> None:
        if not (0 <= self.k1 < math.inf and 0 <= self.b <= 1):
            raise OptionError(
                f"BM25 has k1={self.k1} and b={self.b}; k1 must be 0 or more, and b from 0 to 1."
            )

    @property
    def name(self) -> str:
        """The method, with its parameters where they are not the defaults."""
        return "bm25" if self == BM25() else f"bm25(k1={float(self.k1)},b={float(self.b)})"

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
        ranker = _bm25s().BM25(k1=self.k1, b=self.b, backend="numpy", csc_backend="numpy")
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

    def load(self, folder: Path) -> "BM25Index":
        """Open a saved index, memory-mapped."""
        return BM25Index(_bm25s().BM25.load(folder, mmap=True, show_progress=False))


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
        scores = scores[numbers]
        if len(scores) > k:
            # All ties with the last one stay, so that lower numbers win.
            is_best = scores >= numpy.partition(scores, -k)[-k]
            numbers, scores = numbers[is_best], scores[is_best]
        order = numpy.lexsort((numbers, -scores))[:k]
        return list(zip(numbers[order].tolist(), scores[order].tolist(), strict=True))

    def save(self, folder: Path) -> None:
        """Write the index as JSON and .npy files."""
        self._ranker.save(folder, show_progress=False)


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
    return frozenset(_bm25s().stopwords.STOPWORDS_EN)


def _bm25s() -> ModuleType:
    try:
        import bm25s
    except ImportError:
        raise MissingExtra("bm25s", "index") from None
    module: ModuleType = bm25s
    return module
