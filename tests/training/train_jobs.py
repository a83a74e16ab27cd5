"""Training jobs, one after the other, in processes that start only once.

Alone or under torchrun: `train_jobs.py '[{"toy": {...}}, {"command": ["train", "a.yaml"]}, ...]'`.
The last line of the first process tells how each ended.
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
from toy_task import ToyTask, make_config

from univerb.cli.app import main
from univerb.training.processes import Processes
from univerb.training.snapshots import read_snapshot, snapshot_paths
from univerb.training.trainer import Trainer, train


def run_toy(settings: dict[str, Any], processes: Processes) -> list[Any]:
    """Train; `stop` is (rank, index): who gets a SIGTERM, and in which micro-batch."""
    task = ToyTask(processes, **settings.get("task", {}))
    rank, at = settings.get("stop", (-1, -1))

    def spoil(index: int, loss: torch.Tensor) -> torch.Tensor:
        if (processes.rank, index) == (rank, at):
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    task.spoil = spoil
    result = train(task, make_config(**settings["config"]), Path(settings["folder"]), processes)
    return [result.step, result.reason]


def run_command(command: list[str]) -> int:
    """Run a command as its console script would, and return its exit code."""
    sys.argv = ["univerb", *command]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def in_child(work: Callable[[], Any], kill_after: float | None = None) -> int:
    """Run in a child of this process, which has torch already; returns its code, or -signal."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 99
        try:
            code = work() or 0
        finally:
            sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupted(command: list[str], name: str, at: int) -> int:
    """Run a command that sends itself a signal in a micro-batch."""
    usual = Trainer.micro_batch

    def micro_batch(self: Trainer, index: int, is_last: bool) -> dict[str, float]:
        if index == at:
            os.kill(os.getpid(), signal.Signals[name])
        return usual(self, index, is_last)

    Trainer.micro_batch = micro_batch  # type: ignore[method-assign]
    return run_command(command)


def die_at(name: str, count: int, after: bool) -> None:
    """Kill this process before or after the n-th call of a function of `os`."""
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


def saved_steps(folder: Path) -> list[int]:
    """Read all that bear a checkpoint's name, not only the newest: each must be complete."""
    return [read_snapshot(path).progress.step for path in snapshot_paths(folder)]


def kill_each(command: list[str], out: str, moments: list[float]) -> list[list[Any]]:
    """Kill a run at each moment, a share of its time, in a folder of its own, and let it finish."""

    def work(folder: str) -> Callable[[], int]:
        return lambda: run_command([*command, "--out", folder])

    for name in (f"{out}-whole", f"{out}-timed"):
        began = time.perf_counter()
        work(name)()
    seconds = time.perf_counter() - began
    reached: list[list[Any]] = []
    for number, moment in enumerate(moments):
        folder = f"{out}-{number}"
        killed = in_child(work(folder), moment * seconds)
        reached.append([killed, saved_steps(Path(folder)), in_child(work(folder))])
    return reached


def crash(settings: dict[str, Any], moments: list[Any]) -> list[list[Any]]:
    """Kill a toy run again and again, look at what is on disk each time, and let it finish.

    A moment is a share of the time that a whole run takes, or a call as in `die_at`.
    """
    alone = Processes.single("cpu")
    # Twice: what torch imports at the first step is not to be imported by each child.
    for name in ("-whole", "-timed"):
        began = time.perf_counter()
        run_toy({**settings, "folder": settings["folder"] + name}, alone)
    seconds = time.perf_counter() - began
    reached = []
    for moment in moments:

        def work(moment: Any = moment) -> None:
            if isinstance(moment, list):
                die_at(*moment)
            run_toy(settings, alone)

        code = in_child(work, moment * seconds if isinstance(moment, float) else None)
        reached.append([code, max(saved_steps(Path(settings["folder"])), default=0)])
    in_child(lambda: run_toy(settings, alone))
    return reached


def check_gather(processes: Processes) -> None:
    """Compare rows and gradients with what one process computes from all rows."""
    for counts in ([3, 2], [0, 4], [5, 0]):
        blocks = [torch.arange(n * 2.0).reshape(n, 2) + 10 * r for r, n in enumerate(counts)]
        rows = blocks[processes.rank].clone()
        # As a task does that has nothing to encode: no rows, and no gradient.
        leaf = rows.requires_grad_() if len(rows) else rows
        gathered = processes.gather(leaf)
        assert torch.equal(gathered, torch.cat(blocks))
        (gathered**2 * (processes.rank + 1)).sum().backward()
        if len(rows):
            assert torch.equal(leaf.grad, 2 * rows.detach() * 3)
    with torch.no_grad():
        both = processes.gather(torch.tensor([[processes.rank == 0]]))
    assert both.tolist() == [[True], [False]]
    assert processes.all_reduce({"b": 1.0, "a": float(processes.rank)}) == {"b": 2.0, "a": 1.0}
    assert processes.broadcast({"a": float(processes.rank)}) == {"a": 0.0}


def run_job(job: dict[str, Any], processes: Processes) -> Any:
    if "toy" in job:
        return run_toy(job["toy"], processes)
    if "crash" in job:
        return crash(job["crash"], job["moments"])
    if "moments" in job:
        return kill_each(job["command"], job["out"], job["moments"])
    if "signal" in job:
        return in_child(lambda: interrupted(job["command"], job["signal"], job["at"]))
    return run_command(job["command"])


def run_all(jobs: list[dict[str, Any]]) -> None:
    processes = Processes.from_environment()
    if processes.size > 1:
        check_gather(processes)
    leave = processes.close
    # A command joins the others at its start and leaves them at its end; here they stay together.
    Processes.from_environment = classmethod(lambda cls, **_: processes)  # type: ignore[method-assign]
    processes.close = lambda: None  # type: ignore[method-assign]
    answers = [run_job(job, processes) for job in jobs]
    leave()
    if processes.is_first:
        sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_all(json.loads(sys.argv[1]))
