"""Several `univerb` commands, one after the other, in processes that start only once.

Started by torchrun or alone: `python train_commands.py '[["train", "a.yaml"], ["train", ...]]'`.
"""

import json
import sys

from univerb.cli.app import main
from univerb.training.processes import Processes


def run(commands: list[list[str]]) -> None:
    """Run each as its console script would; the first that fails ends it."""
    processes = Processes.from_environment()
    leave = processes.close
    # A command joins the others at its start and leaves them at its end; here they stay together.
    Processes.from_environment = classmethod(lambda cls: processes)  # type: ignore[method-assign]
    processes.close = lambda: None  # type: ignore[method-assign]
    for command in commands:
        sys.argv = ["univerb", *command]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    leave()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
