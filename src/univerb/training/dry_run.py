"""What a run will need, measured by a few micro-batches of it."""

import resource
import sys
import time
from dataclasses import dataclass

import torch

from univerb.training.config import TrainingConfig
from univerb.training.processes import Processes
from univerb.training.task import Task
from univerb.training.trainer import Trainer

_WARM, _TIMED = 2, 3


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a run will need."""

    rows_per_second: float
    step_seconds: float
    run_seconds: float
    peak_bytes: int
    """Of this process, or of its GPU."""
    trainable: int
    """Parameters that train."""
    snapshot_bytes: int


def rehearse(task: Task, config: TrainingConfig, processes: Processes) -> Rehearsal:
    """Run a few micro-batches and tell what the run would need. Nothing is written.

    Args:
        task: What would be trained; its parameters change a little.
        config: How.
        processes: Those that would share the work.

    Returns:
        Time, memory and sizes.
    """
    trainer = Trainer(task, config, processes)
    for index in range(_WARM):
        trainer.pass_over(index, more_follow=False)
    # With a step, so that the moments are in memory too.
    began = time.perf_counter()
    trainer.optimiser.step()
    step_seconds = time.perf_counter() - began
    began, rows = time.perf_counter(), 0.0
    for index in range(_WARM, _WARM + _TIMED):
        rows += trainer.pass_over(index, more_follow=False)["rows"]
    seconds = (time.perf_counter() - began) / _TIMED
    step_seconds += seconds * config.run.accumulate
    parameters = trainer.modules.parameters().values()
    tensors = trainer.tensors().values()
    return Rehearsal(
        rows_per_second=processes.total({"rows": rows})["rows"] / _TIMED / seconds,
        step_seconds=step_seconds,
        run_seconds=step_seconds * config.run.steps,
        peak_bytes=_peak(processes.device),
        trainable=sum(parameter.numel() for parameter in parameters),
        snapshot_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Kilobytes, but bytes on a Mac.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
