"""Protocols of retrieval: chunks in, ranked chunks out.

A method turns texts into features, shard by shard, and the features of all shards into an index.
Features are plain arrays: they can be made in other processes, stored on disk and combined in any
number, so that an index is a function of its texts alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from univerb.documents.chunks import Chunk

Features = dict[str, NDArray[Any]]
"""Arrays by name; never of objects."""


class Hit(NamedTuple):
    """A retrieved chunk and its score; higher is better."""

    chunk: Chunk
    score: float


class Retriever(Protocol):
    """Retrieves the chunks that a query is about."""

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` chunks, best first."""
        ...


class Collection(Retriever, Protocol):
    """A retriever that can say whether it still searches the same."""

    @property
    def content(self) -> str:
        """A hash of what is searched, and how."""
        ...


class Index(Protocol):
    """Ranks numbered texts."""

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return at most `k` (number, score) pairs, best first, ties by number."""
        ...

    def save(self, folder: Path) -> None:
        """Write the index into an empty folder, as files without pickles."""
        ...


class Method(Protocol):
    """A retrieval method."""

    @property
    def name(self) -> str:
        """The method, its options and its model: equal names give equal indexes."""
        ...

    def features(self, texts: Sequence[str]) -> Features:
        """Return what the index needs of these texts."""
        ...

    def index(self, shards: Sequence[Features]) -> Index:
        """Build the index over all texts of all shards, numbered in that order."""
        ...

    def load(self, folder: Path, count: int) -> Index:
        """Open a saved index of `count` texts, memory-mapped where possible.

        Raises any error, most often a ValueError, if it is not one: nothing in it is trusted.
        """
        ...


def top_ranked(
    numbers: NDArray[numpy.int64], scores: NDArray[numpy.float32], k: int
) -> list[tuple[int, float]]:
    """Return the `k` best (number, score) pairs, best first, ties by number."""
    if len(scores) > k:
        # All ties with the last one stay, so that lower numbers win.
        is_best = scores >= numpy.partition(scores, -k)[-k]
        numbers, scores = numbers[is_best], scores[is_best]
    order = numpy.lexsort((numbers, -scores))[:k]
    return list(zip(numbers[order].tolist(), scores[order].tolist(), strict=True))
