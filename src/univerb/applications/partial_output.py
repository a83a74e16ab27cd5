"""A file of lines that survives an interruption: appended beside it, continued, then put in place.

The lines gather in `OUTPUT.partial`, whose first line says what they are the answer to. Each append
is on the disk before the next begins, so that a crash costs at most what was under way.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from univerb.errors import OptionError, UniverbError


class PartialOutput:
    """The lines of an output that is being written; use it in a `with` statement.

    Args:
        output: Where the lines go when all are there.
        header: What they depend on: lines that were written under another one are refused.
        restart: Drop what is there, the output too.
    """

    def __init__(self, output: Path, header: dict[str, object], restart: bool = False) -> None:
        self._output = output
        self._path = output.with_name(f"{output.name}.partial")
        self._header = json.dumps(header, sort_keys=True).encode() + b"\n"
        self._restart = restart
        self._file: BinaryIO

    def __enter__(self) -> Self:
        if self._output.exists() and not self._path.exists() and not self._restart:
            raise OptionError(
                f"{str(self._output)!r} exists. Name another output, or add --restart to replace "
                "it."
            )
        with self._writing():
            self._file = open(self._path, "ab+")
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, ids: Sequence[str], together: int = 1) -> int:
        """Keep the lines of an earlier run, up to the first that is torn or not the one expected.

        Args:
            ids: The `id` that each line must have.
            together: How many lines are made at a time; only whole groups of them are kept.

        Returns:
            How many lines are kept.
        """
        self._file.seek(len(self._header))
        at = end = self._file.tell()
        kept = 0
        for number, (line, expected) in enumerate(zip(self._file, ids, strict=False), 1):
            if not line.endswith(b"\n") or not _has_id(line, expected):
                break
            at += len(line)
            if number % together == 0 or number == len(ids):
                end, kept = at, number
        with self._writing():
            self._file.truncate(end)
        return kept

    def append(self, lines: Sequence[str]) -> None:
        """Add lines, and return when they are on the disk."""
        with self._writing():
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Put the lines in the output's place at once, and drop the partial file."""
        beside = self._path.with_name(f"{self._path.name}.tmp")
        with self._writing():
            self._file.seek(len(self._header))
            with open(beside, "wb") as whole:
                shutil.copyfileobj(self._file, whole)
                whole.flush()
                os.fsync(whole.fileno())
            os.replace(beside, self._output)
            self._file.close()
            self._path.unlink()

    def _begin(self) -> None:
        _lock(self._file, self._path)
        self._file.seek(0)
        found = self._file.readline()
        # A header that is torn has nothing after it.
        if self._restart or not found.endswith(b"\n"):
            with self._writing():
                self._file.truncate(0)
            self.append([self._header.decode().rstrip("\n")])
        elif found != self._header:
            raise OptionError(
                f"{str(self._path)!r} belongs to another input, other options or another version. "
                "Finish that job first, name another output, or add --restart to drop it."
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UniverbError(
                f"{str(self._output)!r} cannot be written: {error.strerror or error}. Correct that "
                "or name another output, and run it again: what is done stays done."
            ) from error


def _has_id(line: bytes, expected: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("id") == expected


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep a second run out; the lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OptionError(
            f"{str(path)!r} is being written by another run. Wait for it, or name another output."
        ) from None
