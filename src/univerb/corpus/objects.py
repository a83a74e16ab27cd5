"""Immutable folders of files, each byte of which is covered by a checksum.

An object is written atomically, so one that exists is complete. Its list of checksums is covered
by a hash in the manifest; blocks are checked when they are first read, everything by `verify`.
"""

import errno
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy
from numpy.typing import DTypeLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.errors import CorpusError, CorruptCorpusError, first_line
from univerb.files import atomic_folder, map_array, read_regular

SUMS = "sums.json"
BLOCK = 1 << 12
"""Bytes per checksum: little to read for a single row, few checksums to store."""
_MAX_SUMS = 1 << 28
_DAMAGE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL),
    *(errno.EFBIG, errno.EIO, errno.ELOOP),
)

FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$", max_length=256)]
"""A path below the object's folder that cannot lead out of it."""


class StrictModel(BaseModel):
    """A value that was read from a file: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FileSums(StrictModel):
    """Size and checksums of a file."""

    size: int = Field(ge=0, le=1 << 48)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    blocks: str = Field(max_length=1 << 26, pattern=r"^[0-9a-f]*$")
    """CRC-32 of each block, as hexadecimal digits."""


class ObjectSums(StrictModel):
    """The checksums of all files of an object."""

    files: dict[FileName, FileSums]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each file."""
        return {name: sums.size for name, sums in self.files.items()}


class ObjectEntry(StrictModel):
    """An object's entry in a manifest."""

    name: str = Field(pattern=r"^[a-z]+-[0-9a-f]{32}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the object's list of checksums."""
    sizes: dict[FileName, int]
    """Of its files, checked when the corpus is opened."""


def write_object(root: Path, kind: str, key: str, write: Callable[[Path], None]) -> ObjectEntry:
    """Write an object, unless one with this key exists; return its entry for the manifest.

    The key is a hash of all that the content depends on; `write` fills a folder.
    """
    path = root / f"{kind}-{key[:32]}"
    if not path.is_dir():
        with atomic_folder(path) as folder:
            write(folder)
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            sums = {p.relative_to(folder).as_posix(): _file_sums(p) for p in files}
            content = ObjectSums(files=sums).model_dump_json()
            (folder / SUMS).write_text(content, encoding="utf-8")
    data, sums_read = _read_sums(path)
    sha256 = hashlib.sha256(data).hexdigest()
    return ObjectEntry(name=path.name, sha256=sha256, sizes=sums_read.sizes)


class StoredObject:
    """An object that is open for reading."""

    def __init__(self, root: Path, entry: ObjectEntry) -> None:
        self.folder = root / entry.name
        self.entry = entry
        self._checked: set[str] = set()

    def check_sizes(self) -> None:
        """Refuse the object if a file is missing or has another size than when it was written."""
        for name, size in self.entry.sizes.items():
            path = self.folder / name
            try:
                actual = path.stat().st_size
            except OSError as error:
                raise unreadable(path, error) from error
            if actual != size:
                raise corrupt(path, f"has {actual} bytes instead of {size}")

    @cached_property
    def sums(self) -> ObjectSums:
        """The object's checksums, read and checked on first use."""
        data, sums = _read_sums(self.folder)
        if hashlib.sha256(data).hexdigest() != self.entry.sha256:
            raise corrupt(self.folder / SUMS, "is not the one that was written")
        if sums.sizes != self.entry.sizes:
            raise corrupt(self.folder / SUMS, "names other files than the manifest")
        return sums

    def path(self, name: str) -> Path:
        """Return the path of a file after checking all its blocks."""
        path = self.folder / name
        if name not in self._checked:
            check_blocks(self.map(name), self.sums.files[name], path)
            self._checked.add(name)
        return path

    def array(
        self, name: str, dtype: DTypeLike | None = None, dimensions: int | None = None
    ) -> NDArray[Any]:
        """Return an array, memory-mapped, after checking all blocks of its file and its type."""
        path = self.path(f"{name}.npy")
        try:
            return map_array(path, dtype, dimensions)
        except OSError as error:
            raise unreadable(path, error) from error
        except Exception as error:  # numpy's reader of headers raises anything
            raise corrupt(path, f"is not the expected array: {first_line(error)}") from error

    def integers(self, name: str) -> NDArray[Any]:
        """Return an array of whole numbers of any size, as `array` does."""
        column = self.array(name, dimensions=1)
        if column.dtype.kind not in "iu":
            raise corrupt(self.folder / f"{name}.npy", f"holds {column.dtype}")
        return column

    def map(self, name: str) -> memoryview:
        """Map a file into memory, checking its size only."""
        path = self.folder / name
        if name not in self.sums.files:
            raise corrupt(path, "is not among the object's files")
        expected = self.sums.files[name].size
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected:
                    raise corrupt(path, f"has {size} bytes instead of {expected}")
                if not size:
                    return memoryview(b"")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise unreadable(path, error) from error

    def verify(self) -> int:
        """Check every byte against its SHA-256 and return the number of bytes."""
        self.check_sizes()
        for name, sums in self.sums.files.items():
            if hashlib.sha256(self.map(name)).hexdigest() != sums.sha256:
                raise corrupt(self.folder / name, "does not have the bytes that were written")
        return sum(self.sums.sizes.values())


def check_blocks(
    data: memoryview, sums: FileSums, path: Path, blocks: Iterable[int] | None = None
) -> None:
    """Compare blocks of a file, all by default, with their checksums."""
    count = -(-sums.size // BLOCK)
    if len(sums.blocks) != 8 * count or len(data) != sums.size:
        raise corrupt(path, "has another number of blocks than was written")
    for block in range(count) if blocks is None else blocks:
        crc = zlib.crc32(data[block * BLOCK : (block + 1) * BLOCK])
        if crc != int(sums.blocks[8 * block : 8 * block + 8], 16):
            raise corrupt(path, f"is damaged near byte {block * BLOCK}")


def within(values: NDArray[Any], low: int, high: int) -> bool:
    """Tell whether all numbers are at least `low` and less than `high`."""
    return not values.size or (low <= int(values.min()) and int(values.max()) < high)


def narrowed(column: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the smallest type that holds them."""
    if not column.size:
        return column
    types = (numpy.min_scalar_type(int(value)) for value in (column.min(), column.max()))
    return column.astype(numpy.result_type(*types), copy=False)


def corrupt(path: Path, problem: str) -> CorruptCorpusError:
    """Make the error for a damaged corpus."""
    return CorruptCorpusError(
        f"{str(path)!r} {problem}. Restore it from a copy of the corpus, or build the corpus again "
        "from its documents, into a new folder, with `univerb index`."
    )


def unreadable(path: Path, error: OSError) -> CorpusError:
    """Make the error for a file that is damaged, or that this process is only kept from reading."""
    if error.errno in _DAMAGE:
        return corrupt(path, f"is damaged: {os.strerror(error.errno)}")
    return CorpusError(
        f"{str(path)!r} cannot be read: {error.strerror}. The corpus may be whole: mend that, and "
        "try again."
    )


def _file_sums(path: Path) -> FileSums:
    whole, blocks, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            whole.update(data)
            blocks.append(f"{zlib.crc32(data):08x}")
            size += len(data)
    return FileSums(size=size, sha256=whole.hexdigest(), blocks="".join(blocks))


def _read_sums(folder: Path) -> tuple[bytes, ObjectSums]:
    """Return an object's list of checksums, as bytes and parsed."""
    path = folder / SUMS
    try:
        data = read_regular(path, _MAX_SUMS)
        return data, ObjectSums.model_validate_json(data)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValidationError as error:
        raise corrupt(path, "does not list checksums") from error
