"""What a run will need, measured on a few of its micro-batches."""

import resource
import sys
import time
from dataclasses import dataclass

import torch

from univerb.training.config import TrainingConfig
from univerb.training.processes import Processes
from univerb.training.task import Task
from univerb.training.trainer import Trainer

_WARM_UP, _TIMED = 2, 3


@dataclass(frozen=True, slots=True)
class DryRun:
    """Time, memory and sizes of a run."""

    rows_per_second: float
    step_seconds: float
    run_seconds: float
    peak_bytes: int
    """Of this process, or of its GPU."""
    trainable: int
    """Parameters that train."""
    snapshot_bytes: int


def dry_run(task: Task, config: TrainingConfig, processes: Processes) -> DryRun:
    """Measure a few micro-batches; writes nothing, but changes the task's parameters."""
    trainer = Trainer(task, config, processes)
    for index in range(_WARM_UP):
        trainer.micro_batch(index, is_last=True)
    # With a step, so that the moments are in memory too.
    began = time.perf_counter()
    trainer.optimiser.step()
    step_seconds = time.perf_counter() - began
    began, rows = time.perf_counter(), 0.0
    for index in range(_WARM_UP, _WARM_UP + _TIMED):
        rows += trainer.micro_batch(index, is_last=True)["rows"]
    seconds = (time.perf_counter() - began) / _TIMED
    step_seconds += seconds * config.run.accumulate
    parameters = trainer.modules.parameters().values()
    tensors = trainer.state_dict().values()
    return DryRun(
        rows_per_second=processes.all_reduce({"rows": rows})["rows"] / _TIMED / seconds,
        step_seconds=step_seconds,
        run_seconds=step_seconds * config.run.steps,
        peak_bytes=_peak_bytes(processes.device),
        trainable=sum(parameter.numel() for parameter in parameters),
        snapshot_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Kilobytes, but bytes on a Mac.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
