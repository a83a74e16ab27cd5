"""Parallel map in this process, in several, or on several machines, with the same results."""

import copy
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self, TypeVar

from univerb.errors import MissingExtra, OptionError, WorkerError
from univerb.threads import processors

T = TypeVar("T")
R = TypeVar("R")

_MAX_WORKERS = 1024


class Workers(Protocol):
    """Applies a function to many items; use it in a `with` statement."""

    @property
    def count(self) -> int:
        """Number of items that are processed at a time."""
        ...

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the results of a module-level function, in the order of the items.

        Few items are under way at a time. The first error is raised as it is, and items that
        have not been started are not started.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_workers(
    count: int | None = None, ray: bool = False, address: str | None = None
) -> Workers:
    """Make the workers that a command's options ask for; an `address` implies `ray`."""
    if ray or address is not None:
        return ray_workers(address, count)
    return local_workers(1 if count is None else count)


def local_workers(count: int = 1) -> Workers:
    """Make workers on this machine.

    A single worker is this process, which computes a result when it is asked for. More are
    processes that share the machine's cores; they end at once if the `with` statement ends with
    an error or this process dies.
    """
    return _ThisProcess() if _checked(count) == 1 else _Processes(count)


def ray_workers(address: str | None = None, count: int | None = None) -> Workers:
    """Make workers that run with Ray, by default one per core.

    `address` is that of a running cluster, as `ray.init` takes it. Without one, a Ray is started
    that is reachable from this machine only, unless the caller has started one; it is shut down
    at the end of the `with` statement.
    """
    return _Ray(address, count if count is None else _checked(count))


class _ThisProcess(AbstractContextManager["_ThisProcess"]):
    count: int = 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map(function, items)

    def __exit__(self, *_: object) -> None:
        pass


class _Processes:
    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Only this process holds the sending end: all workers see it close, or die with it.
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self.count, context, _end_with_parent, (self._receiver,))
        return self

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        def submit(item: T) -> Future[R]:
            # The pool starts processes as work comes in.
            with _environment(OMP_NUM_THREADS=_threads_each(self.count)):
                return self._pool.submit(_apply, function, item)

        try:
            yield from _in_order(items, submit, Future.result, Future.cancel, 2 * self.count)
        except BrokenProcessPool as error:
            raise WorkerError(
                f"one of {self.count} worker processes was killed, perhaps because memory ran "
                "out. Run it again with fewer workers."
            ) from error

    def __exit__(self, *error: object) -> None:
        if any(error):
            self._sender.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._sender.close()
        self._receiver.close()


class _Ray:
    def __init__(self, address: str | None, count: int | None) -> None:
        self._address = address
        self._requested = count
        self._is_started = False
        try:
            # Read when Ray is imported: without it, a local Ray would listen to the network.
            with _environment(**({} if address else _PRIVATE)):
                import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        self._ray: Any = ray  # annotated only in part

    @property
    def count(self) -> int:
        return self._requested or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            self._start()
            self._is_started = True
        self._apply: Any = self._ray.remote(_apply)
        return self

    def _start(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address:
                self._ray.init(address=self._address, **quiet)
                return
            count = self._requested or len(processors())
            with _environment(OMP_NUM_THREADS=_threads_each(count), **_PRIVATE):
                # "local": an address in the environment would be somebody else's cluster.
                self._ray.init(address="local", num_cpus=count, include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise WorkerError(
                f"Ray does not start with the address {self._address!r}: {_first_line(error)}. "
                "Check the address, or leave it out to run on this machine."
            ) from error
        if self._ray.util.get_node_ip_address() not in ("127.0.0.1", "::1"):
            self._ray.shutdown()
            raise WorkerError(
                "Ray was imported before and would listen to the network. Set "
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or start a Ray of your own with ray.init()."
            )

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        try:
            yield from _in_order(
                items,
                submit=lambda item: self._apply.remote(function, item),
                result=self._ray.get,
                cancel=self._ray.cancel,
                limit=2 * self.count,
            )
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            problem = _first_line(error)
            raise WorkerError(f"Ray lost a worker: {problem}. Run again with fewer.") from error

    def __exit__(self, *_: object) -> None:
        if self._is_started:
            self._ray.shutdown()


_PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Keeps Ray to the loopback, as on macOS, and makes it report nothing."""


def _in_order(
    items: Sequence[T],
    submit: Callable[[T], Any],
    result: Callable[[Any], R],
    cancel: Callable[[Any], object],
    limit: int,
) -> Iterator[R]:
    """Yield results in order, with at most `limit` items submitted ahead."""
    pending: deque[Any] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) >= limit:
                yield result(pending.popleft())
        while pending:
            yield result(pending.popleft())
    finally:
        for future in pending:
            cancel(future)


def _apply(function: Callable[[T], R], item: T) -> R:
    """Apply a function in another process, such that its error can be sent back."""
    try:
        return function(item)
    except Exception as error:
        try:
            copy.copy(error)
        except Exception:
            # It could not be unpickled, which would look like a dead worker.
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        raise


def _end_with_parent(receiver: Connection) -> None:
    """Let a worker process end with the one that started it."""
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        receiver.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for processes started in the block, unless the user has set them."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _threads_each(count: int) -> str:
    return str(max(1, len(processors()) // count))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def _checked(count: int) -> int:
    if not 1 <= count <= _MAX_WORKERS:
        raise OptionError(f"workers is {count}; give 1 to {_MAX_WORKERS}.")
    return count
