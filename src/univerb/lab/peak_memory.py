"""The peak memory of this process; needs no torch, which would be part of it."""

import sys
from pathlib import Path


def peak_megabytes() -> float:
    """Return the peak resident memory of this process."""
    try:
        # getrusage also counts the process that started this one, before its exec.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return kilobytes * 1024 / 1e6
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
