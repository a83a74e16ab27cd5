"""The pictures of `univerb lab phrases`: the report, and the sweep that gives the profile."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra
from univerb.lab.phrases.firing import Firing
from univerb.lab.phrases.input_side import InputSide, mean_and_p95
from univerb.lab.phrases.report import LEAST_RATE, MORE_DIVERSITY, MOST_PPL, MOST_STEPS
from univerb.lab.phrases.run import PhrasesReport
from univerb.lab.phrases.true_text import TrueText
from univerb.lab.phrases.writing import BARE, Writing

_GREY, _YELLOW, _BLUE = "#9aa5ad", "#e0a526", "#1a7f9c"
_SHADES = ("#0b3c49", "#1a7f9c", "#5fb3c9", "#e0a526", "#c8553d", "#7a3b69", "#8a8d3f")


def plot_phrases(path: Path, report: PhrasesReport, title: str = "") -> None:
    """Draw what a report has: true text, firing, input side and writing.

    Args:
        path: A PNG file to write.
        report: The figures.
        title: Over the picture.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    panels = [report.true_text, report.firing, report.input_side, report.writing]
    figure = _figure(4.2 * max(sum(map(bool, panels)), 1))
    axes = iter(figure.subplots(1, max(sum(map(bool, panels)), 1), squeeze=False)[0])
    if report.true_text:
        _draw_true_text(next(axes), report.true_text, report.bias)
    if report.firing:
        _draw_firing(next(axes), report.firing)
    if report.input_side:
        _draw_input_side(next(axes), report.input_side)
    if report.writing:
        _draw_writing(next(axes), report.writing)
    _save(figure, path, title)


def plot_sweep(path: Path, writing: Sequence[Writing], title: str = "") -> None:
    """Draw steps per token against Diversity and perplexity, a line for each tolerance.

    Args:
        path: A PNG file to write.
        writing: The ways of a grid, and the bare LM's.
        title: Over the picture.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    bare = next(own for own in writing if own.name == BARE)
    figure = _figure(10.0)
    left, right = figure.subplots(1, 2)
    lines: dict[float, list[Writing]] = {}
    for own in writing:
        if own.options and "tolerance" in own.options:
            lines.setdefault(own.options["tolerance"], []).append(own)
    for number, (tolerance, points) in enumerate(sorted(lines.items())):
        points = sorted(points, key=lambda own: _bias(own))
        colour = _SHADES[number % len(_SHADES)]
        steps = [own.steps_per_token for own in points]
        for axis, values in (
            (left, [100 * own.diversity for own in points]),
            (right, [own.ppl / bare.ppl for own in points]),
        ):
            axis.plot(steps, values, color=colour, marker="o", label=f"tolerance {tolerance:g}")
            for own, x, y in zip(points, steps, values, strict=True):
                axis.annotate(f"{_bias(own):g}", (x, y), fontsize=7, alpha=0.8)
    left.axhline(100 * bare.diversity, color=_GREY, label="bare LM")
    left.axhline(100 * (bare.diversity + MORE_DIVERSITY), color=_GREY, ls=":", label="target")
    right.set_yscale("log")
    right.axhline(1.0, color=_GREY)
    right.axhline(MOST_PPL, color=_GREY, ls=":")
    for axis, name in ((left, "Diversity"), (right, "perplexity, times the bare LM's own")):
        axis.axvline(MOST_STEPS, color=_GREY, ls=":")
        axis.set_xlabel("steps per base token (numbers at points: phrase_bias)")
        axis.set_ylabel(name)
    left.legend(frameon=False, fontsize=8)
    _save(figure, path, title)


def _bias(own: Writing) -> float:
    return float(own.options["phrase_bias"]) if own.options else 0.0


def _draw_true_text(axis: Any, found: TrueText, bias: float) -> None:  # noqa: ANN401
    axis.plot(found.biases, [found.exact_bits(b) for b in found.biases], color=_BLUE, label="exact")
    strict = [found.strict_bits(b) for b in found.biases]
    axis.plot(found.biases, strict, color=_YELLOW, label="strict")
    axis.axhline(found.bare_bits, color=_GREY, label="bare LM")
    axis.axvline(bias, color=_GREY, ls=":", label="profile")
    low = min(found.exact_bits(b) for b in found.biases)
    # As far above the bare LM as the best is below it; or all, if no bias is any good.
    axis.set_ylim(low - 0.05, max(2 * found.bare_bits - low, low, found.bare_bits) + 0.2)
    axis.set_xlabel("phrase_bias")
    axis.set_ylabel("bits per byte of the true text")
    axis.legend(frameon=False, fontsize=8)


def _draw_firing(axis: Any, found: Firing) -> None:  # noqa: ANN401
    tolerances = sorted({cell.tolerance for cell in found.grid})
    for number, tolerance in enumerate(tolerances):
        cells = [cell for cell in found.grid if cell.tolerance == tolerance and cell.fired]
        rates = [100 * cell.fired / found.starts for cell in cells]
        colour = _SHADES[number % len(_SHADES)]
        own = [100 * cell.precision for cell in cells]
        axis.plot(rates, own, color=colour, label=f"tolerance {tolerance:g}")
        axis.plot(rates, [100 * cell.lm_precision for cell in cells], color=colour, ls=":")
    if found.starts:
        axis.plot(100 * found.rate, 100 * found.profile.precision, "o", color="black")
    axis.axvline(100 * LEAST_RATE, color=_GREY, ls=":")
    axis.set_xlabel("% of word starts at which a phrase fires")
    axis.set_ylabel("% whole phrases right (dotted: the LM alone)")
    axis.legend(frameon=False, fontsize=8)


def _draw_input_side(axis: Any, found: InputSide) -> None:  # noqa: ANN401
    for number, own in enumerate(found.each):
        value = mean_and_p95(own.vector_tokens)
        colour = _BLUE if own.vector == "encoder" else _GREY
        bars = axis.bar(number, value["mean"], color=colour)
        axis.bar_label(bars, fmt="%.2f", fontsize=8)
        axis.plot([number] * 2, [value["mean"], value["p95"]], color=colour)
    names = [f"{own.vector}\nby {own.position}" for own in found.each]
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set_ylabel("KL(vector || tokens), mean to 95th percentile")


def _draw_writing(axis: Any, found: Sequence[Writing]) -> None:  # noqa: ANN401
    bare = next((own.ppl for own in found if own.name == BARE), None)
    for number, own in enumerate(found):
        axis.bar(number - 0.2, own.steps_per_token, 0.4, color=_BLUE)
        axis.bar(number + 0.2, own.diversity, 0.4, color=_YELLOW)
        ratio = f"PPL {own.ppl / bare:.2f} x" if bare else ""
        axis.annotate(ratio, (number, 1.04), fontsize=7, ha="center")
    axis.set_xticks(range(len(found)), [own.name for own in found], fontsize=8, rotation=20)
    axis.set_ylabel("steps per token (blue), Diversity (yellow)")
    axis.set_ylim(0, 1.2)


def _figure(width: float) -> Any:  # noqa: ANN401
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    return Figure(figsize=(width, 3.8), layout="constrained")


def _save(figure: Any, path: Path, title: str) -> None:  # noqa: ANN401
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
