"""`univerb info`: versions, model, cache and threads, for a bug report or a benchmark."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from univerb import locations
from univerb._version import __version__
from univerb.cli.console import console, print_json

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "llama-cpp-python",
    "xllamacpp",
)


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which versions, model, cache and threads are in use."""
    facts = _facts()
    if as_json:
        print_json({"schema_version": 1, **facts})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        lines = [value]
        if isinstance(value, dict):
            lines = [f"{kind}: {detail}" for kind, detail in value.items()] or ["not measured yet"]
        for line in lines:
            table.add_row(Text(name, style="dim"), Text(str(line), overflow="fold"))
    console.print(table)


def _facts() -> dict[str, Any]:
    import torch

    from univerb.engines.llamacpp.binding import is_installed
    from univerb.engines.row_timing import known_costs
    from univerb.threads import thread_count

    cache = locations.cache_directory()
    state = "weights installed, not converted" if locations.default_gguf() else "missing"
    return {
        "univerb": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in (*_PACKAGES, locations.WEIGHTS_PACKAGE)},
        "model": locations.DEFAULT_MODEL,
        "model state": "ready" if locations.is_converted() else f"{state}; run: univerb setup",
        "phrase encoder": str(locations.packaged_encoder(locations.DEFAULT_MODEL)),
        "cache": str(cache),
        "cache MB": round(sum(f.stat().st_size for f in cache.rglob("*") if f.is_file()) / 1e6),
        "cpu cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "llama.cpp threads": thread_count(None),
        "engines": "torch, llamacpp" if is_installed() else "torch",
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "offline": locations.is_offline(),
        "row costs": {name: repr(costs) for name, costs in known_costs().items()},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
