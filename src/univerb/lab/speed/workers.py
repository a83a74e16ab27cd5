"""Models in processes of their own, which wait without computing until they are asked."""

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from univerb.errors import UniverbError, WorkerError
from univerb.lab.speed.systems import SYSTEMS, HostName, Measurement, SystemSettings
from univerb.lab.speed.workloads import Request
from univerb.threads import processors

_PATH = re.compile(r"(?<![\w.~])(?:~|\.{1,2})?/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


class HostProcess:
    """A model in a process of its own.

    Args:
        name: Which one.
        settings: What all systems have in common.
    """

    def __init__(self, name: HostName, settings: SystemSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, settings), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_loaded(self) -> tuple[str, str]:
        """Return its weights and row costs once it is loaded, or raise why it cannot be."""
        weights, row_costs = self._receive()
        return str(weights), str(row_costs)

    def write(self, system: str, request: Request) -> Measurement:
        """Have a system continue a prompt, and wait for the measurement."""
        with suppress(ConnectionError):  # it died; receiving says so
            self._connection.send((system, request))
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
                f"the process of {self._name!r} died (exit code {self._process.exitcode}), "
                "perhaps because memory ran out. Name fewer systems with --system; the rounds that "
                "are complete are kept."
            ) from None
        if not is_good:
            raise WorkerError(str(answer))
        return answer


@dataclass(frozen=True, slots=True)
class RunningSystems:
    """Systems that are ready."""

    processes: dict[str, HostProcess] = field(default_factory=dict)
    """By system; several may share one."""
    weights: dict[str, str] = field(default_factory=dict)
    """The precision of each system's weights."""
    row_costs: dict[str, str] = field(default_factory=dict)
    """What passes over several rows cost, by model: what drafts are chosen by."""
    failed: dict[str, str] = field(default_factory=dict)
    """The reason for each that could not be loaded, or could not write."""


@contextmanager
def running_systems(
    names: Sequence[str], settings: SystemSettings, warm_up: Request
) -> Iterator[RunningSystems]:
    """Load models one after the other, warm all systems up, and end them with the block.

    Args:
        names: The systems.
        settings: What all have in common.
        warm_up: A request that is not measured.

    Yields:
        The systems, and those that could not be loaded.
    """
    hosts: dict[HostName, HostProcess] = {}
    weights: dict[HostName, str] = {}
    reasons: dict[HostName, str] = {}
    systems = RunningSystems()
    try:
        for host in dict.fromkeys(SYSTEMS[name].host for name in names):
            hosts[host] = HostProcess(host, settings)
            try:
                weights[host], systems.row_costs[host] = hosts[host].wait_until_loaded()
            except WorkerError as error:
                reasons[host] = without_paths(str(error))
        # After all are loaded: the first ones would be cold again by then.
        for name in names:
            spec = SYSTEMS[name]
            try:
                if spec.host in reasons:
                    raise WorkerError(reasons[spec.host])
                hosts[spec.host].write(name, warm_up)
                systems.processes[name] = hosts[spec.host]
                systems.weights[name] = weights[spec.host] or spec.dtype
            except WorkerError as error:
                systems.failed[name] = without_paths(str(error))
        yield systems
    finally:
        for process in hosts.values():
            process.close()


def without_paths(text: str) -> str:
    """Return a message in which only the last part of every path is left."""
    return _PATH.sub("", text)


def _serve(connection: Connection, name: HostName, settings: SystemSettings) -> None:
    """Load a model, then answer requests until the other side is gone."""
    # Ctrl-C reaches every process of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The bars of many processes would overwrite the one of the run.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    _use_cores(settings.threads)
    from univerb.lab.speed.hosts import load_host

    try:
        try:
            host = load_host(name, settings)
        except Exception as error:  # passed on to the process that asked, whatever it is
            connection.send((False, _reason(error)))
            return
        connection.send((True, (host.weights, host.row_costs)))
        while True:
            system, request = connection.recv()
            try:
                answer: object = host.write(SYSTEMS[system], request)
            except Exception as error:  # passed on, too
                connection.send((False, f"{system}: {_reason(error)}"))
            else:
                connection.send((True, answer))
    except (EOFError, ConnectionError):
        return


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UniverbError) else f"{type(error).__name__}: {error}"


def _use_cores(threads: int) -> None:
    """Leave this process `threads` cores, so that every library takes as many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(processors())[:threads])
