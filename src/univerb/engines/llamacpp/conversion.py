"""A GGUF file of type Q4_1 converted to Q8_0, once, in the user's cache.

llama.cpp multiplies several rows at once with Q8_0, but not with Q4_1 on x86, and so reads a prompt
about twice as fast. The embedding matrices stay as they are: phrase vectors depend on them.
"""

import math
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from univerb.engines.llamacpp.gguf_checks import INPUT, OUTPUT
from univerb.engines.llamacpp.gguf_file import GgufFile, GgufTensor
from univerb.errors import ModelError
from univerb.files import PATIENCE, atomic_path, exclusive_lock, remove_drafts
from univerb.locations import cache_directory

_Q4_1, _Q8_0 = 3, 8
"""GGML's numbers of the types."""
_CONVERTED_VALUES = 1 << 18
"""Numbers that are converted at once: a megabyte of them."""
_COPIED_BYTES = 1 << 22


def as_q8_0(source: Path) -> GgufFile:
    """Open a GGUF file, or if its layers are Q4_1 its conversion, which is made if missing.

    Where the cache cannot be written, or the conversion fails, it is the file itself.
    """
    original = GgufFile(source)
    has_slow_layers = any(_is_slow(name, original) for name in original.matrices)
    if not has_slow_layers or INPUT not in original.matrices:
        return original
    target = cache_directory() / "gguf" / f"{original.cache_key()}.Q8_0.gguf"
    return _opened(target) or _converted(original, target) or original


def _opened(path: Path) -> GgufFile | None:
    """Open a file, unless it is missing or damaged."""
    try:
        return GgufFile(path)
    except ModelError:
        return None


def _converted(original: GgufFile, target: Path) -> GgufFile | None:
    """Convert a file and open the result; None if that cannot be done here."""
    busy = ModelError(f"{str(target)!r} is being written.")
    with suppress(ModelError, OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(target.parent / ".lock", busy, PATIENCE):
            if finished_meanwhile := _opened(target):
                return finished_meanwhile
            remove_drafts(target.parent)
            with atomic_path(target) as draft:
                _convert(original, draft)
        return GgufFile(target)
    return None


def _convert(original: GgufFile, draft: Path) -> None:
    """Write the file again, its layers as Q8_0; settings and tokens are copied byte for byte."""
    tensors = [_planned(tensor, original) for tensor in original.tensors]
    with draft.open("wb") as output, original.path.open("rb") as source:
        output.write(source.read(original.tensors_offset))
        offset = 0
        for tensor in tensors:
            name, shape = tensor.name.encode(), tensor.shape
            output.write(struct.pack("<Q", len(name)) + name)
            output.write(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.kind, offset))
            offset += _padded(tensor.size, original.alignment)
        for tensor in tensors:
            output.write(bytes(-output.tell() % original.alignment))
            for part in _content(tensor, original, source):
                output.write(part)


def _planned(tensor: GgufTensor, original: GgufFile) -> GgufTensor:
    """Return a tensor as it is to become; its offset stays the original's."""
    if not _is_slow(tensor.name, original):
        return tensor
    return tensor._replace(kind=_Q8_0, size=math.prod(tensor.shape) // 32 * 34)


def _content(tensor: GgufTensor, original: GgufFile, source: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a tensor, some megabytes at a time."""
    if not _is_slow(tensor.name, original):
        for begin in range(0, tensor.size, _COPIED_BYTES):
            source.seek(tensor.offset + begin)
            yield source.read(min(_COPIED_BYTES, tensor.size - begin))
        return
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    rows, width = original.matrices[tensor.name][:2]
    step = max(1, _CONVERTED_VALUES // width)
    for begin in range(0, rows, step):
        plain = original.rows(tensor.name, slice(begin, begin + step))
        yield quantize(plain, GGMLQuantizationType(_Q8_0)).tobytes()


def _is_slow(name: str, file: GgufFile) -> bool:
    """Whether this is a matrix of a layer that llama.cpp multiplies row by row."""
    matrix = file.matrices.get(name)
    return matrix is not None and matrix.kind == _Q4_1 and name not in (INPUT, OUTPUT)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
