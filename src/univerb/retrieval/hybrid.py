"""Reciprocal rank fusion of two methods."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from univerb.retrieval.base import Features, Index, Method

_PARTS = ("first", "second")
_CONSTANT = 60  # The larger it is, the more texts gain that both methods rank.
_DEPTH = 100  # Texts further down add next to nothing to a sum of reciprocal ranks.


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Ranks texts by the sum of `1 / (60 + rank)` over two methods."""

    first: Method
    second: Method

    @property
    def name(self) -> str:
        """Both methods' names."""
        return f"hybrid:{self.first.name}+{self.second.name}"

    def features(self, texts: Sequence[str]) -> Features:
        """Return the features of both, their names prefixed."""
        both = zip(_PARTS, (self.first, self.second), strict=True)
        return {
            f"{part}.{name}": column
            for part, method in both
            for name, column in method.features(texts).items()
        }

    def index(self, shards: Sequence[Features]) -> "HybridIndex":
        """Build both indexes."""
        first, second = ([_part(shard, part) for shard in shards] for part in _PARTS)
        return HybridIndex(self.first.index(first), self.second.index(second))

    def load(self, folder: Path, count: int) -> "HybridIndex":
        """Open both indexes."""
        first, second = (folder / part for part in _PARTS)
        return HybridIndex(self.first.load(first, count), self.second.load(second, count))


class HybridIndex:
    """Texts ranked by two indexes together."""

    def __init__(self, first: Index, second: Index) -> None:
        self._indexes = (first, second)

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return at most `k` texts that either index ranks, best first."""
        if k < 1:
            return []
        scores: dict[int, float] = defaultdict(float)
        for index in self._indexes:
            for rank, (number, _) in enumerate(index.rank(query, max(k, _DEPTH)), start=1):
                scores[number] += 1 / (_CONSTANT + rank)
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]

    def save(self, folder: Path) -> None:
        """Write each index into its folder."""
        for part, index in zip(_PARTS, self._indexes, strict=True):
            (folder / part).mkdir()
            index.save(folder / part)


def _part(shard: Features, part: str) -> Features:
    prefix = f"{part}."
    return {key.removeprefix(prefix): v for key, v in shard.items() if key.startswith(prefix)}
