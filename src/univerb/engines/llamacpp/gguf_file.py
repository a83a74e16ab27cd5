"""The settings, the token list and rows of the matrices of a GGUF file.

The file is not trusted: every size in it is checked against the file before it is used, and before
llama.cpp opens it. The gguf package's reader makes an object of each of a hundred thousand strings,
which takes a second; here strings are skipped.
"""

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.errors import MissingExtra, ModelError, ModelMissing

_FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 16
"""Of settings or tensors; the largest models have some thousands."""
_MAX_ALIGNMENT = 1 << 16
_BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)},
    **{9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176)},
    **{14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98)},
    **{19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1)},
    **{25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2)},
    **{34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18)},
}
"""Numbers of a block, and its bytes, by GGML's type; the gguf package takes 0.15 s to import."""

Value = int | float | bool | str


class ListSpan(NamedTuple):
    """A list of the settings, which stays in the file until it is read."""

    kind: int
    length: int
    offset: int


class GgufMatrix(NamedTuple):
    """A matrix and the location of its bytes."""

    rows: int
    width: int
    kind: int
    """GGML's number of its type."""
    offset: int
    row_bytes: int


class GgufTensor(NamedTuple):
    """An entry of the file's list of tensors."""

    name: str
    shape: tuple[int, ...]
    """The innermost dimension first."""
    kind: int
    offset: int
    """From the beginning of the file."""
    size: int
    """In bytes."""


