"""Processors and threads: what this process may use."""

import os
from pathlib import Path

from univerb.errors import OptionError


def processors() -> frozenset[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def thread_count(wanted: int | None = None) -> int:
    """Return how many threads to use.

    Args:
        wanted: None for one on each physical core that this process may use.

    Returns:
        The number.

    Raises:
        OptionError: If more are wanted than there are processors.
    """
    cpus = processors()
    if wanted is None:
        return len({_core(cpu) for cpu in cpus})
    if not 1 <= wanted <= len(cpus):
        raise OptionError(
            f"threads is {wanted}. Allowed: 1 to {len(cpus)}, the processors of this process."
        )
    return wanted


def _core(cpu: int) -> str:
    """Name the physical core of a processor: its twins share the name."""
    try:
        twins = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return twins.read_text()
    except OSError:
        return str(cpu)
