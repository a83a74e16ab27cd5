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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

from univerb.errors import CheckpointError, OptionError, TrainingError
from univerb.files import atomic_folder, atomic_write
from univerb.training.callback import Callback
from univerb.training.config import OptimiserConfig, TrainingConfig
from univerb.training.data_parallel import ParallelModules, copy_into, full_tensor
from univerb.training.metrics_logger import MetricsLogger
from univerb.training.processes import Processes
from univerb.training.seeding import seed_torch
from univerb.training.snapshots import (
    RunProgress,
    Snapshot,
    check_same,
    locked,
    read_newest,
    snapshot_paths,
    write_errors,
    write_snapshot,
)
from univerb.training.task import Task, TaskLoss

EXPORT = "encoder"
"""The folder, inside the run's, of what users load."""
SETTINGS = "training.yaml"
"""The file, beside it, with all settings of the run."""
# How checkpoints name a task's state.
_TASK = "memory."
StopReason = Literal["finished", "stopped early", "interrupted"]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    step: int
    reason: StopReason
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
    callback: Callback | None = None,
    resume: bool = True,
) -> TrainingResult:
    """Train until the last step, an early stop, or an interruption.

    Args:
        task: What is trained.
        config: The run's settings.
        folder: For checkpoints, log and export; all processes must see it.
        processes: Those that share the work.
        callback: Called in the first process as the run goes on.
        resume: Resume from the folder's newest checkpoint; otherwise its checkpoints are deleted.

    Returns:
        How it ended.

    Raises:
        CheckpointError: If the folder cannot be written, or its checkpoints do not fit.
        TrainingError: If the loss is not finite.
    """
    if callback is None or not processes.is_first:
        callback = Callback()
    with ExitStack() as stack:
        if processes.is_first:
            stack.enter_context(locked(folder))
            if not resume:
                for path in snapshot_paths(folder):
                    path.unlink()
        processes.barrier()
        trainer = Trainer(task, config, processes)
        trainer.restore(folder, callback.on_warning)
        progress = trainer.progress
        if processes.is_first:
            settings = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
            with write_errors(folder / SETTINGS):
                atomic_write(folder / SETTINGS, settings)
            logger = MetricsLogger(folder, progress.step, config.run.tensorboard)
            trainer.logger = stack.enter_context(logger)
        callback.on_train_begin(progress.step)
        stop_signals = stack.enter_context(_catch_signals())
        reason = _loop(trainer, folder, callback, stop_signals)
        if progress.best is None:
            trainer.export(folder)
        processes.barrier()
    return TrainingResult(progress.step, reason, progress.best_step, progress.best, folder / EXPORT)


def _loop(
    trainer: "Trainer", folder: Path, callback: Callback, stop_signals: list[int]
) -> StopReason:
    run, progress = trainer.config.run, trainer.progress
    patience = math.inf if run.patience is None else run.patience
    while progress.step < run.steps:
        if progress.waited >= patience:
            return "stopped early"
        metrics, is_interrupted = trainer.step(stop_signals)
        callback.on_step_end(progress.step, metrics)
        is_last = progress.step == run.steps
        if is_last or progress.step % run.validate_every == 0:
            metrics, is_best = trainer.validate()
            if metrics:
                callback.on_validation(progress.step, metrics, is_best)
            if is_best:
                trainer.export(folder)
        is_ending = is_last or is_interrupted or progress.waited >= patience
        if is_ending or progress.step % run.save_every == 0:
            callback.on_save(progress.step, trainer.save(folder))
        if is_interrupted and not is_last:
            return "interrupted"
    return "finished"