class GgufFile:
    """A GGUF file, read from the disk only where it is looked at."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise ModelError(
                f"{str(path)!r} is a folder. Give the GGUF file in it, whose name ends with .gguf."
            )
        if not path.is_file():
            raise ModelMissing(
                f"there is no file {str(path)!r}. Give a GGUF file, or leave it out for the "
                "default model (univerb setup)."
            )
        self.path = path
        self._offset = 0
        self.settings: dict[str, Value | ListSpan] = {}
        self.matrices: dict[str, GgufMatrix] = {}
        self.tensors: list[GgufTensor] = []
        self.tensors_offset = 0
        """Where the list of tensors begins."""
        self.alignment = 0
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._read()
        except (ValueError, KeyError, OSError, OverflowError, struct.error) as error:
            reason = str(error) or type(error).__name__
            raise ModelError(
                f"{str(path)!r} is no complete GGUF file: {reason[:120]}. Get a fresh copy; the "
                "default model's comes with: univerb setup --force"
            ) from error

    def cache_key(self, *more: object) -> str:
        """Return a name for what is computed from this version of the file and `more`."""
        status = self.path.stat()
        identity = [str(self.path.resolve()), status.st_size, status.st_mtime_ns]
        return hashlib.sha256(json.dumps([*identity, *more]).encode()).hexdigest()[:32]

    def number(self, name: str) -> int | None:
        """Return a whole number of the settings, or None if there is none."""
        value = self.settings.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        """Return a text of the settings; an empty one if there is none."""
        value = self.settings.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch of the settings."""
        value = self.settings.get(name)
        return value if isinstance(value, bool) else default

    def strings(self, name: str) -> list[bytes]:
        """Return a list of strings of the settings; an empty one if there is none."""
        span = self.settings.get(name)
        if not isinstance(span, ListSpan) or span.kind != _STRING:
            return []
        content, offset, strings = self._bytes, span.offset, []
        for _ in range(span.length):
            begin = offset + 8
            offset = begin + _LENGTH.unpack_from(content, offset)[0]
            strings.append(content[begin:offset])
        return strings

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a list of numbers of the settings; an empty one if there is none."""
        span = self.settings.get(name)
        if not isinstance(span, ListSpan) or span.kind == _STRING:
            return numpy.empty(0, numpy.int32)
        kind = numpy.dtype(_FORMATS[span.kind]).newbyteorder("<")
        return numpy.frombuffer(self._bytes, kind, span.length, span.offset)

    def rows(self, name: str, indices: Sequence[int] | slice) -> NDArray[numpy.float32]:
        """Return rows of a matrix, de-quantised to single precision, (n, width)."""
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError:
            raise MissingExtra("gguf", "llamacpp") from None
        matrix = self.matrices[name]
        size = matrix.rows * matrix.row_bytes
        whole = numpy.frombuffer(self._bytes, numpy.uint8, size, matrix.offset)
        packed = whole.reshape(matrix.rows, matrix.row_bytes)
        # A copy: types that need no widening would be views of the file.
        rows = numpy.array(packed[indices if isinstance(indices, slice) else list(indices)])
        return dequantize(rows, GGMLQuantizationType(matrix.kind))

    def _read(self) -> None:
        magic, version = self._unpack("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r}, version {version}")
        tensors, settings = self._unpack("QQ")
        if max(tensors, settings) > _MAX_ENTRIES:
            raise ValueError(f"it claims {tensors} tensors and {settings} settings")
        for _ in range(settings):
            name = self._string().decode()
            (kind,) = self._unpack("I")
            self.settings[name] = self._list() if kind == _ARRAY else self._value(kind)
        self.tensors_offset = self._offset
        entries = [self._tensor() for _ in range(tensors)]
        self.alignment = alignment = self.number("general.alignment") or 32
        # ggml ends the process at a tensor that is aligned to less than 32 bytes.
        if not 32 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment}")
        begin = -(-self._offset // alignment) * alignment
        for name, shape, kind, offset in entries:
            self._add_tensor(name, shape, kind, begin + offset)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string().decode()
        (dimensions,) = self._unpack("I")
        if dimensions > 4:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = self._unpack(f"{dimensions}Q")
        kind, offset = self._unpack("IQ")
        return name, shape, kind, offset

    def _add_tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        """Check that a tensor is inside the file, and add it if it is a matrix."""
        if kind not in _BLOCKS:
            raise ValueError(f"{name} has the type {kind}, which is not known")
        block, block_bytes = _BLOCKS[kind]
        width = shape[0] if shape else 1
        rows = math.prod(shape[1:])
        row_bytes = width // block * block_bytes
        if width % block or min(shape, default=1) < 1:
            raise ValueError(f"{name} has the shape {shape}")
        if offset + rows * row_bytes > len(self._bytes):
            raise ValueError(f"{name} ends behind the end of the file")
        self.tensors.append(GgufTensor(name, shape, kind, offset, rows * row_bytes))
        if len(shape) == 2:
            self.matrices[name] = GgufMatrix(rows, width, kind, offset, row_bytes)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string().decode(errors="replace")
        value: Value = self._unpack(_FORMATS[kind])[0]
        return value

    def _list(self) -> ListSpan:
        kind, count = self._unpack("IQ")
        span = ListSpan(kind, count, self._offset)
        # The minimum size of an entry; a string's length is checked when it is skipped.
        size = 8 if kind == _STRING else struct.calcsize(_FORMATS[kind])
        if count * size > len(self._bytes) - self._offset:
            raise ValueError(f"a list of {count} entries ends behind the end of the file")
        if kind == _STRING:
            self._skip_strings(count)
        else:
            self._offset += count * size
        return span

    def _skip_strings(self, count: int) -> None:
        # There are hundreds of thousands: no call for each. A length that leads out of the file
        # makes the next one unreadable.
        content, offset = self._bytes, self._offset
        for _ in range(count):
            offset += 8 + _LENGTH.unpack_from(content, offset)[0]
        if offset > len(content):
            raise ValueError("a text ends behind the end of the file")
        self._offset = offset

    def _string(self) -> bytes:
        (length,) = _LENGTH.unpack_from(self._bytes, self._offset)
        self._offset += 8
        end = self._offset + int(length)
        if end > len(self._bytes):
            raise ValueError("a text ends behind the end of the file")
        content = self._bytes[self._offset : end]
        self._offset = end
        return content

    def _unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._bytes, self._offset)
        self._offset += struct.calcsize(f"<{form}")
        return values
