"""The picture of an adaptation: what held-out text can be written with, before and after."""

from collections.abc import Sequence
from pathlib import Path

from univerb.applications.adapt import Measured
from univerb.applications.calibrate import Calibration
from univerb.errors import MissingExtra

_COLOURS = ("#9aa5ad", "#e0a526", "#1a7f9c")


def plot_adaptation(
    path: Path, rows: Sequence[Measured], found: Calibration | None = None, title: str = ""
) -> None:
    """Draw units per token, coverage by phrase length and, if there is one, the calibration.

    Args:
        path: A PNG file to write.
        rows: What to compare, in order.
        found: The calibration.
        title: Over the picture.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    figure = Figure(figsize=(12 if found else 8.5, 3.6), layout="constrained")
    axes = figure.subplots(1, 3 if found else 2)
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        place, colour = (number - (len(rows) - 1) / 2) * width, _COLOURS[number % len(_COLOURS)]
        values = [row.all_phrases.compression, row.retrieved.compression]
        places = [i + place for i in range(2)]
        bars = axes[0].bar(places, values, width, color=colour, label=row.label)
        axes[0].bar_label(bars, fmt="%.2f", fontsize=8)
        shares = row.all_phrases.to_dict()["covered_share_by_length"]
        assert isinstance(shares, dict)
        sizes = sorted(shares)
        axes[1].bar(
            [size + place for size in sizes],
            [100 * shares[size] for size in sizes],
            width,
            color=colour,
        )
    axes[0].set_xticks([0, 1], ["all phrases", "retrieved"])
    axes[0].set_ylim(0, 1.1)
    axes[0].set_ylabel("units per base token (oracle)")
    axes[1].set_xlabel("phrase length in tokens")
    axes[1].set_ylabel("% of held-out tokens covered")
    # Bars of nothing have no colour of their own: the legend takes those of the first panel.
    axes[1].legend(*axes[0].get_legend_handles_labels(), frameon=False)
    if found:
        curve = sorted(found.bits_per_byte.items())
        axes[2].plot(*zip(*curve, strict=True), color=_COLOURS[2], marker="o", markersize=3)
        axes[2].axhline(found.plain_bits_per_byte, color=_COLOURS[0], label="plain LM")
        axes[2].axvline(found.phrase_bias, color=_COLOURS[1], label="calibrated")
        axes[2].set_xlabel("phrase_bias")
        axes[2].set_ylabel("bits per byte of held-out text")
        axes[2].legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
