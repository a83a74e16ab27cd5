"""What every way of retrieving has in common: chunks in, ranked chunks out.

A method turns texts into features, shard by shard, and an index out of the features of all
shards. Features are plain arrays: they can be made in other processes, kept on disk, and put
together again in any number, so that an index is a function of its texts alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from univerb.documents.chunks import Chunk

Features = dict[str, NDArray[Any]]
"""Arrays by name; never of objects."""


class Hit(NamedTuple):
    """A chunk that was found, and how well it fits; higher is better."""

    chunk: Chunk
    score: float


class Retriever(Protocol):
    """Finds the chunks that a query is about."""

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` chunks, best first."""
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
    """A way to rank texts."""

    @property
    def name(self) -> str:
        """What it is and with which model: equal names give equal indexes."""
        ...

    def features(self, texts: Sequence[str]) -> Features:
        """Return what the index needs to know of these texts."""
        ...

    def index(self, shards: Sequence[Features]) -> Index:
        """Build the index over all texts of all shards, numbered in that order."""
        ...

    def load(self, folder: Path) -> Index:
        """Open an index that was saved, memory-mapped where possible."""
        ...
