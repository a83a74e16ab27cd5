"""Row costs of a model on this machine: measured once, kept in the user's cache."""

import hashlib
import json
import platform
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from univerb.engines.base import Session
from univerb.engines.row_costs import RowCosts, assumed_costs
from univerb.errors import OptionError, UniverbError
from univerb.files import atomic_write, exclusive_lock, read_regular
from univerb.locations import cache_directory

_SIZES = (1, 2, 3, 4, 6, 8, 16, 32)
_REPEATS = 4
_CONTEXT = 128
"""Tokens before the rows that are timed."""
_MAX_BYTES = 1 << 16
_PATIENCE = 60.0
"""Seconds to wait for a process that is measuring."""
_FORMAT = 2
_measuring = threading.Lock()
_known: dict[Path, RowCosts] = {}
"""What this process has read or measured: also where the cache cannot be written."""


def row_costs(
    begin: Callable[[], Session], context_size: int, label: str, *identity: object
) -> RowCosts:
    """Return what passes cost: as given, as measured before, or measured now.

    Args:
        begin: Begins a session to measure.
        context_size: Number of positions that the LM can see.
        label: What people are told that the costs are of.
        *identity: All else that they depend on.

    Returns:
        The costs.
    """
    if given := assumed_costs():
        return given
    path = _file(label, *identity)
    if (known := _known.get(path)) is not None:
        return known
    with _measuring:
        if path not in _known:
            _known[path] = _read(path) or _measured(path, begin, context_size, label)
        return _known[path]


def _measured(path: Path, begin: Callable[[], Session], context_size: int, label: str) -> RowCosts:
    """Measure and keep what passes cost, one process at a time, so that all draft alike."""
    with ExitStack() as stack:
        with suppress(OSError, UniverbError):  # a cache that cannot be written is no error
            path.parent.mkdir(parents=True, exist_ok=True)
            busy = UniverbError("another process is measuring for long.")
            stack.enter_context(exclusive_lock(path.with_suffix(".lock"), busy, _PATIENCE))
        if known := _read(path):
            return known
        costs = measure(begin(), context_size)
        with suppress(OSError):
            atomic_write(path, json.dumps({"format": _FORMAT, "for": label, "costs": costs.points}))
        return costs


def known_costs() -> dict[str, RowCosts]:
    """Return all costs that were measured on this machine, by what they were measured for."""
    known: dict[str, RowCosts] = {}
    for path in sorted(_folder().glob("*.json")):
        if (costs := _read(path)) is not None:
            label, same = _label(path), 1
            while label in known:
                # Another folder's model of that name, or an earlier version of it.
                same += 1
                label = f"{_label(path)} ({same})"
            known[label] = costs
    return known


def measure(session: Session, context_size: int) -> RowCosts:
    """Time passes over several numbers of rows, the fastest of some repeats of each.

    All costs are relative to a single row's, which is timed most often.
    """
    before = max(1, min(_CONTEXT, context_size - _SIZES[-1]))
    sizes = [size for size in _SIZES if before + size <= context_size]
    if not sizes:  # no room for a draft either
        return RowCosts({1: 1.0})
    session.prefill([[1] * before])
    best = dict.fromkeys(sizes, float("inf"))
    for rows in (rows for size in sizes * _REPEATS for rows in (1, size)):
        began = time.perf_counter()
        session.step([[1] * rows])
        best[rows] = min(best[rows], time.perf_counter() - began)
        session.rewind([rows])
    return RowCosts({rows: 1000 * seconds for rows, seconds in best.items()})


def _folder() -> Path:
    return cache_directory() / "row_costs"


def _file(*identity: object) -> Path:
    key = json.dumps([platform.machine(), platform.processor(), *map(str, identity)])
    return _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> RowCosts | None:
    """Read costs that were measured; None if there are none that can be used."""
    try:
        content = json.loads(read_regular(path, _MAX_BYTES))
        if content["format"] != _FORMAT:
            return None
        return RowCosts({int(rows): float(cost) for rows, cost in content["costs"].items()})
    except (OSError, ValueError, AttributeError, KeyError, TypeError, OptionError):
        return None


def _label(path: Path) -> str:
    """Return what costs were measured for, from a file that was read before."""
    return str(json.loads(read_regular(path, _MAX_BYTES)).get("for", path.stem))[:200]
