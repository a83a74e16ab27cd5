"""Phrase vectors on disk: rows of one width, of which only those that are needed are read."""

import mmap
from collections.abc import Sequence

import numpy

from univerb.corpus.manifest import Manifest
from univerb.corpus.objects import BLOCK, StoredObject, check_blocks, corrupt
from univerb.corpus.vector_rows import Records, RowFormat, VectorRows
from univerb.phrases.hashing import Ints

ROWS = "rows.bin"
_TILE = 2048


class _Part:
    """The rows of one object."""

    def __init__(self, stored: StoredObject, layout: RowFormat) -> None:
        self._stored = stored
        self._data = stored.map(ROWS)
        self._layout = layout
        self._row_bytes = layout.record.itemsize
        if len(self._data) % self._row_bytes:
            raise corrupt(stored.folder / ROWS, "does not hold whole rows")
        self._rows = numpy.frombuffer(self._data, dtype=layout.record)
        self._is_checked = numpy.zeros(-(-len(self._data) // BLOCK), dtype=bool)

    def read(self, rows: Ints) -> Records:
        """Return a copy of rows, checking the blocks that have not been read before."""
        begin, end = rows * self._row_bytes, (rows + 1) * self._row_bytes - 1
        needed = numpy.unique(numpy.concatenate([begin // BLOCK, end // BLOCK]))
        if self._row_bytes > BLOCK:
            needed = numpy.arange(int(begin.min()) // BLOCK, int(end.max()) // BLOCK + 1)
        new = needed[~self._is_checked[needed]].tolist()
        check_blocks(self._data, self._stored.sums.files[ROWS], self._stored.folder / ROWS, new)
        self._is_checked[new] = True
        copied: Records = self._rows[rows]
        # Pages stay in the system's cache, but no longer count as this process's memory.
        if isinstance(self._data.obj, mmap.mmap):
            self._data.obj.madvise(mmap.MADV_DONTNEED)
        if not self._layout.are_finite(copied):
            raise corrupt(self._stored.folder / ROWS, "holds vectors that are not finite")
        return copied


class StoredVectors:
    """All vectors of a corpus, numbered across its objects."""

    def __init__(self, objects: Sequence[StoredObject], manifest: Manifest) -> None:
        self.layout = row_format(manifest)
        self._objects = list(objects)
        self._parts: dict[int, _Part] = {}
        row_bytes = self.layout.record.itemsize
        sizes = [stored.entry.sizes.get(ROWS, 0) // max(row_bytes, 1) for stored in self._objects]
        self.edges = numpy.cumsum([0, *sizes])
        """Row at which each object begins, and the end of the last."""

    def __len__(self) -> int:
        return int(self.edges[-1])

    def verify(self) -> None:
        """Read every row."""
        for begin in range(0, len(self), _TILE):
            self.read(numpy.arange(begin, min(begin + _TILE, len(self))))

    def read(self, rows: Ints) -> tuple[VectorRows, VectorRows]:
        """Return input and output vectors of rows in any order; one array if they are the same."""
        result = numpy.empty(len(rows), self.layout.record)
        order = numpy.argsort(rows, kind="stable")
        part = numpy.searchsorted(self.edges, rows[order], side="right") - 1
        for number in numpy.unique(part).tolist():
            indices = order[part == number]
            for begin in range(0, len(indices), _TILE):
                tile = indices[begin : begin + _TILE]
                result[tile] = self._part(number).read(rows[tile] - self.edges[number])
        return self.layout.unpack(result)

    def _part(self, number: int) -> _Part:
        if number not in self._parts:
            self._parts[number] = _Part(self._objects[number], self.layout)
        return self._parts[number]


def row_format(manifest: Manifest) -> RowFormat:
    """Return how a corpus lays out its vectors."""
    return RowFormat(manifest.settings.dtype, manifest.width, manifest.is_tied)
