"""Immutable folders of files, each byte of which is covered by a checksum.

An object is written under a temporary name and renamed when it is complete, so one that exists is
whole. Its list of checksums is covered by a hash that the manifest keeps; blocks are checked when
they are first touched, everything by `verify`.
"""

import errno
import hashlib
import json
import mmap
import os
import shutil
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.errors import CorruptCorpusError

SUMS = "sums.json"
BLOCK = 1 << 12
"""Bytes that one checksum covers: little to read for a single row, few sums to keep."""
_MAX_SUMS = 1 << 28

Write = Callable[[Path], None]
FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$", max_length=256)]
"""A path below the object's folder: no way leads out of it."""


class FileSums(BaseModel):
    """What is known of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0, le=1 << 48)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    blocks: str = Field(max_length=1 << 26)
    """CRC-32 of each block, as hexadecimal digits."""


class ObjectSums(BaseModel):
    """The checksums of all files of an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[FileName, FileSums]


class ObjectEntry(BaseModel):
    """How a manifest names an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z]+-[0-9a-f]{32}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the object's list of checksums."""
    sizes: dict[FileName, int]
    """Of its files, checked when the store is opened."""


def write_object(root: Path, kind: str, key: str, write: Write) -> ObjectEntry:
    """Write an object, unless one with this key is there already.

    Args:
        root: The folder of all objects.
        kind: What it holds, in one word.
        key: A hash of everything its content depends on.
        write: Writes its files into a folder.

    Returns:
        The entry for the manifest.
    """
    final = root / f"{kind}-{key[:32]}"
    if not final.is_dir():
        # Workers on other machines may have the same process id.
        draft = root / f".{final.name}.{uuid.uuid4().hex}"
        draft.mkdir(parents=True)
        try:
            _fill(draft, write)
            os.replace(draft, final)
        except BaseException as error:
            # Where the disk is full, half an object must not keep it so.
            shutil.rmtree(draft, ignore_errors=True)
            is_there = isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not (is_there and final.is_dir()):
                raise
        sync(root)
    return entry_of(final)


def _fill(draft: Path, write: Write) -> None:
    write(draft)
    files = sorted(p for p in draft.rglob("*") if p.is_file())
    sums = ObjectSums(files={p.relative_to(draft).as_posix(): file_sums(p) for p in files})
    (draft / SUMS).write_text(sums.model_dump_json(), encoding="utf-8")
    for path in [*files, draft / SUMS]:
        sync(path)
    sync(draft)


def entry_of(folder: Path) -> ObjectEntry:
    """Describe an object that lies on disk."""
    data = _read_sums(folder)
    sums = _parsed(data, folder)
    sizes = {name: one.size for name, one in sums.files.items()}
    return ObjectEntry(name=folder.name, sha256=hashlib.sha256(data).hexdigest(), sizes=sizes)


class StoredObject:
    """An object that is open for reading."""

    def __init__(self, root: Path, entry: ObjectEntry) -> None:
        self.folder = root / entry.name
        self.entry = entry
        self._sums: ObjectSums | None = None
        self._checked: set[str] = set()

    def check_sizes(self) -> None:
        """Refuse the object if a file is missing or has another size than when it was written."""
        for name, size in self.entry.sizes.items():
            path = self.folder / name
            try:
                found = path.stat().st_size
            except OSError as error:
                raise corrupt(
                    path, "is missing, or the corpus was changed while it was open: open it again"
                ) from error
            if found != size:
                raise corrupt(path, f"has {found} bytes instead of {size}")

    @property
    def sums(self) -> ObjectSums:
        """The object's checksums, read and checked when they are first needed."""
        if self._sums is None:
            data = _read_sums(self.folder)
            if hashlib.sha256(data).hexdigest() != self.entry.sha256:
                raise corrupt(self.folder / SUMS, "is not the one that was written")
            sums = _parsed(data, self.folder)
            if {name: one.size for name, one in sums.files.items()} != self.entry.sizes:
                raise corrupt(self.folder / SUMS, "names other files than the manifest")
            self._sums = sums
        return self._sums

    def path(self, name: str) -> Path:
        """Return the path of a file after every block of it has been checked."""
        path = self.folder / name
        if name not in self._checked:
            mapped = self.map(name)
            check_blocks(mapped, self.sums.files[name], path, None)
            self._checked.add(name)
        return path

    def array(self, name: str) -> NDArray[Any]:
        """Return an array, memory-mapped, after every block of its file has been checked."""
        path = self.path(f"{name}.npy")
        try:
            return numpy.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (OSError, ValueError) as error:
            raise corrupt(path, "is no array") from error

    def map(self, name: str) -> memoryview:
        """Map a file into memory, unchecked but for its size."""
        path = self.folder / name
        if name not in self.sums.files:
            raise corrupt(path, "is not among the object's files")
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.sums.files[name].size:
                    raise corrupt(path, f"has {size} bytes instead of {self.sums.files[name].size}")
                if not size:
                    return memoryview(b"")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise corrupt(path, f"cannot be read ({error.strerror})") from error

    def verify(self) -> int:
        """Check every byte against its SHA-256 and return how many there were."""
        self.check_sizes()
        for name, sums in self.sums.files.items():
            if sha256_of(self.folder / name) != sums.sha256:
                raise corrupt(self.folder / name, "does not have the bytes that were written")
        return sum(sums.size for sums in self.sums.files.values())


def check_blocks(data: memoryview, sums: FileSums, path: Path, blocks: "list[int] | None") -> None:
    """Compare blocks of a file with their checksums.

    Args:
        data: The file's bytes.
        sums: What they should be.
        path: Names the file in errors.
        blocks: Which blocks; None for all.

    Raises:
        CorruptCorpusError: If one differs.
    """
    count = -(-sums.size // BLOCK)
    if len(sums.blocks) != 8 * count or len(data) != sums.size:
        raise corrupt(path, "has another number of blocks than was written")
    for block in range(count) if blocks is None else blocks:
        found = zlib.crc32(data[block * BLOCK : (block + 1) * BLOCK])
        if found != int(sums.blocks[8 * block : 8 * block + 8], 16):
            raise corrupt(path, f"is damaged near byte {block * BLOCK}")


def file_sums(path: Path) -> FileSums:
    """Compute the checksums of a file."""
    whole, blocks, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            whole.update(data)
            blocks.append(f"{zlib.crc32(data):08x}")
            size += len(data)
    return FileSums(size=size, sha256=whole.hexdigest(), blocks="".join(blocks))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Bring a file or the names in a folder onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def corrupt(path: Path, problem: str) -> CorruptCorpusError:
    """Make the error for a damaged store."""
    return CorruptCorpusError(
        f"{str(path)!r} {problem}. Restore the file, or delete the store and build it again with "
        "`univerb index`."
    )


def _read_sums(folder: Path) -> bytes:
    path = folder / SUMS
    try:
        if path.stat().st_size > _MAX_SUMS:
            raise corrupt(path, "is larger than any that is written")
        return path.read_bytes()
    except OSError as error:
        raise corrupt(path, "is missing") from error


def _parsed(data: bytes, folder: Path) -> ObjectSums:
    try:
        return ObjectSums.model_validate(json.loads(data))
    except (ValueError, RecursionError, ValidationError) as error:
        raise corrupt(folder / SUMS, "cannot be read") from error