class Trainer:
    """A run in memory: modules, optimiser and progress."""

    def __init__(self, task: Task, config: TrainingConfig, processes: Processes) -> None:
        self.config = config
        self.progress = RunProgress()
        self.logger: MetricsLogger | None = None
        self._task = task
        self._processes = processes
        self.modules = ParallelModules(task.modules, processes, config.run.parallel)
        if not self.modules.parameters():
            raise OptionError("nothing in the model trains. Choose another regime.")
        self.modules.plain.train()
        settings = config.optimiser
        self.optimiser = torch.optim.AdamW(
            [
                {"params": group.params, "scale": settings.small_scale if group.is_small else 1.0}
                for group in self.modules.groups()
            ],
            lr=settings.rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )

    def step(self, stop_signals: Sequence[int] = ()) -> tuple[dict[str, float], bool]:
        """Do one step; TrainingError if the loss or its gradient is not finite.

        Args:
            stop_signals: Signals that this process has received; may grow during the step.

        Returns:
            Metrics over all processes, and whether any of them received a signal to stop.
        """
        began = time.perf_counter()
        count, step = self.config.run.accumulate, self.progress.step
        self.optimiser.zero_grad(set_to_none=True)
        values: dict[str, list[float]] = defaultdict(list)
        for number in range(count):
            is_last = number + 1 == count
            for name, value in self.micro_batch(step * count + number, is_last).items():
                values[name].append(value)
        rows = sum(values.pop("rows"))
        # A term that only some micro-batches have is the mean over those.
        means = {name: sum(parts) / len(parts) for name, parts in values.items()}
        metrics = self._processes.all_reduce({**means, "rows": rows, "stop": len(stop_signals)})
        is_interrupted = metrics.pop("stop") > 0
        norm = self.modules.clip(self.config.optimiser.clip)
        self._check_finite(metrics["loss"], norm)
        rate = learning_rate(self.config.optimiser, step, self.config.run.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["scale"]
        self.optimiser.step()
        self.progress.step += 1
        seconds = time.perf_counter() - began
        metrics["rows_per_second"] = metrics.pop("rows") / seconds
        metrics |= {"rate": rate, "grad_norm": norm, "seconds": seconds}
        if self.logger:
            self.logger.write("step", self.progress.step, metrics)
        return metrics, is_interrupted

    def _autocast(self) -> torch.autocast:
        is_enabled = self.config.run.dtype == "bfloat16"
        return torch.autocast(self._processes.device.type, torch.bfloat16, enabled=is_enabled)

    def micro_batch(self, index: int, is_last: bool) -> dict[str, float]:
        """Add the gradients of micro-batch `index`; the last of a step exchanges them.

        Returns this process's shares of the loss and its terms, and its rows.
        """
        seed_torch(self.config.run.seed, index, self._processes.rank)
        with self.modules.exchange_gradients(is_last):
            with self._autocast():
                loss: TaskLoss = self.modules.run(partial(self._task.loss, index))
            if not loss.total.requires_grad:
                raise OptionError(
                    f"micro-batch {index} has no loss on process {self._processes.rank}: there is "
                    "less work than processes. Raise run.batch, or start fewer processes."
                )
            self.modules.backward(loss.total / self.config.run.accumulate)
        return {"loss": float(loss.total.detach()), **loss.terms, "rows": float(loss.rows)}

    def _check_finite(self, loss: float, norm: float) -> None:
        for name, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the {name} is {value} at step {self.progress.step + 1}. The last checkpoint "
                    "is kept. Give a lower optimiser.rate or run.dtype float32, and start over."
                )

    def validate(self) -> tuple[dict[str, float], bool]:
        """Return the first process's validation metrics, and whether their score is the best."""
        progress = self.progress
        self.modules.plain.eval()
        with torch.no_grad(), self._autocast():
            metrics: dict[str, float] = self.modules.run(self._task.validate, train=False)
        self.modules.plain.train()
        metrics = self._processes.broadcast(metrics)
        score = metrics.get("score", math.nan)
        is_best = score < (math.inf if progress.best is None else progress.best)
        if is_best:
            progress.best, progress.best_step, progress.waited = score, progress.step, 0
        elif "score" in metrics:
            progress.waited += 1
        if self.logger:
            self.logger.write("validation", progress.step, metrics)
        return metrics, is_best

    def export(self, folder: Path) -> None:
        """Write what users load, in one step."""
        self.modules.plain.eval()
        with self.modules.full_params():
            if self._processes.is_first:
                path = folder / EXPORT
                with write_errors(path), atomic_folder(path, replace=True) as draft:
                    self._task.export(draft, self.progress.step)
            self._processes.barrier()
        self.modules.plain.train()

    def save(self, folder: Path) -> Path:
        """Write a checkpoint, and return its path."""
        settings, path = self.config.model_dump(mode="json"), folder
        snapshot = Snapshot(self.progress, self.state_dict(), settings)
        if self._processes.is_first:
            path = write_snapshot(folder, snapshot, self.config.run.keep)
        self._processes.barrier()
        return path

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that is carried from step to step, unsharded, by name."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.modules.parameters().items():
            tensors[f"parameter.{name}"] = full_tensor(parameter.detach())
            # A parameter that no loss has reached has no moments yet.
            for moment, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"{moment}.{name}"] = full_tensor(value)
        for name, value in self._task.state_dict().items():
            tensors[_TASK + name] = value.detach().clone()
        return tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, parameter in self.modules.parameters().items():
            copy_into(parameter, tensors[f"parameter.{name}"])
            if f"step.{name}" not in tensors:
                continue
            state: dict[str, Any] = {"step": tensors[f"step.{name}"]}
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter)
                copy_into(state[moment], tensors[f"{moment}.{name}"])
            self.optimiser.state[parameter] = state
        task = {n.removeprefix(_TASK): t for n, t in tensors.items() if n.startswith(_TASK)}
        self._task.load_state_dict({n: t.to(self._processes.device) for n, t in task.items()})

    def restore(self, folder: Path, warn: Callable[[str], None]) -> None:
        """Resume from the newest checkpoint of a run's folder, if there is one.

        A CheckpointError says if it is of other settings or of another model.
        """
        snapshot = read_newest(folder, warn) if self._processes.is_first else None
        # The others read when the first has deleted what is damaged.
        self._processes.barrier()
        if not self._processes.is_first:
            snapshot = read_newest(folder, warn)
        if snapshot is None:
            return
        check_same(snapshot.config, self.config)
        self.progress = snapshot.progress
        try:
            self.load_state_dict(snapshot.tensors)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint in {str(folder)!r} does not fit the model: {error}. Resume it "
                "with the univerb and the model that made it, or start over with --fresh."
            ) from error


def learning_rate(optimiser: OptimiserConfig, step: int, steps: int) -> float:
    """Return the rate of step 0, 1, ...: linear up to its peak, then linear down to 0."""
    warmup = math.ceil(optimiser.warmup * steps)
    if step < warmup:
        return optimiser.rate * (step + 1) / warmup
    return optimiser.rate * (steps - step) / (steps - warmup)


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying; a second one acts as usual."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, usual[signal.Signals(number)])

    for number in usual:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
