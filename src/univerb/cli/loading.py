"""`univerb.load` with a spinner on the terminal, for every verb that needs a model."""

import functools
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from univerb.cli.console import errors, escape
from univerb.cli.lean_transformers import import_transformers
from univerb.loading import engine_for, load
from univerb.locations import DEFAULT_MODEL, is_converted, is_gguf, locate
from univerb.threads import brief_spinning

_Load = TypeVar("_Load", bound=Callable[..., Any])
_SPINS = 10_000
"""Less than a millisecond: half as much processor time on a busy machine."""


def _with_spinner(load: _Load) -> _Load:
    @functools.wraps(load)
    def show_and_load(name: str = DEFAULT_MODEL, **options: Any) -> Any:  # noqa: ANN401
        # Before torch is imported: a missing model must not cost its import first.
        locate_prepared(name, options.get("offline"))
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        with errors.status(f"loading {escape(name)}"), _all_kept():
            return load(name, **options)

    return cast(_Load, show_and_load)


def _lean(load: _Load) -> _Load:
    @functools.wraps(load)
    def import_and_load(name: str = DEFAULT_MODEL, **options: Any) -> Any:  # noqa: ANN401
        # Other models may be quantised, or converted first: they need what is left out.
        is_usual = name == DEFAULT_MODEL and not (options.get("backbone") or options.get("adapter"))
        if is_usual and engine_for(name, options.get("engine"), options.get("gguf")) == "torch":
            with brief_spinning(_SPINS):
                import_transformers()
        return load(name, **options)

    return cast(_Load, import_and_load)


@contextmanager
def _all_kept() -> Iterator[None]:
    """Pause garbage collection, then take what there is for kept: modules and a model all stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


load_model = _with_spinner(load)
load_to_write = _with_spinner(_lean(load))
"""For verbs that only write, which start sooner without what else transformers brings in."""


def locate_prepared(name: str, offline: bool | None = None) -> Path | str:
    """Find a model by name: a GGUF file, or as `locate` does; the default is converted first."""
    if is_gguf(name):
        return Path(name).expanduser()
    where = locate(name, offline)
    return prepare_default() if name == DEFAULT_MODEL and not is_converted() else where


def prepare_default() -> Path:
    """Convert the default model, saying what is going on."""
    from univerb.modeling.default_model import ensure_default

    return ensure_default(progress=lambda stage: errors.print(f"[dim]{stage} …[/]"))
