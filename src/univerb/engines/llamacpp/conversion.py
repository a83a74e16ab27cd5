"""A GGUF file of type Q4_1 converted to Q8_0, once, in the user's cache.

llama.cpp multiplies several rows at once with Q8_0, but not with Q4_1 on x86, and so reads a prompt
about twice as fast. The embedding matrices stay as they are: phrase vectors depend on them.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.gguf_parts import INPUT, OUTPUT
from univerb.engines.llamacpp.native import last_error, library
from univerb.errors import ModelError
from univerb.files import PATIENCE, atomic_path, exclusive_lock, remove_drafts
from univerb.locations import cache_directory

_Q4_1 = 3
"""GGML's number of the type."""


def as_q8_0(source: Path) -> GgufFile:
    """Open a GGUF file, or if its layers are Q4_1 its conversion, which is made if missing.

    Where the cache cannot be written, or the conversion fails, it is the file itself.
    """
    original = GgufFile(source)
    layers = original.matrices.keys() - {INPUT, OUTPUT}
    has_slow_layers = any(original.matrices[name].kind == _Q4_1 for name in layers)
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
    native = library()
    settings = native.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = native.LLAMA_FTYPE_MOSTLY_Q8_0, True
    # A matrix that has its type already is copied. Without an output matrix, the input's is tied.
    settings.token_embedding_type = original.matrices[INPUT].kind
    settings.output_tensor_type = original.matrices.get(OUTPUT, original.matrices[INPUT]).kind
    settings.nthread = 1  # it takes a second
    paths = os.fsencode(original.path), os.fsencode(draft)
    if native.llama_model_quantize(*paths, ctypes.byref(settings)):
        raise ModelError(f"{str(original.path)!r} cannot be converted: {last_error()}.")
