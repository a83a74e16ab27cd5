"""What every verb that needs the model does first: find it, load it, keep transformers quiet."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from univerb.cli.console import errors, escape
from univerb.cli.options import EngineName
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL, is_converted, locate
from univerb.threads import thread_count

if TYPE_CHECKING:
    from univerb.engines.llamacpp.lm import LlamaCppLM
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
    """Load a model for the torch engine with a spinner on the terminal."""
    chosen = thread_count(threads) if threads is not None else None
    _prepare(name, offline)
    with errors.status(f"loading {escape(name)}"):
        import torch
        from transformers.utils import logging

        from univerb.modeling.dynamic import DynamicLM

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        if chosen:
            torch.set_num_threads(chosen)
        lm = DynamicLM.from_pretrained(
            name, adapter=adapter, device=device, dtype=dtype, offline=offline
        )
    # What is there now stays: garbage collection need not look at it again at every request.
    gc.freeze()
    return lm


def load_any(
    name: str,
    engine: EngineName,
    *,
    adapter: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    offline: bool | None = None,
) -> "DynamicLM | LlamaCppLM":
    """Load a model for whatever engine was asked for."""
    if engine is EngineName.torch:
        return load_model(
            name, adapter=adapter, device=device, dtype=dtype, threads=threads, offline=offline
        )
    if adapter or device != "cpu" or dtype != "float32":
        raise OptionError("--adapter, --device and --dtype are for the torch engine. Drop them.")
    _prepare(name, offline)
    with errors.status(f"loading {escape(name)}"):
        from univerb.engines.llamacpp.lm import LlamaCppLM

        return LlamaCppLM.from_pretrained(name, threads=threads, offline=offline)


def _prepare(name: str, offline: bool | None) -> None:
    # Before torch is imported: a missing model must not cost its import first.
    locate(name, offline)
    if name == DEFAULT_MODEL and not is_converted():
        prepare_default()


def prepare_default() -> Path:
    """Convert the default model, saying what is going on."""
    from univerb.modeling.default_model import ensure_default

    return ensure_default(progress=lambda stage: errors.print(f"[dim]{stage} …[/]"))
