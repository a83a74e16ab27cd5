"""Processors and threads that this process may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from univerb.errors import OptionError, shown


def processors() -> frozenset[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def thread_count(requested: int | None = None) -> int:
    """Return the number of threads to use: by default one per available physical core."""
    cpus = processors()
    if requested is None:
        return len({_core(cpu) for cpu in cpus})
    if type(requested) is not int or not 1 <= requested <= len(cpus):
        raise OptionError(
            f"threads is {shown(requested)}. Allowed: 1 to {len(cpus)}, the processors of this "
            "process."
        )
    return requested


def _core(cpu: int) -> str:
    """Identify the physical core of a processor by the list of its hardware threads."""
    try:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return siblings.read_text()
    except OSError:
        return str(cpu)


@contextmanager
def brief_spinning(count: int) -> Iterator[None]:
    """Let the OpenMP runtime that is loaded meanwhile wait by spinning for a moment only.

    By default its threads spin for milliseconds where they meet, hundreds of times a pass: on a
    machine that has other work as well, a waste of time. What the user has set stays.

    Args:
        count: How often they look before they sleep.

    Yields:
        Nothing.
    """
    name = "GOMP_SPINCOUNT"
    if {name, "OMP_WAIT_POLICY"} & {*os.environ}:
        yield
        return
    os.environ[name] = str(count)
    try:
        yield
    finally:
        del os.environ[name]
