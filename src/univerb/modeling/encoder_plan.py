"""What a causal phrase encoder reads for a set of phrases: few windows, in few passes.

One pass over a window gives the vector of every prefix of it. All n-grams that begin at one
position therefore cost one row; `plan` finds the fewest rows for any set. Nothing here imports
torch: an engine without it encodes, too.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

# Tokens per encoder pass: enough to keep a CPU's matrix units busy, few enough for its caches.
_PASS_TOKENS = 1024
_MAX_PADDING = 32
"""Tokens of padding in a pass: about as many as another pass would cost."""

Key = tuple[int, ...]
Ints = NDArray[numpy.int64]


class Plan(NamedTuple):
    """Which windows to encode, and where in them each key ends."""

    windows: list[Key]
    row: list[int]
    column: list[int]


def plan(keys: Sequence[Key]) -> Plan:
    """Find the fewest windows of which every key is a prefix; keys may repeat."""
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
    windows: list[Key] = []
    row = [0] * len(keys)
    # In descending order a key's longest extension comes before it, with nothing between
    # them that does not extend the key too.
    for index in order:
        key = keys[index]
        if not windows or windows[-1][: len(key)] != key:
            windows.append(key)
        row[index] = len(windows) - 1
    return Plan(windows, row, [len(key) - 1 for key in keys])


class EncoderPass(NamedTuple):
    """Windows that are read together, and the keys that end in them."""

    windows: list[Key]
    """Of one length."""
    keys: Ints
    """Numbers of the keys."""
    row: Ints
    """The window of each of them."""
    column: Ints
    """Where in it each ends."""


def passes(layout: Plan) -> Iterator[EncoderPass]:
    """Read the windows of a plan, those of about equal length together."""
    groups = list(_groups(layout.windows))
    # Windows are numbered in the order of the passes: the keys of a pass are then contiguous.
    number = numpy.empty(len(layout.windows), numpy.int64)
    number[[row for rows in groups for row in rows]] = numpy.arange(len(number))
    window = number[layout.row]
    order = numpy.argsort(window, kind="stable")
    window, column = window[order], numpy.array(layout.column, numpy.int64)[order]
    begin = 0
    for rows in groups:
        keys = slice(*numpy.searchsorted(window, [begin, begin + len(rows)]))
        windows = _padded([layout.windows[row] for row in rows])
        yield EncoderPass(windows, order[keys], window[keys] - begin, column[keys])
        begin += len(rows)


def _groups(windows: Sequence[Key]) -> Iterator[list[int]]:
    """Group windows of about equal length: a little padding costs less than another pass."""
    rows: list[int] = []
    padding = longest = 0
    for index in sorted(range(len(windows)), key=lambda index: -len(windows[index])):
        padding += longest - len(windows[index])
        if not rows or padding > _MAX_PADDING or (len(rows) + 1) * longest > _PASS_TOKENS:
            if rows:
                yield rows
            rows, padding, longest = [], 0, len(windows[index])
        rows.append(index)
    if rows:
        yield rows


def _padded(windows: Sequence[Key]) -> list[Key]:
    """Lengthen windows to the first one's length, which no column before the end can see."""
    longest = len(windows[0])
    # By tokens of their own: a damaged row of the embeddings harms only phrases that have it.
    return [window + window[-1:] * (longest - len(window)) for window in windows]
