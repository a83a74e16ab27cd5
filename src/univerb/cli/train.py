"""`univerb train`: a phrase encoder from a YAML file, with a live panel."""

import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, errors, escape, show_warnings
from univerb.cli.index import size_text
from univerb.errors import MissingExtra, OptionError, UniverbError

if TYPE_CHECKING:
    from univerb.training.config import TrainingConfig
    from univerb.training.dry_run import Rehearsal
    from univerb.training.processes import Processes
    from univerb.training.trainer import Result

_INTERRUPTED = 130
# Seconds between two lines where nobody watches.
_QUIET = 30.0
# Weight of the newest step in the mean that the time left is computed from.
_NEW = 0.05


def train(
    config: Annotated[Path, typer.Argument(help="The run's settings, a YAML file.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; by default runs/ and the file's name."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run needs, and write nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the folder's checkpoints and start over.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch.")] = None,
) -> None:
    """Train a phrase encoder. The same command goes on where a run stopped.

    Several processes: torchrun --nproc-per-node N -m univerb train CONFIG
    """
    from univerb.training.config import read_config

    show_warnings()
    settings = read_config(config)
    folder = out or Path("runs") / config.stem
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{str(folder)!r} is a file; a run is a folder. Name another.")
    with errors.status("loading torch"):
        import torch
        from transformers.utils import logging

        from univerb.training.processes import Processes

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads:
        torch.set_num_threads(threads)
    # The frozen regime works on states that are cached in the machine's memory.
    processes = Processes.from_environment(on_cpu=settings.regime == "frozen")
    try:
        if dry_run:
            _rehearse(settings, processes)
        else:
            _train(settings, folder, processes, resume=not fresh)
    finally:
        processes.close()


def _rehearse(settings: "TrainingConfig", processes: "Processes") -> None:
    from univerb.training.dry_run import rehearse
    from univerb.training.regimes import make_task

    needs = rehearse(make_task(settings, processes), settings, processes)
    if processes.is_first:
        _show_needs(needs, settings.run.steps, processes)


def _train(
    settings: "TrainingConfig", folder: Path, processes: "Processes", *, resume: bool
) -> None:
    from univerb.training.regimes import make_task
    from univerb.training.trainer import train as run

    task = make_task(settings, processes)
    if not processes.is_first:
        result = run(task, settings, folder, processes, resume=resume)
    else:
        with Panel(settings.run.steps) as panel:
            result = run(task, settings, folder, processes, observer=panel, resume=resume)
        _draw(folder)
        _show_end(result, folder)
    if result.reason == "interrupted":
        raise typer.Exit(_INTERRUPTED)


class Panel:
    """How a run goes: a table that stays in place, or a line now and then if nobody watches."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._facts: dict[str, str] = {}
        self._mean: float | None = None
        self._told = 0.0
        self._live = Live(Text(""), console=errors, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if errors.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def began(self, step: int) -> None:
        """Say where the run starts or goes on."""
        if step:
            self._say(f"going on after step {step:,} of {self._steps:,}")

    def stepped(self, step: int, figures: dict[str, float]) -> None:
        """Show a step."""
        seconds = figures["seconds"]
        self._mean = seconds if self._mean is None else self._mean + _NEW * (seconds - self._mean)
        others = {"rate", "grad_norm", "rows_per_second", "seconds"}
        left = round(self._mean * (self._steps - step))
        self._facts |= {
            "step": f"{step:,} of {self._steps:,}",
            **{n.replace("_", " "): f"{v:.4g}" for n, v in figures.items() if n not in others},
            "rows/s": f"{figures['rows_per_second']:,.0f}",
            "learning rate": f"{figures['rate']:.3g}",
            "time left": str(timedelta(seconds=left)),
        }
        if errors.is_terminal:
            self._live.update(self._table())
        elif time.monotonic() - self._told >= _QUIET:
            self._told = time.monotonic()
            self._say(", ".join(f"{name} {value}" for name, value in self._facts.items()))

    def validated(self, step: int, figures: dict[str, float], is_best: bool) -> None:
        """Show a validation."""
        shown = ", ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in figures.items())
        best = " (best)" if is_best else ""
        self._facts["validation"] = f"{shown}{best}, step {step:,}"
        self._say(f"validation at step {step:,}: {shown}{best}")

    def saved(self, step: int, path: Path) -> None:
        """Show a checkpoint."""
        self._facts["saved"] = f"{path.name}, {time.strftime('%H:%M:%S')}"
        if not errors.is_terminal:
            self._say(f"saved {path}")

    def warned(self, message: str) -> None:
        """Show a warning."""
        errors.print(f"[yellow]note:[/] {escape(message)}")

    def _say(self, message: str) -> None:
        errors.print(f"[dim]{escape(message)}[/]")

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in self._facts.items():
            table.add_row(Text(name, style="dim"), Text(value))
        return table


def _draw(folder: Path) -> None:
    from univerb.training.plot import plot_run

    try:
        plot_run(folder)
    except (MissingExtra, OSError, UniverbError) as error:
        errors.print(f"[yellow]note:[/] the run is not plotted: {escape(str(error))}")


def _show_end(result: "Result", folder: Path) -> None:
    best = ""
    if result.best_step is not None:
        best = f"; best score {result.best_score:.4g} at step {result.best_step:,}"
    console.print(f"[bold]{escape(str(folder))}[/]: {result.reason} at step {result.step:,}{best}")
    if result.reason == "interrupted":
        console.print("[dim]run the same command again to go on[/]")
    export = escape(str(result.export))
    console.print(f"the encoder lies in [bold]{export}[/]")
    console.print(f"[dim]use it:[/] univerb generate PROMPT --docs FILE --model {export}")


def _show_needs(needs: "Rehearsal", steps: int, processes: "Processes") -> None:
    where = "GPU" if processes.device.type == "cuda" else "process"
    duration = timedelta(seconds=round(needs.run_seconds))
    console.print(
        f"{needs.trainable:,} parameters train; a checkpoint has {size_text(needs.snapshot_bytes)}"
        f"\n{needs.rows_per_second:,.0f} rows/s, {needs.step_seconds:.2f} s per step, about "
        f"{duration} for {steps:,} steps (without validation)\n"
        f"at most {size_text(needs.peak_bytes)} of memory in each {where}"
    )
