"""The picture of a comparison: this run and the paper, a panel for each measure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra, OptionError
from univerb.lab.tables.comparison import Comparison, Line
from univerb.lab.tables.paper import Column, PaperTable

_RUN, _PAPER = "#1a7f9c", "#9aa5ad"
_WIDE = 3
"""Panels in a row."""


def plot_comparison(path: Path, comparison: Comparison) -> None:
    """Draw the figures of a run and the paper's.

    Where there is a baseline, panels show ratios to it, each side to its own: those compare even
    where values do not. Where it is zero, they show values; over numbers of phrases, as curves.

    Args:
        path: A PNG file to write.
        comparison: Of a run and a table.

    Raises:
        MissingExtra: If matplotlib is not installed.
        OptionError: If the run has nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    panels = _panels(comparison)
    if not panels:
        raise OptionError("The run has no figure for this table. Measure a row of it first.")
    wide = min(_WIDE, len(panels))
    high = -(-len(panels) // wide)
    most = max(len(own) for _, own in panels)
    figure = Figure(figsize=(3.6 * wide, (1.5 + 0.4 * most) * high), layout="constrained")
    grid = figure.subplots(high, wide, squeeze=False)
    axes = [axis for row in grid for axis in row]
    draw = _draw_curves if is_over_numbers(comparison.table) else _draw_bars
    for axis, (column, own) in zip(axes, panels, strict=False):
        draw(axis, column, own, comparison.table)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.suptitle(comparison.table.title, fontsize=10)
    figure.savefig(path, dpi=130)


def is_over_numbers(table: PaperTable) -> bool:
    """Tell whether the rows of a table are numbers, such as those of phrases."""
    return all(row.name.isdigit() for row in table.rows)


def _panels(comparison: Comparison) -> list[tuple[Column, list[Line]]]:
    found = []
    has_ratio = any(line.run_ratio is not None for line in comparison.lines)
    is_bare = not has_ratio or is_over_numbers(comparison.table)
    for column in comparison.columns:
        own = [line for line in comparison.lines if line.column == column.name]
        shown = [line for line in own if is_bare or line.run_ratio is not None]
        if not shown and column in comparison.table.columns:
            # Nothing has a ratio to a baseline of zero: the paper's measures are shown as they are.
            shown = own
        if shown:
            found.append((column, shown))
    return found


def _draw_bars(axis: Any, column: Column, own: Sequence[Line], table: PaperTable) -> None:  # noqa: ANN401
    is_ratio = any(line.run_ratio is not None for line in own)
    for place, line in enumerate(own):
        run = line.run_ratio if is_ratio else line.run.value
        paper = line.paper_ratio if is_ratio else line.paper
        _bar(axis, place - 0.2, run, _RUN, "this run" if place == 0 else "")
        _bar(axis, place + 0.2, paper, _PAPER, "paper" if place == 0 else "")
    axis.set_yticks(range(len(own)), [_name(line) for line in own])
    axis.invert_yaxis()
    axis.set_title(column.title, fontsize=9)
    axis.margins(x=0.2)
    if is_ratio:
        axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.set_xlabel(f"x {table.baseline}", fontsize=7)


def _bar(axis: Any, place: float, value: float | None, colour: str, label: str) -> None:  # noqa: ANN401
    axis.barh(place, value or 0.0, height=0.36, color=colour, label=label)
    text = "not in the paper" if value is None else f"{value:.2f}"
    axis.annotate(f" {text}", (value or 0.0, place), fontsize=6, va="center")


def _name(line: Line) -> str:
    parts = (line.section, line.row, line.decoding)
    return ", ".join(part for part in parts if part)


def _draw_curves(axis: Any, column: Column, own: Sequence[Line], table: PaperTable) -> None:  # noqa: ANN401
    """Draw the run and the paper over the numbers that their rows stand for."""
    run = {int(line.beside): line.run.value for line in own if line.beside and not line.section}
    rows = [row for row in table.rows if column.name in row.values and not row.section]
    paper = {int(row.name): row.values[column.name] for row in rows}
    for points, colour, label in ((run, _RUN, "this run"), (paper, _PAPER, "paper")):
        places = sorted(points)
        axis.plot(places, [points[one] for one in places], "o-", color=colour, label=label)
    axis.set_xscale("symlog", linthresh=32)
    axis.set_title(column.title, fontsize=9)
    axis.set_xlabel(table.heading, fontsize=7)
