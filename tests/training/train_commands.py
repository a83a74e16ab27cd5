"""Several `univerb` commands, one after the other, in processes that start only once.

Alone or under torchrun: `train_commands.py '[{"command": ["train", "a.yaml"]}, ...]'`. One with
`signal` and `at` is run by a child, which sends itself the signal in that micro-batch. The last
line tells how each ended.
"""

import json
import os
import signal
import sys
from typing import Any

import torch

from univerb.cli.app import main
from univerb.training.processes import Processes
from univerb.training.trainer import Trainer


def call(command: list[str]) -> int:
    """Run a command as its console script would, and return its exit code."""
    sys.argv = ["univerb", *command]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def interrupt(command: list[str], name: str, at: int) -> int:
    """Run a command in a child that gets a signal; return its code, or minus the signal."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    usual = Trainer.micro_batch

    def micro_batch(self: Trainer, index: int, is_last: bool) -> dict[str, float]:
        if index == at:
            os.kill(os.getpid(), signal.Signals[name])
        return usual(self, index, is_last)

    Trainer.micro_batch = micro_batch  # type: ignore[method-assign]
    code = 99
    try:
        code = call(command)
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(jobs: list[dict[str, Any]]) -> list[int]:
    """Run all jobs."""
    processes = Processes.from_environment()
    leave = processes.close
    # A command joins the others at its start and leaves them at its end; here they stay together.
    Processes.from_environment = classmethod(lambda cls, **_: processes)  # type: ignore[method-assign]
    processes.close = lambda: None  # type: ignore[method-assign]
    codes = [
        interrupt(job["command"], job["signal"], job["at"])
        if "signal" in job
        else call(job["command"])
        for job in jobs
    ]
    leave()
    return codes


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(run(json.loads(sys.argv[1]))) + "\n")
