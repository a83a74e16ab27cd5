"""The pictures of `univerb lab phrases`: the true text by bias, and the sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra
from univerb.lab.phrases.report import PhrasesReport
from univerb.lab.phrases.true_text import TrueText
from univerb.lab.phrases.writing import BARE, VariantFigures

_GREY, _YELLOW, _BLUE = "#9aa5ad", "#e0a526", "#1a7f9c"
_SHADES = ("#0b3c49", "#1a7f9c", "#5fb3c9", "#e0a526", "#c8553d", "#7a3b69", "#8a8d3f")


def plot_report(path: Path, report: PhrasesReport) -> None:
    """Draw the likelihood of the true text by bias, or else what a sweep wrote.

    Args:
        path: A PNG file to write.
        report: The figures.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    panels = 1 if report.true_text else 2
    figure = Figure(figsize=(5.0 * panels, 3.8), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if report.true_text:
        _draw_true_text(axes[0], report.true_text, report.bias)
    elif report.writing:
        _draw_sweep(axes[0], axes[1], report.writing)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    title = f"{Path(report.about['model']).name}, {report.about['documents']} documents"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_true_text(axis: Any, text: TrueText, bias: float) -> None:  # noqa: ANN401
    exact = [text.exact_bits(value) for value in text.biases]
    axis.plot(text.biases, exact, color=_BLUE, label="exact")
    strict = [text.strict_bits(value) for value in text.biases]
    axis.plot(text.biases, strict, color=_YELLOW, label="longest match")
    axis.axhline(text.bare_bits, color=_GREY, label="bare LM")
    axis.axvline(bias, color=_GREY, ls=":", label="profile")
    # As far above the bare LM as the best is below it; or all, if no bias is any good.
    low = min(exact)
    axis.set_ylim(low - 0.05, max(2 * text.bare_bits - low, low, text.bare_bits) + 0.2)
    axis.set_xlabel("phrase_bias")
    axis.set_ylabel("bits per byte of the true text")
    axis.legend(frameon=False, fontsize=8)


def _draw_sweep(left: Any, right: Any, writing: Sequence[VariantFigures]) -> None:  # noqa: ANN401
    """Draw Diversity and perplexity against steps per token, a line for each tolerance."""
    bare = next(variant for variant in writing if variant.name == BARE)
    lines: dict[float, list[VariantFigures]] = {}
    for variant in writing:
        if variant.options:
            lines.setdefault(variant.options["tolerance"], []).append(variant)
    left.axhline(100 * bare.diversity, color=_GREY, label="bare LM")
    right.axhline(1.0, color=_GREY)
    for colour, (tolerance, points) in zip(_SHADES * len(lines), lines.items(), strict=False):
        steps = [variant.steps_per_token for variant in points]
        diversity = [100 * variant.diversity for variant in points]
        label = f"tolerance {tolerance:g}"
        left.plot(steps, diversity, color=colour, marker="o", label=label)
        right.plot(steps, [variant.ppl / bare.ppl for variant in points], color=colour, marker="o")
        for variant, x, y in zip(points, steps, diversity, strict=True):
            left.annotate(f"{(variant.options or {})['eagerness']:g}", (x, y), fontsize=7)
    right.set_yscale("log")
    for axis, name in ((left, "Diversity"), (right, "perplexity, times the bare LM's own")):
        axis.set_xlabel("steps per base token (numbers at points: eagerness)")
        axis.set_ylabel(name)
    left.legend(frameon=False, fontsize=8)
