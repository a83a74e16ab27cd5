"""What a model's folder may hold: plain files, safetensors and JSON, no code and no pickle.

Checked before transformers opens any of it, and without torch.
"""

import json
import re
from pathlib import Path
from typing import Any

from univerb.errors import ModelError
from univerb.files import read_regular

_MAX_JSON = 64 * 2**20
_INDEX = "model.safetensors.index.json"
_READ = (".json", ".safetensors", ".txt", ".model", ".jinja")
"""Endings of what transformers opens by itself."""
_COUNTED = re.compile("layer|head|expert|group|label")
_MAX_COUNT = 1024
"""Of layers, heads and the like, for each of which an object is made; large models have 128."""
_REDIRECTS = ("auto_map", "transformers_weights")
"""Settings that name code, or other weights."""


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is none."""
    try:
        value = json.loads(read_regular(path, _MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def refuse_unsafe(folder: Path) -> None:
    """Raise a ModelError if a folder has pickles for weights, names code, or leads elsewhere."""
    _check_files(folder)
    for name in ("config.json", "tokenizer_config.json"):
        settings = read_json_object(folder / name)
        if settings is None and (name == "config.json" or (folder / name).exists()):
            raise ModelError(
                f"{str(folder)!r} has no readable {name}. Give the folder that save_pretrained "
                "wrote."
            )
        _check_settings(settings or {}, f"{name} of {str(folder)!r}")
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{str(folder)!r} has an adapter_config.json, which would load another model. Give the "
            "model's own folder, without an adapter."
        )
    weight_files(folder)
    if not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        raise ModelError(
            f"{str(folder)!r} has pickled weights (.bin), which univerb never opens. "
            "Convert them to safetensors with save_pretrained."
        )


def _check_files(folder: Path) -> None:
    """Refuse links that lead out of the folder, and what is no regular file."""
    root = folder.resolve()
    # The Hub's cache keeps the files beside the folder of links.
    if root.parent.name == "snapshots" and root.parents[1].name.startswith("models--"):
        root = root.parents[1]
    for path in sorted(folder.iterdir()):
        if path.suffix not in _READ or path.is_dir():
            continue
        if not path.is_file() or not path.resolve().is_relative_to(root):
            raise ModelError(
                f"{str(path)!r} is no regular file of its folder, but a link that leads out of it, "
                "a pipe or a device. Give a folder with copies of the model's files."
            )


def _check_settings(settings: dict[str, Any], where: str) -> None:
    for key in _REDIRECTS:
        if key in settings:
            raise ModelError(
                f"{where} asks to run code of its own or to load other weights ({key}), which "
                "univerb never does. Use a model that transformers knows."
            )
    for key, value in settings.items():
        if isinstance(value, dict):
            _check_settings(value, where)
        elif isinstance(value, int) and value > _MAX_COUNT and _COUNTED.search(key):
            raise ModelError(
                f"{where} has {key} = {str(value)[:20]}; at most {_MAX_COUNT} is allowed. Get a "
                "fresh copy of the model."
            )


def weight_files(folder: Path) -> list[str]:
    """Return the names of a model's weights; a ModelError if they are not all in its folder."""
    if not (folder / _INDEX).exists():
        return ["model.safetensors"]
    weights = (read_json_object(folder / _INDEX) or {}).get("weight_map")
    names = sorted(set(map(str, weights.values()))) if isinstance(weights, dict) else [""]
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors") or "\\" in name:
            raise ModelError(
                f"{_INDEX} of {str(folder)!r} names the weights {name[:80]!r}; only .safetensors "
                "files of that folder are opened. Get a fresh copy of the model."
            )
    return names
