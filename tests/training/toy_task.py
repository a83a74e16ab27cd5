"""A regression that uses all that a task may: shares, gather, memory, dropout, idle parameters.

Also a program, for tests that kill it or start several processes of it:
    python toy_task.py SETTINGS (a JSON object, see `main`)
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from univerb.training.config import TrainingConfig
from univerb.training.metrics_logger import LOG
from univerb.training.processes import Processes
from univerb.training.snapshots import read_snapshot, snapshot_paths
from univerb.training.task import TaskLoss
from univerb.training.trainer import train

SIZE = 6


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def make_config(steps: int = 8, optimiser: dict[str, Any] | None = None, **run: Any):
    return TrainingConfig.model_validate(
        {
            "data": {"documents": ["none"]},
            "optimiser": {"rate": 0.05, "warmup": 0.2, **(optimiser or {})},
            "run": {"steps": steps, "accumulate": 2, **run},
        }
    )


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)])
        self.head = nn.Linear(SIZE, 1)
        self.sometimes = nn.Parameter(torch.ones(3))
        self.never = nn.Parameter(torch.ones(2))
        self.bias = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(SIZE), requires_grad=False)
        self.dropout = nn.Dropout(dropout)

    def encode(self, rows: Tensor) -> Tensor:
        """Not `forward`: tasks call what they like."""
        for layer in self.layers:
            rows = self.dropout(layer(rows).tanh())
        return rows * self.frozen


class ToyTask:
    """Rows attract their targets and are told apart from all rows of the batch and of the last."""

    def __init__(self, processes: Processes, *, dropout: float = 0.0, batch: int = 7) -> None:
        torch.manual_seed(3)
        self.net = Net(dropout).to(processes.device)
        self.processes = processes
        self.batch = batch
        self.last = torch.zeros(0, SIZE)
        self.scores: list[float] = []
        self.spoil: Callable[[int, Tensor], Tensor] = lambda _, loss: loss
        self.indices: list[int] = []

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net}

    def loss(self, index: int) -> TaskLoss:
        self.indices.append(index)
        draw = torch.Generator().manual_seed(1000 + index)
        rows = torch.randn(self.batch, SIZE, generator=draw)
        target = rows.sum(-1).sin()
        own = self.processes.share(self.batch)
        mine = slice(own.start, own.stop)
        encoded = self.net.encode(rows[mine])
        pool = self.processes.gather(encoded)
        others = torch.cat([pool, self.last])
        error = (self.net.head(encoded)[:, 0] + self.net.bias - target[mine]) ** 2
        apart = (encoded @ others.T).logsumexp(-1)
        total = (error + 0.1 * apart).sum() / self.batch
        terms = {"error": float(error.detach().sum()) / self.batch, "phrase_accuracy": 0.0}
        if index % 3 == 0:
            extra = (self.net.sometimes.sum() * encoded.mean(-1)).sum() / self.batch
            total = total + extra
            terms["extra"] = float(extra.detach())
        self.last = pool.detach()
        return TaskLoss(self.spoil(index, total), terms, len(own))

    def state_dict(self) -> dict[str, Tensor]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.last = state["last"]

    def validate(self) -> dict[str, float]:
        torch.rand(3)  # must leave no trace
        if self.scores:
            return {"score": self.scores.pop(0)}
        rows = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(7))
        value = self.net.head(self.net.encode(rows))[:, 0] + self.net.bias
        return {"score": float(((value - rows.sum(-1).sin()) ** 2).mean())}

    def export(self, folder: Path, step: int) -> None:
        folder.mkdir(exist_ok=True)
        state = {n: t.detach().contiguous() for n, t in self.net.state_dict().items()}
        save_file(state, folder / "net.safetensors")
        (folder / "step").write_text(str(step))


def check_gather(processes: Processes) -> None:
    """Compare rows and gradients with what one process computes from all rows."""
    for counts in ([3, 2], [0, 4], [5, 0]):
        blocks = [torch.arange(n * 2.0).reshape(n, 2) + 10 * r for r, n in enumerate(counts)]
        own = blocks[processes.rank].clone()
        # As a task does that has nothing to encode: no rows, and no gradient.
        leaf = own.requires_grad_() if len(own) else own
        gathered = processes.gather(leaf)
        assert torch.equal(gathered, torch.cat(blocks))
        (gathered**2 * (processes.rank + 1)).sum().backward()
        if len(own):
            assert torch.equal(leaf.grad, 2 * own.detach() * 3)
    with torch.no_grad():
        whole = processes.gather(torch.tensor([[processes.rank == 0]]))
    assert whole.tolist() == [[True], [False]]
    assert processes.all_reduce({"b": 1.0, "a": float(processes.rank)}) == {"b": 2.0, "a": 1.0}
    assert processes.broadcast({"a": float(processes.rank)}) == {"a": 0.0}


def run_job(settings: dict[str, Any], processes: Processes) -> dict[str, Any]:
    """Train; `stop` is (rank, index): who gets a SIGTERM, and in which micro-batch."""
    task = ToyTask(processes, **settings.get("task", {}))
    rank, at = settings.get("stop", (-1, -1))

    def spoil(index: int, loss: Tensor) -> Tensor:
        if (processes.rank, index) == (rank, at):
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    task.spoil = spoil
    config = make_config(**settings["config"])
    result = train(task, config, Path(settings["folder"]), processes)
    return {"step": result.step, "reason": result.reason, "best_step": result.best_step}


def _die_at(name: str, count: int, after: bool) -> None:
    """Kill this process at the n-th call of a function of `os`."""
    usual, calls = getattr(os, name), [0]

    def call(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = usual(*arguments)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, call)


def run_and_kill(job: dict[str, Any], moment: float | list[Any] | None) -> bool:
    """Train in a child of this process, which has torch already; tell whether it was killed."""
    child = os.fork()
    if not child:
        try:
            if isinstance(moment, list):
                _die_at(*moment)
            run_job(job, Processes.single("cpu"))
        finally:
            os._exit(0)
    if isinstance(moment, float):
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def crash(job: dict[str, Any], moments: list[Any]) -> dict[str, Any]:
    """Kill a run again and again, look at what is on disk each time, and let it finish.

    A moment is a share of the time that a whole run takes, or a call as in `_die_at`.
    """
    # Twice: what torch imports at the first step is not to be imported by each child.
    for name in ("-warm", "-timed"):
        began = time.perf_counter()
        run_job({**job, "folder": job["folder"] + name}, Processes.single("cpu"))
    seconds = time.perf_counter() - began
    folder, reached = Path(job["folder"]), []
    for moment in moments:
        was_killed = run_and_kill(job, moment * seconds if isinstance(moment, float) else moment)
        # All that bear a checkpoint's name, not only the newest.
        steps = [read_snapshot(path).progress.step for path in snapshot_paths(folder)]
        reached.append([was_killed, max(steps, default=0)])
    run_and_kill(job, None)
    return {"reached": reached}


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if "moments" in settings:
        answers = [crash(settings["job"], settings["moments"])]
    else:
        processes = Processes.from_environment()
        if processes.size > 1:
            check_gather(processes)
        answers = [run_job(job, processes) for job in settings["jobs"]]
        is_first = processes.is_first
        processes.close()
        if not is_first:
            return
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
