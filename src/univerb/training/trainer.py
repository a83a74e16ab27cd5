"""The training loop: AdamW, a linear schedule, checkpoints that resume exactly, early stopping.

One step is `accumulate` micro-batches. What a step computes depends on the checkpoint and the
settings alone, so a run that was killed ends with the same bits as one that was not.
"""

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from univerb.errors import OptionError, TrainingError
from univerb.training.callback import Observer, Silence
from univerb.training.config import Optimiser, TrainingConfig
from univerb.training.metrics_logger import Journal
from univerb.training.processes import Processes
from univerb.training.shared_modules import SharedModules, copy_into, whole
from univerb.training.snapshots import (
    Progress,
    Snapshot,
    check_same,
    owned,
    read_newest,
    replace_folder,
    snapshot_paths,
    write_snapshot,
)
from univerb.training.task import Task

EXPORT = "encoder"
"""The folder, inside the run's, of what users load."""
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Reason = Literal["finished", "stopped early", "interrupted"]


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    step: int
    reason: Reason
    best_step: int | None
    best_score: float | None
    export: Path
    """What users load: of the best step, or of the last one if nothing was validated."""


def train(
    task: Task,
    config: TrainingConfig,
    folder: Path,
    processes: Processes,
    *,
    observer: Observer | None = None,
    resume: bool = True,
) -> Result:
    """Train until the last step, an early stop, or an interruption.

    Args:
        task: What is trained.
        config: How.
        folder: Where checkpoints, log and export go; all processes must see it.
        processes: Those that share the work.
        observer: Told how it goes.
        resume: Go on from the folder's newest checkpoint; otherwise what it has is deleted.

    Returns:
        How it ended.

    Raises:
        CheckpointError: If the folder cannot be written, or its checkpoints do not fit.
        OptionError: If the hardware lacks what is asked for.
        TrainingError: If the loss is no number any more.
    """
    told = observer if observer and processes.is_first else Silence()
    with ExitStack() as stack:
        if processes.is_first:
            stack.enter_context(owned(folder))
            if not resume:
                for path in snapshot_paths(folder):
                    path.unlink()
        processes.barrier()
        trainer = Trainer(task, config, processes)
        trainer.restore(folder, told.warned)
        progress = trainer.progress
        if processes.is_first:
            board = config.run.tensorboard
            trainer.journal = stack.enter_context(Journal(folder, progress.step, board))
        told.began(progress.step)
        stops = stack.enter_context(_signals())
        reason = _loop(trainer, folder, told, stops)
        if progress.best is None:
            trainer.export(folder)
        processes.barrier()
    return Result(progress.step, reason, progress.best_step, progress.best, folder / EXPORT)


def _loop(trainer: "Trainer", folder: Path, told: Observer, stops: list[int]) -> Reason:
    run, progress = trainer.config.run, trainer.progress
    patience = math.inf if run.patience is None else run.patience
    while progress.step < run.steps:
        if progress.waited >= patience:
            return "stopped early"
        figures, is_stopped = trainer.step(stops)
        told.stepped(progress.step, figures)
        is_last = progress.step == run.steps
        if is_last or progress.step % run.validate_every == 0:
            values, is_best = trainer.validate()
            if values:
                told.validated(progress.step, values, is_best)
            if is_best:
                trainer.export(folder)
        is_ending = is_last or is_stopped or progress.waited >= patience
        if is_ending or progress.step % run.save_every == 0:
            told.saved(progress.step, trainer.save(folder))
        if is_stopped and not is_last:
            return "interrupted"
    return "finished"


