"""Files that survive a crash: atomic writes, locks, and JSON lines that can be continued.

Also readers of files that somebody else may have written: nothing in them is trusted.

Errors of the disk pass through as OSError: only the caller knows what the file was for.
"""

import errno
import json
import math
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from univerb.errors import OptionError, UniverbError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


PATIENCE = 5.0
"""Seconds to wait for a process that has a file for a moment."""
_MAX_NPY_HEADER = 4096
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type>[<>|][iuf]\d+)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>[\d, ]{0,60})\), \} *\n",
    re.DOTALL,
)
"""Version 1.0, as numpy writes it for arrays of plain numbers."""


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file in one step: readers see the old content or the new, never a part of it."""
    with atomic_path(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to; the file replaces `path` when the block ends.

    It is on the disk by then. If the block raises, `path` stays as it was. A link stays a link.
    """
    path = path.resolve()
    draft = _draft_of(path)
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
    except BaseException:
        # On a full disk, half a file must not keep it full.
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill; it becomes `path` when the block ends.

    A folder that exists by then is replaced with `replace=True`. Otherwise it stays and the new
    one is dropped: another process has written the same content first.
    """
    draft, previous = _draft_of(path), _draft_of(path)
    draft.mkdir(parents=True)
    try:
        yield draft
        for entry in [*draft.rglob("*"), draft]:
            sync(entry)
        if replace and path.exists():
            os.replace(path, previous)
        try:
            os.replace(draft, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        if previous.exists() and not path.exists():
            # Interrupted between the two renames: the old folder is all that there is.
            os.replace(previous, path)
        for leftover in (draft, previous):
            shutil.rmtree(leftover, ignore_errors=True)
    sync(path.parent)


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Delete what killed writers of `name` left in a folder, while no other process writes it."""
    for path in folder.glob(f".{name}.*.draft"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, onto the disk."""
    if os.name == "nt":  # cannot open folders, nor sync what is open for reading only
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path, busy: UniverbError, wait: float = 0) -> Iterator[None]:
    """Hold a lock file, or raise `busy` if another process (or this one) still holds it.

    It is asked again for `wait` seconds. The lock ends with the process, however that ends; the
    file stays.
    """
    try:
        held = FileLock(path, thread_local=False).acquire(timeout=wait)
    except Timeout:
        raise busy from None
    with held:
        yield


def lock_shared(path: Path) -> int:
    """Open a file and share a lock on it with others until the descriptor is closed.

    The lock ends with the process, however that ends. It needs no right to write. Where the disk
    or the system knows no such locks, the file is open without one. A file that is not there, or
    that was deleted while somebody had it alone, raises FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        _share(descriptor, path)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _share(descriptor: int, path: Path) -> None:
    """Share a lock on an open file, waiting for those who have it alone, but not for ever."""
    deadline = time.monotonic() + PATIENCE
    while sys.platform != "win32":
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = "another process has locked it"
                raise BlockingIOError(errno.EAGAIN, reason, str(path)) from None
            time.sleep(0.01)
        except OSError:  # a disk without locks
            return None


@contextmanager
def lock_alone(path: Path) -> Iterator[bool]:
    """Yield whether nobody shares a lock on a file; nobody gets one before the block ends.

    A file that this process may not write counts as shared, one that is not there does not.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        yield error.errno == errno.ENOENT
        return
    try:
        is_alone = True
        if sys.platform != "win32":
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # others: a disk without locks
                is_alone = error.errno not in (errno.EAGAIN, errno.EACCES)
        yield is_alone
    finally:
        os.close(descriptor)


def read_regular(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes; a pipe or a device, which may never end, is refused."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.read(limit)


def map_array(
    path: Path, dtype: "DTypeLike | None" = None, dimensions: int | None = None
) -> "NDArray[Any]":
    """Map a .npy file of plain numbers into memory, if it is what was asked for."""
    import numpy

    # Not with numpy's reader: Python's parser, which it uses, can fail where threads take turns.
    with path.open("rb") as file:
        header = _NPY_HEADER.match(file.read(_MAX_NPY_HEADER))
        size = os.fstat(file.fileno()).st_size
    if header is None:
        raise ValueError("its header is not that of plain numbers")
    given = numpy.dtype(header["type"].decode())
    shape = tuple(map(int, re.findall(rb"\d+", header["shape"])))
    offset = header.end()
    if not given.isnative or (dtype is not None and given != dtype):
        raise ValueError(f"it holds {given}")
    if len(shape) > 2 or (dimensions is not None and len(shape) != dimensions):
        raise ValueError(f"it has {len(shape)} dimensions")
    if offset + math.prod(shape) * given.itemsize != size:
        raise ValueError("its shape does not fit its size")
    return numpy.memmap(path, given, "r", offset, shape)


class JsonLines(AbstractContextManager["JsonLines"]):
    """A file of JSON objects, one per line, that can be continued after a kill.

    A last line that a kill tore is cut off on opening. A file with any other line that is no JSON
    object is refused and stays as it is. Only one process at a time can open the file. Iterating
    yields the rows, without the header.

    Args:
        path: The file; made if missing.
        header: What the rows depend on: the first line. A file with another header is refused.
        restart: Drop what the file has.

    Raises:
        OptionError: If the file is open elsewhere, or refused.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any] | None = None, *, restart: bool = False
    ) -> None:
        self._path = path
        self._lock_path = path.with_name(f".{path.name}.lock")
        busy = OptionError(f"{str(path)!r} is in use. Wait for that run, or name another file.")
        with ExitStack() as stack:
            stack.enter_context(exclusive_lock(self._lock_path, busy))
            if restart or not path.exists():
                atomic_write(path, b"")
            # First, so that a file of somebody else stays as it is.
            self._rows_begin = self._check_header(_encoded(header)) if header else 0
            self._cut_torn_line()
            self._locked = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._rows_begin)
            yield from map(json.loads, file)

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows: they are on the disk when this returns, and not in the file if it raises."""
        size = self._path.stat().st_size
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(map(_encoded, rows)))
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.truncate(self._path, size)
            raise

    def truncate(self, count: int) -> None:
        """Drop all rows but the first `count`."""
        with self._path.open("rb+") as file:
            file.seek(self._rows_begin)
            for _ in range(count):
                file.readline()
            file.truncate(file.tell())

    def publish(self, target: Path) -> None:
        """Write the rows, without the header, to `target` in one step, and delete this file."""
        with atomic_path(target) as draft, self._path.open("rb") as rows, draft.open("wb") as file:
            rows.seek(self._rows_begin)
            shutil.copyfileobj(rows, file)
        self._path.unlink()
        self._lock_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let other processes open the file."""
        self._locked.close()

    def _cut_torn_line(self) -> None:
        with self._path.open("rb+") as file:
            for number, line in enumerate(file, start=1):
                is_torn = not line.endswith(b"\n")
                if is_torn and _is_object(line):
                    file.write(b"\n")
                elif is_torn and b'{"'.startswith(line[:2]):  # begins like a row
                    file.truncate(file.tell() - len(line))
                elif not _is_object(line):
                    raise self._refused(f"has no JSON object in line {number}")

    def _check_header(self, header: bytes) -> int:
        with self._path.open("rb") as file:
            first = file.readline(len(header))
        if not header.startswith(first):
            raise self._refused("is of another input, other options or another version")
        if first != header:  # torn, or empty
            atomic_write(self._path, header)
        return len(header)

    def _refused(self, problem: str) -> OptionError:
        return OptionError(f"{str(self._path)!r} {problem}. Move it away, or name another file.")


def _draft_of(path: Path) -> Path:
    # Not the process id: on a shared disk, a process of another machine may have the same.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")


def _encoded(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
