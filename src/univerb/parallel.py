"""The same work in this process, in several, or on several machines, with the same results."""

import copy
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self, TypeVar

from univerb.errors import MissingExtra, OptionError, WorkerError
from univerb.threads import processors

T = TypeVar("T")
R = TypeVar("R")

_MOST_WORKERS = 1024


class Workers(Protocol):
    """Somebody who applies a function to many items."""

    @property
    def count(self) -> int:
        """How many items are worked on at a time."""
        ...

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Apply a function to items.

        Args:
            function: A function of a module, so that other processes find it.
            items: What to apply it to.

        Returns:
            An iterator over the results, in the order of the items, with few of them under way.
            The first error is raised as it was; what was not begun then is not begun.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_workers(
    count: int | None = None, ray: bool = False, address: str | None = None
) -> Workers:
    """Make the workers that a command's options ask for.

    Args:
        count: How many; by default this process alone, and with Ray one per core.
        ray: Run them with Ray.
        address: Of a Ray cluster; implies `ray`.

    Returns:
        Workers to use in a `with` statement.
    """
    if ray or address is not None:
        return ray_workers(address, count)
    return local_workers(1 if count is None else count)


def local_workers(count: int = 1) -> Workers:
    """Make workers on this machine.

    Args:
        count: 1 works in this process, item by item as the results are taken; more work in so
            many processes of their own, which share the machine's cores.

    Returns:
        Workers to use in a `with` statement. If it ends with an error, or this process dies, their
        processes end at once.
    """
    return _ThisProcess() if _checked(count) == 1 else _Processes(count)


def ray_workers(address: str | None = None, count: int | None = None) -> Workers:
    """Make workers that run with Ray.

    Args:
        address: Of a cluster that runs already, as `ray.init` takes it; None starts a Ray on this
            machine, reachable from this machine only, unless the caller has started one.
        count: How many items are worked on at a time; by default one per core.

    Returns:
        Workers to use in a `with` statement. At its end a Ray that it started is shut down.

    Raises:
        MissingExtra: If Ray is not installed.
    """
    return _Ray(address, count if count is None else _checked(count))


class _ThisProcess:
    count: int = 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map(function, items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Processes:
    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Only this process holds the other end: closed, or dead with it, it is seen by all.
        self._collar, self._leash = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self.count, context, _put_on_leash, (self._collar,))
        return self

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        def submit(item: T) -> Future[R]:
            # The pool starts a process when there is work for it.
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
            self._leash.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._leash.close()
        self._collar.close()


class _Ray:
    def __init__(self, address: str | None, count: int | None) -> None:
        self._address = address
        self._wanted = count
        self._is_ours = False
        try:
            # Read when Ray is imported: without it a local Ray would listen to the network.
            with _environment(**({} if address else _PRIVATE)):
                import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        self._ray: Any = ray  # annotated only in part

    @property
    def count(self) -> int:
        return self._wanted or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            self._start()
            self._is_ours = True
        self._apply: Any = self._ray.remote(_apply)
        return self

    def _start(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address:
                self._ray.init(address=self._address, **quiet)
                return
            count = self._wanted or len(processors())
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
                most=2 * self.count,
            )
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"Ray lost a worker: {_first_line(error)}. Run it again, "
                "perhaps with fewer workers."
            ) from error

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._ray.shutdown()


_PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""What keeps a Ray to the loopback and makes it report nothing, as Ray's own macOS default."""


def _in_order(
    items: Sequence[T],
    submit: Callable[[T], Any],
    result: Callable[[Any], R],
    cancel: Callable[[Any], object],
    most: int,
) -> Iterator[R]:
    """Yield results in order with at most so many items under way or waiting to be taken."""
    waiting: deque[Any] = deque()
    try:
        for item in items:
            waiting.append(submit(item))
            if len(waiting) >= most:
                yield result(waiting.popleft())
        while waiting:
            yield result(waiting.popleft())
    finally:
        for one in waiting:
            cancel(one)


def _apply(function: Callable[[T], R], item: T) -> R:
    """Apply a function where the result, or the error, must travel to another process."""
    try:
        return function(item)
    except Exception as error:
        try:
            copy.copy(error)
        except Exception:
            # It could not be made again on the other side, which would look like a dead worker.
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        raise


def _put_on_leash(leash: Connection) -> None:
    """Let a worker process end with the one that started it."""
    # Ctrl-C reaches every process of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        leash.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile, unless the user has set them."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _threads_each(count: int) -> str:
    return str(max(1, len(processors()) // count))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def _checked(count: int) -> int:
    if not 1 <= count <= _MOST_WORKERS:
        raise OptionError(f"workers is {count}; it must lie between 1 and {_MOST_WORKERS}.")
    return count