class Trainer:
    """A run in memory: the modules, the optimiser's moments, and how far it is."""

    def __init__(self, task: Task, config: TrainingConfig, processes: Processes) -> None:
        self.config = config
        self.progress = Progress()
        self.journal: Journal | None = None
        self._task = task
        self._processes = processes
        self._autocast = _autocast(config.run.dtype, processes.device)
        self.modules = SharedModules(task.modules, processes, config.run.parallel)
        if not self.modules.groups():
            raise OptionError("nothing in the model trains. Choose another regime.")
        self.modules.plain.train()
        settings = config.optimiser
        self.optimiser = torch.optim.AdamW(
            [{"params": group} for group in self.modules.groups()],
            lr=settings.rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        torch.manual_seed(config.run.seed + processes.rank)

    def step(self, stops: Sequence[int] = ()) -> tuple[dict[str, float], bool]:
        """Do one step.

        Args:
            stops: The signals to stop that this process got; one may come during the step.

        Returns:
            The figures of all processes, and whether any of them was asked to stop.

        Raises:
            TrainingError: If the loss or its gradient is no number.
        """
        began = time.perf_counter()
        count, number = self.config.run.accumulate, self.progress.step
        self.optimiser.zero_grad(set_to_none=True)
        parts: dict[str, list[float]] = defaultdict(list)
        for place in range(count):
            more_follow = place + 1 < count
            for name, value in self.pass_over(number * count + place, more_follow).items():
                parts[name].append(value)
        rows = sum(parts.pop("rows"))
        # A term that only some micro-batches have is the mean over those.
        figures = {name: sum(values) / len(values) for name, values in parts.items()}
        figures = self._processes.total({**figures, "rows": rows, "stop": len(stops)})
        any_stopped = figures.pop("stop") > 0
        norm = self.modules.clip(self.config.optimiser.clip)
        self._check_finite(figures["loss"], norm)
        rate = rate_at(self.config.optimiser, number, self.config.run.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.progress.step += 1
        seconds = time.perf_counter() - began
        figures["rows_per_second"] = figures.pop("rows") / seconds
        figures |= {"rate": rate, "grad_norm": norm, "seconds": seconds}
        if self.journal:
            self.journal.write("step", self.progress.step, figures)
        return figures, any_stopped

    def pass_over(self, index: int, more_follow: bool) -> dict[str, float]:
        """Add the gradients of one micro-batch.

        Args:
            index: Its number, from the start of the run.
            more_follow: Whether the step has more of them.

        Returns:
            This process's shares of the loss and its terms, and its rows.

        Raises:
            OptionError: If the loss depends on nothing that trains.
        """
        with self.modules.waiting(more_follow):
            with self._autocast():
                total, terms, rows = self.modules.run(partial(self._loss, index))
            if not total.requires_grad:
                raise OptionError(
                    f"micro-batch {index} has no loss on process {self._processes.rank}: there is "
                    "less work than processes. Raise run.batch, or start fewer processes."
                )
            self.modules.backward(total / self.config.run.accumulate)
        return {"loss": float(total.detach()), **terms, "rows": float(rows)}

    def _loss(self, index: int) -> tuple[Tensor, dict[str, float], int]:
        loss = self._task.loss(index)
        return loss.total, loss.terms, loss.rows

    def _check_finite(self, loss: float, norm: float) -> None:
        for what, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the {what} is {value} at step {self.progress.step + 1}. The last checkpoint "
                    "is kept. Give a lower optimiser.rate or run.dtype float32, and start over."
                )

    def validate(self) -> tuple[dict[str, float], bool]:
        """Measure, and note whether it is the best so far.

        Returns:
            The first process's figures, and whether their score is the best.
        """
        progress = self.progress
        self.modules.plain.eval()
        with _own_randomness(self._processes.device), torch.no_grad(), self._autocast():
            own: dict[str, float] = self.modules.run(self._task.validate, train=False)
        self.modules.plain.train()
        figures = self._processes.first(own)
        score = figures.get("score", math.nan)
        is_best = score < (math.inf if progress.best is None else progress.best)
        if is_best:
            progress.best, progress.best_step, progress.waited = score, progress.step, 0
        elif "score" in figures:
            progress.waited += 1
        if self.journal:
            self.journal.write("validation", progress.step, figures)
        return figures, is_best

    def export(self, folder: Path) -> None:
        """Write what users load, in one step."""
        self.modules.plain.eval()
        with self.modules.as_whole(), _own_randomness(self._processes.device):
            if self._processes.is_first:
                write = partial(self._task.export, step=self.progress.step)
                replace_folder(folder / EXPORT, write)
            self._processes.barrier()
        self.modules.plain.train()

    def save(self, folder: Path) -> Path:
        """Write a checkpoint, and return where."""
        tensors = self.tensors()
        path = folder
        if self._processes.is_first:
            if self.journal:
                self.journal.sync()
            settings = self.config.model_dump(mode="json")
            snapshot = Snapshot(self.progress, tensors, settings)
            path = write_snapshot(folder, snapshot, self.config.run.keep)
        self._processes.barrier()
        return path

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is carried from step to step, whole, by name."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.modules.parameters().items():
            found[f"parameter.{name}"] = whole(parameter.detach())
            # A parameter that no loss has reached has no moments yet.
            for moment, value in self.optimiser.state.get(parameter, {}).items():
                found[f"{moment}.{name}"] = whole(value)
        for name, value in self._task.memory().items():
            found[f"memory.{name}"] = value.detach().clone()
        for kind, state in _randomness(self._processes.device).items():
            states = self._processes.gather(state[None].to(self._processes.device))
            found |= {f"random.{kind}.{rank}": row for rank, row in enumerate(states.cpu())}
        return found

    def restore(self, folder: Path, warn: Callable[[str], None]) -> None:
        """Go on from the newest checkpoint, if there is one.

        Args:
            folder: The run's.
            warn: Told of damaged checkpoints.
        """
        snapshot = read_newest(folder, warn) if self._processes.is_first else None
        # The others read when the first has dropped what is damaged.
        self._processes.barrier()
        if not self._processes.is_first:
            snapshot = read_newest(folder, warn)
        if snapshot is None:
            return
        check_same(snapshot.config, self.config)
        self.progress = snapshot.progress
        self._take(snapshot.tensors)

    def _take(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.modules.parameters().items():
            copy_into(parameter, tensors[f"parameter.{name}"])
            if f"step.{name}" not in tensors:
                continue
            state: dict[str, Any] = {"step": tensors[f"step.{name}"]}
            for moment in _MOMENTS[:2]:
                state[moment] = torch.zeros_like(parameter)
                copy_into(state[moment], tensors[f"{moment}.{name}"])
            self.optimiser.state[parameter] = state
        held = {n.removeprefix("memory."): t for n, t in tensors.items() if n.startswith("memory.")}
        self._task.remember({n: t.to(self._processes.device) for n, t in held.items()})
        rank = self._processes.rank
        # A run that goes on with more processes than before has no state for the new ones.
        if (own := tensors.get(f"random.cpu.{rank}")) is not None:
            torch.set_rng_state(own)
        if (own := tensors.get(f"random.cuda.{rank}")) is not None:
            torch.cuda.set_rng_state(own, self._processes.device)


def rate_at(optimiser: Optimiser, step: int, steps: int) -> float:
    """Return the learning rate of a step: up to its peak in a line, then down to 0 in a line.

    Args:
        optimiser: The peak, and the share of steps in which it is reached.
        step: From 0 on.
        steps: How many there are.

    Returns:
        The rate.
    """
    rising = math.ceil(optimiser.warmup * steps)
    if step < rising:
        return optimiser.rate * (step + 1) / rising
    return optimiser.rate * (steps - step) / (steps - rising)


def _autocast(
    dtype: Literal["float32", "bfloat16"], device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    if dtype == "float32":
        return nullcontext
    if device.type == "cuda":
        has_it = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_it = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if not has_it:
        raise OptionError(f"run.dtype is bfloat16, which this {device.type} has not. Give float32.")
    return partial(torch.autocast, device.type, dtype=torch.bfloat16)


def _randomness(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Let work draw random numbers without a trace, so that how often it is done is free."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying; a second one acts as usual."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.getsignal(number) for number in wanted}

    def note(number: int, _: FrameType | None) -> None:
        seen.append(number)
        signal.signal(number, usual[signal.Signals(number)])

    for number in wanted:
        signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
