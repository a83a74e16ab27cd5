"""What every verb that needs the model does first: find it, load it, keep transformers quiet."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from univerb.cli.console import errors, escape
from univerb.locations import DEFAULT_MODEL, is_converted, locate

if TYPE_CHECKING:
    from univerb.modeling.dynamic import DynamicLM


def load_model(
    name: str = DEFAULT_MODEL,
    *,
    adapter: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    offline: bool | None = None,
) -> "DynamicLM":
    """Load a model with a spinner on the terminal."""
    # Before torch is imported: a missing model must not cost its import first.
    locate(name, offline)
    if name == DEFAULT_MODEL and not is_converted():
        prepare_default()
    with errors.status(f"loading {escape(name)}"):
        import torch
        from transformers.utils import logging

        from univerb.modeling.dynamic import DynamicLM

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        if threads:
            torch.set_num_threads(threads)
        lm = DynamicLM.from_pretrained(
            name, adapter=adapter, device=device, dtype=dtype, offline=offline
        )
    # What is there now stays: garbage collection need not look at it again at every request.
    gc.freeze()
    return lm


def prepare_default() -> Path:
    """Convert the default model, saying what is going on."""
    from univerb.modeling.default_model import ensure_default

    return ensure_default(progress=lambda stage: errors.print(f"[dim]{stage} …[/]"))
