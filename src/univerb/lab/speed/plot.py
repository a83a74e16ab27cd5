"""The picture of `univerb lab speed`: where the time goes, and from which length on phrases pay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra
from univerb.lab.speed.report import PER, Figures, break_even_text

_PARTS = {"prepare": "#e0a526", "prefill": "#9aa5ad", "decode": "#1a7f9c"}


def plot_bench(path: Path, found: dict[str, list[Figures]], title: str = "") -> None:
    """Draw a column for each workload: time by part above, break-even below.

    Args:
        path: A PNG file to write.
        found: Figures by workload.
        title: Over the picture.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    most = max(len(own) for own in found.values())
    figure = Figure(figsize=(5.2 * len(found), 1.8 + 0.5 * most), layout="constrained")
    grid = figure.subplots(2, len(found), squeeze=False, height_ratios=(3, 2))
    for column, (name, own) in enumerate(found.items()):
        _draw_time(grid[0][column], own)
        grid[0][column].set_title(name, fontsize=10)
        _draw_break_even(grid[1][column], [one for one in own if break_even_text(one)])
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_time(axis: Any, found: Sequence[Figures]) -> None:  # noqa: ANN401
    left = [0.0] * len(found)
    for part, colour in _PARTS.items():
        widths = [float(getattr(own, part)) for own in found]
        axis.barh(range(len(found)), widths, left=left, color=colour, label=part)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    for row, end in enumerate(left):
        axis.annotate(f" {end:.2f}", (end, row), fontsize=7, va="center")
    axis.set_xlim(0.0, 1.15 * max(left))
    axis.set_yticks(range(len(found)), [own.system for own in found])
    axis.invert_yaxis()
    axis.set_xlabel(f"seconds per {PER} base tokens", fontsize=8)
    axis.legend(frameon=False, fontsize=7)


def _draw_break_even(axis: Any, found: Sequence[Figures]) -> None:  # noqa: ANN401
    axis.barh(range(len(found)), [own.break_even or 0.0 for own in found], color=_PARTS["decode"])
    for row, own in enumerate(found):
        axis.annotate(
            f" {break_even_text(own)}", (own.break_even or 0.0, row), fontsize=7, va="center"
        )
    axis.set_yticks(range(len(found)), [own.system for own in found])
    axis.invert_yaxis()
    axis.set_xlim(0.0, 1.3 * max((own.break_even or 0.0 for own in found), default=0.0) or 1.0)
    axis.set_xlabel("base tokens from which on phrases pay", fontsize=8)
