"""Vectors that requests had to encode, kept in the user's cache for later ones.

A corpus is only read: the phrases whose vectors it does not store are kept in one database, which
all corpora and processes share. It is a cache: whatever is wrong with it, phrases are encoded
again, and a row that is not what was written is not used.
"""

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy

from univerb.corpus.vector_rows import RowFormat, VectorRows
from univerb.locations import cache_directory
from univerb.phrases.hashing import Ints

CAPACITY = 256 << 20
"""Bytes of the database: some hundred requests."""
_SECONDS = 5.0
"""To wait for other processes that write."""
_CRC = 4
_CREATE = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, row BLOB)"
_FIND = "SELECT row FROM vectors WHERE key = ?"
_ADD = "INSERT OR IGNORE INTO vectors VALUES (?, ?)"
_DROP_OLDEST = (
    "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors ORDER BY rowid "
    "LIMIT 1 + (SELECT count(*) FROM vectors) / 8)"
)


class RequestVectors:
    """The vectors of one encoder's phrases in the user's cache.

    Args:
        fingerprint: The encoder's.
        layout: Of the rows.
        path: The database, if not in the user's cache.
        capacity: In bytes. The oldest vectors make room.
    """

    def __init__(
        self,
        fingerprint: str,
        layout: RowFormat,
        path: Path | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        self._layout = layout
        self._path = path or cache_directory() / "request-vectors.sqlite"
        self._capacity = capacity
        self._prefix = hashlib.sha256(f"{fingerprint} {layout}".encode()).digest()[:16]

    def find(self, keys: Sequence[tuple[int, ...]]) -> tuple[Ints, VectorRows, VectorRows]:
        """Return the indices of the keys that are cached, their input and output vectors."""
        found: dict[int, bytes] = {}

        size = self._layout.record.itemsize

        def read(database: sqlite3.Connection) -> None:
            for index, key in enumerate(keys):
                rows = database.execute(_FIND, (self._key(key),))
                if content := _checked(next(rows, (b"",))[0], size):
                    found[index] = content

        if self._path.is_file():
            self._try(read)
        records = numpy.frombuffer(b"".join(found.values()), self._layout.record)
        return numpy.array(list(found), dtype=numpy.int64), *self._layout.unpack(records)

    def add(
        self, keys: Sequence[tuple[int, ...]], sides: Sequence[VectorRows]
    ) -> tuple[VectorRows, VectorRows]:
        """Keep vectors (P, d), one side if tied; return them as `find` will."""
        records = self._layout.pack(sides)

        def write(database: sqlite3.Connection) -> None:
            contents = (_sealed(record.tobytes()) for record in records)
            with database:
                database.executemany(_ADD, zip(map(self._key, keys), contents, strict=True))
                self._make_room(database)

        if self._layout.are_finite(records):
            self._try(write)
        return self._layout.unpack(records)

    def _key(self, ids: tuple[int, ...]) -> bytes:
        return self._prefix + numpy.array(ids, "<u4").tobytes()

    def _make_room(self, database: sqlite3.Connection) -> None:
        """Drop an eighth of the vectors, the oldest, until the others fit."""
        while _used_bytes(database) > self._capacity and database.execute(_DROP_OLDEST).rowcount:
            pass

    def _try(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do something with the database; an error leaves it undone, and a damaged one goes."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_SECONDS)) as database:
                # A crash of the machine may tear it: what is lost is encoded again.
                database.execute("PRAGMA synchronous = OFF")
                database.execute(_CREATE)
                work(database)
        except (sqlite3.OperationalError, OSError):
            pass  # busy, full, or on a disk that nobody can write
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self._path.unlink()


def _used_bytes(database: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (database.execute(f"PRAGMA {n}").fetchone()[0] for n in names)
    return int((pages - free) * size)


def _sealed(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CRC, "little") + content


def _checked(row: object, size: int) -> bytes:
    """Return the content of a row, or nothing if it is not what was written."""
    if not isinstance(row, bytes) or len(row) != _CRC + size or row != _sealed(row[_CRC:]):
        return b""
    return row[_CRC:]
