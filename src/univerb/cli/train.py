"""`univerb train`: a phrase encoder from a YAML file, with a progress bar."""

import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from univerb.cli.console import console, errors, escape, show_warnings
from univerb.cli.progress import format_size
from univerb.threads import thread_count
from univerb.training.callback import Callback

if TYPE_CHECKING:
    from univerb.training.dry_run import DryRun
    from univerb.training.trainer import TrainingResult


def train(
    config: Annotated[Path, typer.Argument(help="The run's settings, a YAML file.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default runs/ and the file's name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure what the run needs, and write nothing.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value, such as run.steps=96. Repeatable."),
    ] = None,
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
    settings = read_config(config, changes or ())
    folder = out or Path("runs") / config.stem
    with errors.status("loading torch"):
        import torch
        from transformers.utils import logging

        from univerb.corpus import open_corpus
        from univerb.training import dry_run as measuring
        from univerb.training import task_factory, trainer
        from univerb.training.processes import Processes

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads:
        torch.set_num_threads(thread_count(threads))
    # The frozen regime works on states that are cached in the machine's memory.
    processes = Processes.from_environment(on_cpu=settings.regime == "frozen")
    try:
        corpus = open_corpus(settings.frozen.corpus) if settings.frozen.corpus else None
        task = task_factory.make_task(settings, processes, corpus)
        if dry_run:
            needs = measuring.dry_run(task, settings, processes)
            if processes.is_first:
                _show_needs(needs, settings.run.steps)
            return
        callback = ProgressCallback(settings.run.steps)
        with callback.progress:
            result = trainer.train(
                task, settings, folder, processes, callback=callback, resume=not fresh
            )
        if processes.is_first:
            _show_result(result, folder)
    finally:
        processes.close()
    if result.reason == "interrupted":
        raise typer.Exit(130)  # as after Ctrl-C in any program


class ProgressCallback(Callback):
    """A progress bar with the newest metrics; validations are lines above it."""

    def __init__(self, steps: int) -> None:
        self.progress = Progress(console=errors, disable=not errors.is_terminal, transient=True)
        self._bar = self.progress.add_task("", total=steps)

    def on_train_begin(self, step: int) -> None:
        """Show where a run resumes."""
        self.progress.reset(self._bar, completed=step)
        if step:
            errors.print(f"[dim]resuming after step {step:,}[/]")

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Show a step."""
        description = f"step {step:,}: {_text(metrics)}"
        self.progress.update(self._bar, completed=step, description=description)

    def on_validation(self, step: int, metrics: dict[str, float], is_best: bool) -> None:
        """Show a validation."""
        best = " (best)" if is_best else ""
        errors.print(f"[dim]validation at step {step:,}: {_text(metrics)}{best}[/]")

    def on_save(self, step: int, path: Path) -> None:
        """Show a checkpoint."""
        errors.print(f"[dim]saved {escape(str(path))}[/]")

    def on_warning(self, message: str) -> None:
        """Show a warning."""
        errors.print(f"[yellow]note:[/] {escape(message)}")


def _text(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items())


def _show_needs(needs: "DryRun", steps: int) -> None:
    console.print(
        f"{needs.trainable:,} parameters train, {format_size(needs.snapshot_bytes)} a checkpoint\n"
        f"{needs.rows_per_second:,.0f} rows/s, {needs.step_seconds:.2f} s per step, about "
        f"{timedelta(seconds=round(needs.run_seconds))} for {steps:,} steps (without validation)\n"
        f"at most {format_size(needs.peak_bytes)} of memory in each process or GPU"
    )


def _show_result(result: "TrainingResult", folder: Path) -> None:
    best = ""
    if result.best_step is not None:
        best = f"; best score {result.best_score:.4g} at step {result.best_step:,}"
    console.print(f"[bold]{escape(str(folder))}[/]: {result.reason} at step {result.step:,}{best}")
    if result.reason == "interrupted":
        console.print("[dim]run the same command again to resume[/]")
    console.print(f"the encoder is in [bold]{escape(str(result.export))}[/]")
    command = f"univerb generate PROMPT --docs FILE --model {shlex.quote(str(result.export))}"
    console.print(f"[dim]use it:[/] {escape(command)}")
