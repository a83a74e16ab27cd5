"""The picture of a run, drawn from its log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra, OptionError
from univerb.training.metrics_logger import LOG, read_log

PLOT = "run.png"
_COLOURS = ("#1a7f9c", "#e0a526", "#9c3a5b", "#4c8c4a", "#6a5d9c", "#9aa5ad")
# Figures of a step that are no terms of its loss.
_OTHERS = {"kind", "step", "rate", "grad_norm", "rows_per_second", "seconds"}
_POINTS = 200

Line = dict[str, Any]


def plot_run(folder: Path) -> Path:
    """Draw loss terms, accuracy with the validation score, and the learning rate.

    Args:
        folder: The run's, with its log.

    Returns:
        The picture, `run.png` in that folder.

    Raises:
        MissingExtra: If matplotlib is not installed.
        OptionError: If there is no log.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    lines = read_log(folder)
    steps = [line for line in lines if line.get("kind") == "step"]
    if not steps:
        raise OptionError(f"{str(folder)!r} has no {LOG} with steps. Give the folder of a run.")
    names = [name for name in dict.fromkeys(n for line in steps for n in line) if name != "kind"]
    terms = [name for name in names if name not in _OTHERS and "accuracy" not in name]
    # A Figure without pyplot draws with Agg, and needs no display.
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, quality, rate = figure.subplots(1, 3)
    _draw(loss, steps, terms)
    loss.set_ylabel("loss")
    _draw(quality, steps, [name for name in names if "accuracy" in name])
    quality.set_ylabel("accuracy")
    _draw_score(quality, [line for line in lines if line.get("kind") == "validation"])
    _draw(rate, steps, ["rate"])
    rate.set_ylabel("learning rate")
    for axis in (loss, quality, rate):
        axis.set_xlabel("step")
        axis.spines["top"].set_visible(False)
    path = folder / PLOT
    figure.savefig(path, dpi=130)
    return path


def _draw(axis: Any, lines: Sequence[Line], names: Sequence[str]) -> None:  # noqa: ANN401
    """Draw figures over steps: means of stretches, with the steps themselves pale behind."""
    for number, name in enumerate(names):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if not points:
            continue
        size = max(len(points) // _POINTS, 1)
        parts = [points[i : i + size] for i in range(0, len(points), size)]
        means = [tuple(sum(c) / len(part) for c in zip(*part, strict=True)) for part in parts]
        colour = _COLOURS[number % len(_COLOURS)]
        if size > 1:
            axis.plot(*zip(*points, strict=True), color=colour, alpha=0.15, linewidth=0.6)
        axis.plot(*zip(*means, strict=True), color=colour, label=name.replace("_", " "))
    if len(axis.lines):
        axis.legend(frameon=False, fontsize=8)


def _draw_score(axis: Any, lines: Sequence[Line]) -> None:  # noqa: ANN401
    points = [(line["step"], line["score"]) for line in lines if line.get("score") is not None]
    if not points:
        return
    other = axis.twinx()
    other.plot(*zip(*points, strict=True), color=_COLOURS[2], marker="o", markersize=3)
    best = min(points, key=lambda point: point[1])
    other.plot(*best, color=_COLOURS[2], marker="*", markersize=12)
    other.set_ylabel("validation score (lower is better; star: best)", color=_COLOURS[2])
    other.spines["top"].set_visible(False)
