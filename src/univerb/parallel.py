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

from univerb.errors import MissingExtra, OptionError, WorkerError, first_line
from univerb.threads import processors

T = TypeVar("T")
R = TypeVar("R")

_MAX_WORKERS = 1024


class Workers(Protocol):
    """Applies a function to many items; use it in a `with` statement."""

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the results of a module-level function, in the order of the items.

        Few items are under way at a time. The first error is raised as it is, and items that
        have not been started are not started.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_workers(count: int | None = None, ray_address: str | None = None) -> Workers:
    """Make `count` workers on this machine, or as many as a running Ray cluster has processors.

    The address is as `ray.init` takes it; a cluster that the caller is connected to is used as is.
    """
    if ray_address is None:
        return local_workers(1 if count is None else count)
    if count is not None:
        raise OptionError("a Ray cluster has its own number of workers: leave the number out.")
    return _Ray(ray_address)


def local_workers(count: int = 1) -> Workers:
    """Make workers on this machine.

    A single worker is this process, which computes a result when it is asked for. More are
    processes that share the machine's cores; they end at once if the `with` statement ends with
    an error or this process dies.
    """
    if not 1 <= count <= _MAX_WORKERS:
        raise OptionError(f"workers is {count}; give 1 to {_MAX_WORKERS}.")
    return _ThisProcess() if count == 1 else _Processes(count)


class _ThisProcess(AbstractContextManager["_ThisProcess"]):
    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map(function, items)

    def __exit__(self, *_: object) -> None:
        pass


class _Processes:
    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Only this process holds the sending end: all workers see it close, or die with it.
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self._count, context, _end_with_parent, (self._receiver,))
        return self

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        def submit(item: T) -> Future[R]:
            # The pool starts processes as work comes in.
            with _threads_each(self._count):
                return self._pool.submit(_apply, function, item)

        try:
            yield from _in_order(items, submit, Future.result, Future.cancel, 2 * self._count)
        except BrokenProcessPool as error:
            raise WorkerError(
                f"one of {self._count} worker processes was killed, perhaps because memory ran "
                "out. Run it again with fewer workers."
            ) from error

    def __exit__(self, *error: object) -> None:
        if any(error):
            self._sender.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._sender.close()
        self._receiver.close()


class _Ray:
    def __init__(self, address: str) -> None:
        self._address = address
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        self._ray: Any = ray  # annotated only in part

    def __enter__(self) -> Self:
        self._is_connected_here = not self._ray.is_initialized()
        if self._is_connected_here:
            try:
                self._ray.init(self._address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise WorkerError(
                    f"no Ray cluster answers at {self._address!r}: {first_line(error)}. "
                    "Check the address, or leave it out to run on this machine."
                ) from error
        self._apply: Any = self._ray.remote(_apply)
        return self

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        try:
            yield from _in_order(
                items,
                submit=lambda item: self._apply.remote(function, item),
                result=self._ray.get,
                cancel=self._ray.cancel,
                limit=2 * max(1, int(self._ray.cluster_resources().get("CPU", 1))),
            )
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            problem = first_line(error)
            raise WorkerError(f"Ray lost a worker: {problem}. Run it again.") from error

    def __exit__(self, *_: object) -> None:
        if self._is_connected_here:
            self._ray.shutdown()


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
def _threads_each(count: int) -> Iterator[None]:
    """Give processes that start in the block their share of the cores, if the user does not."""
    name = "OMP_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = str(max(1, len(processors()) // count))
    try:
        yield
    finally:
        os.environ.pop(name, None)
