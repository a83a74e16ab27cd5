"""Progress bars and sizes, for verbs that work for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from univerb.cli.console import errors


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function of stage, done and total that shows a bar per stage, on terminals only.

    It has the time that is left, or, of a stage that is done in one step, moves all the time.
    """
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=errors, disable=not errors.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            is_known = done or total > 1
            bars.update(tasks[stage], completed=done, total=total if is_known else None)

        yield show


def format_size(size: float) -> str:
    """Return a number of bytes with its unit."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
