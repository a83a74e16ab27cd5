"""transformers without what only compilers, clusters and training need, for a command's process.

Its modules ask for torch's compiler, for tensors that are spread over machines, and for scipy and
others where they are installed: all that takes longer to import than torch itself, and 120 MB. A
command that writes text uses none of it. Programs that import univerb get transformers as it is.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_UNUSED = ("PIL", "accelerate", "scipy")
"""Packages that transformers imports where they are installed."""
_MARKS = ("allow_in_graph", "assume_constant_result", "disable")
"""Decorators of `torch._dynamo`, which tell the compiler how to treat a function."""


class _DeferredPackage(ModuleType):
    """A package whose own code is run when a name is asked for that it does not have yet."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (of any type)
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(sys.modules[self.__name__], name)


def import_transformers() -> None:
    """Import torch and transformers to generate only, unless transformers is imported already.

    Until the process ends, transformers then takes what was left out for not installed. What goes
    wrong here goes wrong for a new version of torch or transformers: both are then imported whole.
    """
    import torch

    if "transformers" in sys.modules:
        return
    is_distributed = torch.distributed.is_available
    try:
        with _hidden(_UNUSED):
            _import_lean()
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
    finally:
        torch.distributed.is_available = is_distributed
        _forget_deferred("torch._dynamo")


def _import_lean() -> None:
    import torch

    _defer("torch._dynamo", **dict.fromkeys(_MARKS, _unmarked))
    torch.distributed.is_available = lambda: False
    # It remembers the answer when it first asks.
    importlib.import_module("transformers").utils.is_torch_distributed_available()
    # Its own code would look through the files of all models a second time.
    _defer("transformers.models")
    importlib.import_module("transformers.modeling_utils")
    importlib.import_module("transformers.masking_utils")


def _forget_deferred(package: str) -> None:
    """Forget a package that was deferred, and its modules, so that who asks gets it whole."""
    if not isinstance(sys.modules.get(package), _DeferredPackage):
        return
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]
    parent, _, name = package.rpartition(".")
    delattr(sys.modules[parent], name)


def _unmarked(function: Any = None, *_: object, **__: object) -> Any:  # noqa: ANN401  (a decorator)
    """Return a function as it is, or a decorator that does."""
    return _unmarked if function is None else function


def _defer(package: str, **names: object) -> None:
    """Make a package known with some names; its modules can be imported without running it."""
    spec = find_spec(package)
    if spec is None or package in sys.modules:
        return
    deferred = module_from_spec(spec)
    deferred.__class__ = _DeferredPackage
    vars(deferred).update(names)
    sys.modules[package] = deferred
    parent, _, name = package.rpartition(".")
    setattr(sys.modules[parent], name, deferred)


@contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Let packages seem not to be installed, unless they are imported already."""
    absent = [name for name in packages if name not in sys.modules]
    # None is how Python notes that a module cannot be imported.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
