"""A cache of phrase vectors that requests share, in memory and within a limit.

Rows are kept in blocks of one array, and blocks, not keys, are evicted least recently used first:
a key costs no more than a dict entry.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

Key = tuple[int, ...]
Matrix = NDArray[Any]

_BLOCK_ROWS = 1024
# A small cache has smaller blocks, or one request would push out the last.
_FEWEST_BLOCKS = 16


class VectorCache:
    """Input and output vectors of phrases, found by their token ids.

    Thread-safe. Vectors come out bit for bit as they were added. Memory is used as it fills, at
    most `capacity_bytes`; 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int = 256 << 20) -> None:
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._reset(())

    def __len__(self) -> int:
        """Return the number of phrases."""
        return len(self._row)

    def find(self, keys: Sequence[Key]) -> tuple[NDArray[numpy.int64], Matrix, Matrix]:
        """Return the indices of the keys that are cached, and copies of their vectors.

        Input and output vectors are one array if they are tied.
        """
        with self._lock:
            rows = numpy.fromiter((self._row.get(key, -1) for key in keys), numpy.int64, len(keys))
            indices = numpy.flatnonzero(rows >= 0)
            rows = rows[indices]
            if not rows.size:
                # One column fits any width where rows are assigned.
                empty = numpy.empty((0, 1), numpy.float32)
                return indices, empty, empty
            self._clock += 1
            self._used[rows // self._block_rows] = self._clock
            sides = [side[rows] for side in self._sides]
        return indices, sides[0], sides[-1]

    def add(self, keys: Sequence[Key], inputs: Matrix, outputs: Matrix) -> None:
        """Add vectors (P, d); those that were not used for the longest time make room.

        Keys that are cached already keep theirs. Tied vectors are one object for both sides.
        """
        sides = (inputs,) if inputs is outputs else (inputs, outputs)
        with self._lock:
            if [_kind(side) for side in sides] != [_kind(side) for side in self._sides]:
                self._reset(sides)
            new = {key: index for index, key in enumerate(keys) if key not in self._row}
            # More than the capacity would only push out each other.
            surplus = max(0, len(new) - len(self._used) * self._block_rows)
            self._write(list(new)[surplus:], sides, list(new.values())[surplus:])

    def clear(self) -> None:
        """Drop everything, as when the encoder changes."""
        with self._lock:
            self._reset(())

    def _reset(self, like: tuple[Matrix, ...]) -> None:
        """Drop everything and allocate buffers for vectors like these."""
        row_bytes = sum(side.shape[1] * side.itemsize for side in like)
        max_rows = self.capacity_bytes // row_bytes if row_bytes else 0
        self._block_rows = max(1, min(_BLOCK_ROWS, max_rows // _FEWEST_BLOCKS))
        blocks = max_rows // self._block_rows
        rows = blocks * self._block_rows
        # The system gives memory to rows when they are first written.
        self._sides = tuple(numpy.empty((rows, side.shape[1]), side.dtype) for side in like)
        self._row: dict[Key, int] = {}
        self._keys: list[list[Key]] = [[] for _ in range(blocks)]
        """The keys of each block, in order of its rows."""
        self._used = numpy.zeros(blocks, numpy.int64)
        """The clock at each block's last use; 0 if it is empty."""
        self._clock = 0
        self._open = 0
        """The block that is being filled."""

    def _write(self, keys: list[Key], sides: tuple[Matrix, ...], indices: list[int]) -> None:
        self._clock += 1
        while keys:
            if len(self._keys[self._open]) == self._block_rows:
                self._evict()
            block = self._keys[self._open]
            begin = self._open * self._block_rows + len(block)
            room = self._block_rows - len(block)
            rows = range(begin, begin + min(room, len(keys)))
            for buffer, side in zip(self._sides, sides, strict=True):
                buffer[rows.start : rows.stop] = side[indices[:room]]
            self._row.update(zip(keys[:room], rows, strict=True))
            block += keys[:room]
            self._used[self._open] = self._clock
            keys, indices = keys[room:], indices[room:]

    def _evict(self) -> None:
        """Open the least recently used block; empty ones come first."""
        self._open = int(self._used.argmin())
        for key in self._keys[self._open]:
            del self._row[key]
        self._keys[self._open] = []


def _kind(side: Matrix) -> tuple[int, numpy.dtype[Any]]:
    return side.shape[1], side.dtype
