"""Processors and threads that this process may use."""

import os
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
