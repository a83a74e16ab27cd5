"""Systems in processes of their own, which wait without computing until they are asked."""

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from univerb.errors import UniverbError, WorkerError
from univerb.lab.peak_memory import peak_megabytes
from univerb.lab.speed.systems import LoadedSystem, Measurement, SystemSettings, load_system
from univerb.lab.speed.workloads import Request
from univerb.threads import processors

WARM_UP = 8
"""Tokens of each warm-up."""
_PATH = re.compile(r"(?<![\w.~])(?:~|\.{1,2})?/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


class SystemProcess:
    """A system in a process of its own.

    Args:
        name: The system.
        settings: What all have in common.
    """

    def __init__(self, name: str, settings: SystemSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, settings), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_loaded(self) -> str:
        """Return the system's precision once it is loaded, or raise why it cannot be."""
        return str(self._receive())

    def write(self, request: Request, max_tokens: int) -> Measurement:
        """Have a prompt continued, and wait for the measurement."""
        self._connection.send((request, max_tokens))
        measurement: Measurement = self._receive()
        return measurement

    def close(self) -> None:
        """End the process, whatever it does."""
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:  # noqa: ANN401  (the answer to whatever was asked)
        try:
            is_good, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(timeout=5)
            raise WorkerError(
                f"the process of system {self._name!r} died (exit code {self._process.exitcode}), "
                "perhaps because memory ran out. Name fewer systems with --system; the rounds that "
                "are complete are kept."
            ) from None
        if not is_good:
            raise WorkerError(f"system {self._name!r}: {answer}")
        return answer


@contextmanager
def running_systems(
    names: Sequence[str], settings: SystemSettings, warm_up: Sequence[Request]
) -> Iterator[tuple[dict[str, SystemProcess], dict[str, str], dict[str, str]]]:
    """Load systems one after the other, warm all up, and end them with the block.

    Args:
        names: The systems.
        settings: What all have in common.
        warm_up: Requests that are not measured.

    Yields:
        The processes, the precision of each, and the reason for each that could not be loaded.
    """
    running: dict[str, SystemProcess] = {}
    precision: dict[str, str] = {}
    failed: dict[str, str] = {}

    @contextmanager
    def left_out_if_failing(name: str) -> Iterator[None]:
        try:
            yield
        except WorkerError as error:
            running.pop(name).close()
            failed[name] = without_paths(str(error)).removeprefix(f"system {name!r}: ")

    try:
        for name in names:
            running[name] = SystemProcess(name, settings)
            with left_out_if_failing(name):
                precision[name] = running[name].wait_until_loaded()
        # After all are loaded: the first ones would be cold again by then.
        for name in list(running):
            with left_out_if_failing(name):
                for request in warm_up:
                    running[name].write(request, WARM_UP)
        yield running, precision, failed
    finally:
        for process in running.values():
            process.close()


def without_paths(text: str) -> str:
    """Return a message in which only the last part of every path is left."""
    return _PATH.sub("", text)


def _serve(connection: Connection, name: str, settings: SystemSettings) -> None:
    """Load a system, then answer requests until the other side is gone."""
    # Ctrl-C reaches every process of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The bars of many processes would overwrite the one of the run.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    _use_cores(settings.threads)
    try:
        try:
            system = load_system(name, settings)
        except Exception as error:  # passed on to the process that asked, whatever it is
            connection.send((False, _reason(error)))
            return
        connection.send((True, system.precision))
        while True:
            connection.send(_answer(system, *connection.recv()))
    except (EOFError, ConnectionError):
        return


def _answer(
    system: LoadedSystem, request: Request, max_tokens: int
) -> tuple[bool, Measurement | str]:
    try:
        measurement = system.write(request, max_tokens)
    except Exception as error:  # passed on to the process that asked, whatever it is
        return False, _reason(error)
    return True, replace(measurement, peak_mb=peak_megabytes())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UniverbError) else f"{type(error).__name__}: {error}"


def _use_cores(threads: int) -> None:
    """Leave this process `threads` cores, so that every library takes as many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(processors())[:threads])
