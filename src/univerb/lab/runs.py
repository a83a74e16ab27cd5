"""Training runs side by side: what differs in their settings, and what came of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from univerb.errors import CheckpointError, MissingExtra
from univerb.lab import markdown
from univerb.training.metrics_logger import LOG
from univerb.training.trainer import SETTINGS

Metrics = Mapping[str, float]
# They change what is written and when, not what is learned.
_HABITS = {"run.save_every", "run.keep", "run.validate_every", "run.tensorboard"}


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run as its folder tells it."""

    name: str
    settings: Mapping[str, Any]
    """By key, such as `run.steps`."""
    steps: int
    rows: int
    """What was learned from: in the frozen regime tokens of text."""
    hours: float
    """Spent on steps, validation not included."""
    validations: Sequence[Metrics]
    """In the order of steps; each has its `step`."""


def read_run(folder: Path) -> TrainingRun:
    """Read a run's settings and log; CheckpointError if there are none."""
    try:
        settings = dict(_flattened(yaml.safe_load((folder / SETTINGS).read_text("utf-8"))))
        log = (folder / LOG).read_text(encoding="utf-8")
        # Without a last line that a run under way is still writing.
        entries = [json.loads(line) for line in log[: log.rfind("\n") + 1].splitlines()]
        steps = [entry for entry in entries if entry["kind"] == "step"]
        seconds = [entry["seconds"] for entry in steps]
        rows = [entry["rows_per_second"] * entry["seconds"] for entry in steps]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise CheckpointError(
            f"{str(folder)!r} is no run whose settings and log can be read. Give folders that "
            "`univerb train` wrote."
        ) from error
    validations = [
        {name: value for name, value in entry.items() if name != "kind" and value is not None}
        for entry in entries
        if entry["kind"] == "validation"
    ]
    hours = sum(seconds) / 3600
    return TrainingRun(folder.name, settings, len(steps), round(sum(rows)), hours, validations)


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True, slots=True)
class RunsReport:
    """Runs beside the first of them."""

    runs: Sequence[TrainingRun]

    def changes(self, run: TrainingRun) -> dict[str, Any]:
        """Return the settings that a run has other than the first; None for those it lacks."""
        first = self.runs[0].settings
        keys = [*first, *(key for key in run.settings if key not in first)]
        values = {key: run.settings.get(key) for key in keys if key not in _HABITS}
        return {key: value for key, value in values.items() if value != first.get(key)}

    def to_dict(self) -> dict[str, Any]:
        """Return the runs as JSON can hold them."""
        return {
            "runs": [
                {
                    "name": run.name,
                    "changes": self.changes(run),
                    "steps": run.steps,
                    "rows": run.rows,
                    "hours": round(run.hours, 3),
                    "validations": [dict(metrics) for metrics in run.validations],
                }
                for run in self.runs
            ]
        }

    def markdown(self, command: str = "") -> str:
        """Return a table with the last validation of each run."""
        lasts = [run.validations[-1] if run.validations else {} for run in self.runs]
        names = list(dict.fromkeys(name for last in lasts for name in last if name != "step"))
        header = ["run", "other than the first", "steps", "rows", "rows / s", *names]
        rows = [
            [
                run.name,
                markdown.plain(self.changes(run)) or "-",
                f"{run.steps:,}",
                f"{run.rows:,}",
                f"{run.rows / max(run.hours * 3600, 1e-9):,.0f}",
                *(f"{last[name]:.4f}" if name in last else "" for name in names),
            ]
            for run, last in zip(self.runs, lasts, strict=True)
        ]
        lines = markdown.heading("Runs", command, {})
        return "\n".join([*lines, *markdown.table(header, rows)]) + "\n"


def plot_runs(path: Path, report: RunsReport) -> None:
    """Draw the validations of runs, a panel for each measure, into a PNG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    found = (name for run in report.runs for metrics in run.validations for name in metrics)
    names = [name for name in dict.fromkeys(found) if name != "step"]
    figure = Figure(figsize=(3.2 * max(len(names), 1), 3.0), layout="constrained")
    axes = figure.subplots(1, max(len(names), 1), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=False):
        for run in report.runs:
            points = [metrics for metrics in run.validations if name in metrics]
            steps, values = ([metrics[key] for metrics in points] for key in ("step", name))
            axis.plot(steps, values, "o-", ms=3, label=run.name)
        axis.set(title=name, xlabel="step")
        axis.spines[["top", "right"]].set_visible(False)
    if names:
        figure.axes[0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)
