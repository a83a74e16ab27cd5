"""The most memory that a process has had; needs no torch, which would be part of it."""

import sys
from pathlib import Path


def peak_megabytes() -> float:
    """Return the most memory that this process has had at once."""
    try:
        # What getrusage tells counts also the process that started this one, before its exec.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return kilobytes * 1024 / 1e6
    except (OSError, StopIteration):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6
