"""The phrases of a corpus: looked up by token ids, each with its count and its vector's row.

Phrases are numbered in the order of their ids, so that those with a common beginning are adjacent:
encoded together they share passes, read together they share pages.
"""

from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from univerb.corpus.objects import StoredObject, corrupt, narrowed, within
from univerb.phrases.hashing import Ints, KeyIndex, RollingHash, prepend_zero, ranges, split_ids

Ids = NDArray[numpy.int32]

MAX_SIZE = 64
"""Tokens of a phrase, at most."""
NO_ROW = -1
"""The row of a phrase that has no vector."""


def write_phrases(folder: Path, tokens: Ids, ends: Ints, counts: Ints, rows: Ints) -> None:
    """Write phrases (ids, concatenated, with the end of each) and columns of facts about them."""
    begins = prepend_zero(ends)[:-1]
    keys = RollingHash(tokens).keys(begins, ends)
    order = numpy.argsort(keys, kind="stable")
    columns: dict[str, NDArray[Any]] = {"tokens": tokens, "ends": ends, "counts": counts}
    columns |= {"rows": rows, "keys": keys[order], "order": order}
    for name, column in columns.items():
        numpy.save(folder / f"{name}.npy", narrowed(column), allow_pickle=False)


class StoredPhrases:
    """The phrases of a corpus, memory-mapped."""

    def __init__(self, stored: StoredObject) -> None:
        self._tokens = stored.integers("tokens")
        columns = (stored.integers(name).astype(numpy.int64) for name in ("ends", "counts", "rows"))
        self.ends, self.counts, self.rows = columns
        self._order = stored.integers("order")
        keys = stored.array("keys", numpy.uint64, 1)
        lengths = map(len, (self.ends, self.counts, self.rows, self._order, keys))
        if len(set(lengths)) > 1:
            raise corrupt(stored.folder, "has columns of different lengths")
        self._begins = prepend_zero(self.ends)
        is_whole = self._begins[-1] == len(self._tokens) and (keys[1:] >= keys[:-1]).all()
        limits = (
            (self.ends, 1, len(self._tokens) + 1),
            (numpy.diff(self._begins), 1, MAX_SIZE + 1),
            (self._tokens, 0, 1 << 31),
            (self.rows, NO_ROW, 1 << 48),
            (self._order, 0, len(self.ends)),
        )
        if not is_whole or not all(within(*limit) for limit in limits):
            raise corrupt(stored.folder, "has numbers that do not fit each other")
        self._index = KeyIndex(numpy.asarray(keys))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def numbers(self) -> Ints:
        """The numbers of phrases; the others are tokens that they begin with, for their vectors."""
        return numpy.flatnonzero(self.counts > 0)

    def ids(self, numbers: Ints) -> list[tuple[int, ...]]:
        """Return the token ids of phrases."""
        begin, end = self._begins[numbers], self.ends[numbers]
        return split_ids(self._tokens[ranges(begin, end)], numpy.cumsum(end - begin))

    def find(self, ids: Ids, first: Ints, size: int, hashes: RollingHash) -> Ints:
        """Look up n-grams of one size.

        Args:
            ids: A sequence of tokens.
            first: Index of each n-gram's first token.
            size: Their number of tokens.
            hashes: Those of the sequence.

        Returns:
            The number of each phrase, or -1 if the corpus does not have it.
        """
        position = self._index.find(hashes.keys(first, first + size))
        matches = numpy.flatnonzero(position >= 0)
        phrase = self._order[position[matches]]
        begin = self._begins[phrase]
        is_size = self.ends[phrase] - begin == size
        matches, phrase, begin = matches[is_size], phrase[is_size], begin[is_size]
        # Hashes may agree by chance; ids decide.
        span = numpy.arange(size)
        stored, looked_up = self._tokens[begin[:, None] + span], ids[first[matches][:, None] + span]
        is_same = (stored == looked_up).all(axis=1)
        numbers = numpy.full(len(first), -1)
        numbers[matches[is_same]] = phrase[is_same]
        return numbers

    def rows_of(self, tokens: Ids, ends: Ints) -> Ints:
        """Return the rows of the vectors of phrases (their ids, concatenated), or `NO_ROW`."""
        begins = prepend_zero(ends)[:-1]
        sizes = ends - begins
        hashes = RollingHash(tokens)
        rows = numpy.full(len(ends), NO_ROW)
        for size in numpy.unique(sizes).tolist():
            indices = numpy.flatnonzero(sizes == size)
            numbers = self.find(tokens, begins[indices], size, hashes)
            rows[indices[numbers >= 0]] = self.rows[numbers[numbers >= 0]]
        return rows
