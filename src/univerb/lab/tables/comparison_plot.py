"""The plot of a comparison: our measurements and the paper's, a panel for each measure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra
from univerb.lab.tables.paper_comparison import ComparedCell, PaperComparison

_PANELS_PER_ROW = 3


def plot_comparison(path: Path, comparison: PaperComparison) -> None:
    """Draw measurements and the paper's values as bars; nothing if nothing was measured.

    Where a measure has ratios to a baseline, its panel shows them, on each side: those compare
    even where values do not. The file is a PNG.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    panels = {
        column.title: [cell for cell in comparison.cells if cell.column == column.name]
        for column in comparison.columns
    }
    panels = {title: cells for title, cells in panels.items() if cells}
    if not panels:
        return
    columns = min(_PANELS_PER_ROW, len(panels))
    rows = -(-len(panels) // columns)
    height = 1.5 + 0.4 * max(map(len, panels.values()))
    figure = Figure(figsize=(3.6 * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (title, cells) in zip(axes, panels.items(), strict=False):
        _draw(axis, cells, comparison.table.baseline)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    axes[0].legend(fontsize=7)
    figure.suptitle(comparison.table.title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw(axis: Any, cells: Sequence[ComparedCell], baseline: str) -> None:  # noqa: ANN401
    with_ratio = [cell for cell in cells if cell.ratio is not None]
    drawn = with_ratio or cells
    ours = [cell.ratio if with_ratio else cell.measured.value for cell in drawn]
    paper = [cell.paper_ratio if with_ratio else cell.paper for cell in drawn]
    for label, values, offset in (("here", ours, -0.2), ("paper", paper, 0.2)):
        positions = [index + offset for index in range(len(drawn))]
        bars = axis.barh(positions, [value or 0.0 for value in values], height=0.36, label=label)
        texts = ["not in the paper" if value is None else f"{value:.2f}" for value in values]
        axis.bar_label(bars, texts, fontsize=6, padding=2)
    axis.set_yticks(range(len(drawn)), [cell.label for cell in drawn])
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlabel(f"x {baseline}" if with_ratio else "", fontsize=7)
