"""`univerb train`: a phrase encoder from a YAML file, with a progress bar."""

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from univerb.cli.console import console, errors, escape, show_warnings
from univerb.cli.progress import format_size
from univerb.errors import OptionError
from univerb.training.callback import Callback

if TYPE_CHECKING:
    from univerb.training.config import TrainingConfig
    from univerb.training.processes import Processes
    from univerb.training.trainer import TrainingResult

_INTERRUPTED = 130
# Seconds between two lines where there is no terminal for a bar.
_INTERVAL = 30.0


def train(
    config: Annotated[Path, typer.Argument(help="The run's settings, a YAML file.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default runs/ and the file's name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure what the run needs, and write nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the folder's checkpoints and start over.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch.")] = None,
) -> None:
    """Train a phrase encoder. The same command resumes a run that was stopped.

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
            _dry_run(settings, processes)
        else:
            _train(settings, folder, processes, resume=not fresh)
    finally:
        processes.close()


def _dry_run(settings: "TrainingConfig", processes: "Processes") -> None:
    from univerb.training.dry_run import dry_run
    from univerb.training.task_factory import make_task

    needs = dry_run(make_task(settings, processes), settings, processes)
    if processes.is_first:
        where = "GPU" if processes.device.type == "cuda" else "process"
        console.print(
            f"{needs.trainable:,} parameters train; a checkpoint has "
            f"{format_size(needs.snapshot_bytes)}\n{needs.rows_per_second:,.0f} rows/s, "
            f"{needs.step_seconds:.2f} s per step, about "
            f"{timedelta(seconds=round(needs.run_seconds))} for {settings.run.steps:,} steps "
            f"(without validation)\nat most {format_size(needs.peak_bytes)} of memory "
            f"in each {where}"
        )


def _train(
    settings: "TrainingConfig", folder: Path, processes: "Processes", *, resume: bool
) -> None:
    from univerb.training.task_factory import make_task
    from univerb.training.trainer import train as run

    task = make_task(settings, processes)
    with ProgressCallback(settings.run.steps) as callback:
        result = run(task, settings, folder, processes, callback=callback, resume=resume)
    if processes.is_first:
        _show_result(result, folder)
    if result.reason == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _show_result(result: "TrainingResult", folder: Path) -> None:
    best = ""
    if result.best_step is not None:
        best = f"; best score {result.best_score:.4g} at step {result.best_step:,}"
    console.print(f"[bold]{escape(str(folder))}[/]: {result.reason} at step {result.step:,}{best}")
    if result.reason == "interrupted":
        console.print("[dim]run the same command again to resume[/]")
    export = escape(str(result.export))
    console.print(f"the encoder is in [bold]{export}[/]")
    console.print(f"[dim]use it:[/] univerb generate PROMPT --docs FILE --model {export}")


class ProgressCallback(Callback):
    """A progress bar with the newest metrics, or a line now and then without a terminal."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._last_line = 0.0
        self._progress = Progress(
            TextColumn("step {task.completed:,} of {task.total:,}"),
            BarColumn(20),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.description}[/]"),
            console=errors,
            disable=not errors.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task("", total=steps)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_train_begin(self, step: int) -> None:
        """Show where a run resumes."""
        self._progress.reset(self._bar, completed=step)
        if step:
            self._print(f"resuming after step {step:,} of {self._steps:,}")

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Show a step."""
        shown = _text({name: v for name, v in metrics.items() if name != "seconds"})
        self._progress.update(self._bar, completed=step, description=shown)
        if self._progress.disable and time.monotonic() - self._last_line >= _INTERVAL:
            self._last_line = time.monotonic()
            self._print(f"step {step:,} of {self._steps:,}: {shown}")

    def on_validation(self, step: int, metrics: dict[str, float], is_best: bool) -> None:
        """Show a validation."""
        self._print(f"validation at step {step:,}: {_text(metrics)}{' (best)' * is_best}")

    def on_save(self, step: int, path: Path) -> None:
        """Show a checkpoint."""
        self._print(f"saved {path}")

    def on_warning(self, message: str) -> None:
        """Show a warning."""
        errors.print(f"[yellow]note:[/] {escape(message)}")

    def _print(self, message: str) -> None:
        self._progress.console.print(f"[dim]{escape(message)}[/]")


def _text(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items())
