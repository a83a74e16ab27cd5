"""A cache of phrase vectors that requests share, in memory and within a limit.

Rows lie in blocks of one array. A key costs a dict entry and no more: a block, not a key, knows
when it was last used, and the one that rested longest makes room for new rows.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from univerb.errors import OptionError

Key = tuple[int, ...]
Rows = NDArray[Any]

_BLOCK_ROWS = 1024
# A small cache is cut finer, or one request would push out the last.
_FEWEST_BLOCKS = 16


class VectorCache:
    """Input and output vectors of phrases, found by their token ids.

    All methods may be called by several threads. What was put in comes out bit for bit.
    """

    def __init__(self, capacity_bytes: int = 256 << 20) -> None:
        """Make an empty cache; memory is taken as it fills.

        Args:
            capacity_bytes: How much the vectors may take. 0 keeps nothing.

        Raises:
            OptionError: If it is negative.
        """
        if capacity_bytes < 0:
            raise OptionError(
                f"capacity_bytes is {capacity_bytes}. Give 0 to keep nothing, or how many bytes "
                "the vectors may take."
            )
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._forget(())

    def __len__(self) -> int:
        """Return how many phrases it has."""
        return len(self._row)

    def find(self, keys: Sequence[Key]) -> tuple[NDArray[numpy.int64], Rows, Rows]:
        """Look up vectors of phrases by their ids.

        Args:
            keys: The phrases' ids.

        Returns:
            Which of them are there, as places in `keys`; copies of their input and output vectors,
            one array if they are tied.
        """
        with self._lock:
            rows = numpy.fromiter((self._row.get(key, -1) for key in keys), numpy.int64, len(keys))
            places = numpy.flatnonzero(rows >= 0)
            rows = rows[places]
            if not rows.size:
                # One column fits any width where rows are assigned.
                none = numpy.empty((0, 1), numpy.float32)
                return places, none, none
            self._clock += 1
            self._used[rows // self._block_rows] = self._clock
            found = [side[rows] for side in self._sides]
        return places, found[0], found[-1]

    def add(self, keys: Sequence[Key], inputs: Rows, outputs: Rows) -> None:
        """Keep vectors, at the cost of those that were not used for the longest time.

        Args:
            keys: The phrases' ids; those that are there already are left as they are.
            inputs: Their input vectors (P, d).
            outputs: Their output vectors; the same object if they are tied.
        """
        sides = (inputs,) if inputs is outputs else (inputs, outputs)
        with self._lock:
            if [_kind(side) for side in sides] != [_kind(side) for side in self._sides]:
                self._forget(sides)
            fresh = {key: at for at, key in enumerate(keys) if key not in self._row}
            # What cannot stay would only push out what can.
            surplus = max(0, len(fresh) - len(self._used) * self._block_rows)
            self._write(list(fresh)[surplus:], sides, list(fresh.values())[surplus:])

    def clear(self) -> None:
        """Forget everything, as when the encoder changes."""
        with self._lock:
            self._forget(())

    def _forget(self, like: tuple[Rows, ...]) -> None:
        """Begin anew, with room for rows like these."""
        row_bytes = sum(side.shape[1] * side.itemsize for side in like)
        most = self.capacity_bytes // row_bytes if row_bytes else 0
        self._block_rows = max(1, min(_BLOCK_ROWS, most // _FEWEST_BLOCKS))
        blocks = most // self._block_rows
        shape = blocks * self._block_rows
        # The system gives memory to rows when they are first written.
        self._sides = tuple(numpy.empty((shape, side.shape[1]), side.dtype) for side in like)
        self._row: dict[Key, int] = {}
        self._keys: list[list[Key]] = [[] for _ in range(blocks)]
        """What each block holds, in order."""
        self._used = numpy.zeros(blocks, numpy.int64)
        """When each block was last used; 0 if it is empty."""
        self._clock = 0
        self._open = 0
        """The block that is being filled."""

    def _write(self, keys: list[Key], sides: tuple[Rows, ...], places: list[int]) -> None:
        self._clock += 1
        done = 0
        while done < len(keys):
            if len(self._keys[self._open]) == self._block_rows:
                self._make_room()
            held = self._keys[self._open]
            begin = self._open * self._block_rows + len(held)
            part = slice(done, done + self._block_rows - len(held))
            own = keys[part]
            rows = range(begin, begin + len(own))
            for target, side in zip(self._sides, sides, strict=True):
                target[rows.start : rows.stop] = side[places[part]]
            self._row.update(zip(own, rows, strict=True))
            held += own
            self._used[self._open] = self._clock
            done += len(own)

    def _make_room(self) -> None:
        """Open the block that rested longest; one that is empty comes first."""
        self._open = int(self._used.argmin())
        for key in self._keys[self._open]:
            del self._row[key]
        self._keys[self._open] = []


def _kind(side: Rows) -> tuple[int, numpy.dtype[Any]]:
    return side.shape[1], side.dtype
