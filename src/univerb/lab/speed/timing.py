"""What all timings share: rounds in which systems take turns, ratios within a round, and tables."""

import importlib.metadata
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from univerb._version import __version__
from univerb.lab import markdown
from univerb.threads import processors

Progress = Callable[[str, int, int], None]
"""Called with stage, done and total."""
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "llama-cpp-python", "xllamacpp")


class Spread(NamedTuple):
    """The median of some figures, and their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of some figures."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


class RatioInterval(NamedTuple):
    """The median of ratios, the 90 % interval of the median by a bootstrap, and their range."""

    median: float
    low: float
    high: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def paired_interval(
    values: Sequence[float], reference: Sequence[float], resamples: int = 2000, seed: int = 0
) -> RatioInterval:
    """Return the median ratio of pairs; pairs are drawn again, with replacement, for its interval.

    Args:
        values: One for each prompt.
        reference: That of the same prompt.
        resamples: Number of draws.
        seed: Of the draws.

    Returns:
        The median of the ratios, its interval, the least ratio and the most.
    """
    ratios = numpy.asarray(values, dtype=float) / numpy.asarray(reference, dtype=float)
    draws = numpy.random.default_rng(seed).integers(len(ratios), size=(resamples, len(ratios)))
    low, high = numpy.percentile(numpy.median(ratios[draws], axis=1), [5, 95])
    median, least, most = numpy.median(ratios), ratios.min(), ratios.max()
    return RatioInterval(*map(float, (median, low, high, least, most)))


Figure = str | int | float | Spread | RatioInterval | None


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """Figures by row; the first column names the row."""

    name: str
    about: str
    header: tuple[str, ...]
    rows: list[tuple[Figure, ...]]

    def cells(self) -> list[list[str]]:
        """Return the figures as texts."""
        return [[_text(figure) for figure in row] for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON can hold it, each row by column."""
        rows = [dict(zip(self.header, map(_json_value, row), strict=True)) for row in self.rows]
        return {"about": self.about, "rows": rows}


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What was measured, and with what."""

    about: dict[str, Any]
    tables: list[SpeedTable]
    notes: list[str]
    details: dict[str, Any] = field(default_factory=dict)
    """What the tables are made of, for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        tables = {table.name: table.to_dict() for table in self.tables}
        return {"about": self.about, "tables": tables, "notes": self.notes} | self.details

    def markdown(self, command: str = "") -> str:
        """Return the report as a page of Markdown."""
        lines = markdown.heading("Speed", command, self.about)
        for table in self.tables:
            lines += [f"## {table.name}", "", f"{table.about}.", ""]
            lines += [*markdown.table(table.header, table.cells()), ""]
        lines += ["Notes:", "", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def interleaved(
    systems: Mapping[str, Callable[[], object]], rounds: int, progress: Progress | None = None
) -> dict[str, list[float]]:
    """Time every system once per round: other work on the machine then slows all of them.

    Args:
        systems: What to run, by name.
        rounds: Rounds that count, after one that does not.
        progress: Called after each round.

    Returns:
        The seconds of each system, by round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds + 1):
        for name, run in systems.items():
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
        if progress:
            progress("rounds", number, rounds)
    return seconds


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return the ratio to a reference, taken within each round."""
    return spread([time / base for time, base in zip(seconds, reference, strict=True)])


def environment(threads: int) -> dict[str, Any]:
    """Return versions and processors: what every timing depends on."""
    return {
        "univerb": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "processor": _processor(),
        "threads": threads,
        "cores": len(processors()),
    }


def _processor() -> str:
    """Return the name of the processor's model, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        lines = ""
    match = re.search(r"(?m)^model name\s*:\s*(.+)$", lines)
    return match[1] if match else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _text(figure: Figure) -> str:
    if figure is None:
        return ""
    return str(figure) if isinstance(figure, Spread | RatioInterval) else markdown.plain(figure)


def _json_value(figure: Figure) -> object:
    return figure._asdict() if isinstance(figure, Spread | RatioInterval) else figure
