"""The longest verbatim run: how much of a text stands in one source, word for word.

The text becomes a suffix automaton, through which each source is read once: the time grows with the
length of both, not with their product.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """A stretch of a text that a source has too."""

    length: int
    start: int
    """Where it begins in the text."""
    source: int
    """The place of the source among those given; -1 if nothing is shared."""


def longest_run(text: Sequence[Hashable], sources: Iterable[Sequence[Hashable]]) -> Run:
    """Find the longest stretch of a text that one source contains.

    Args:
        text: Words or tokens.
        sources: The same of each source.

    Returns:
        The first of the longest ones; length 0 if nothing is shared.
    """
    automaton = _Automaton(text)
    best = Run(0, 0, -1)
    for number, source in enumerate(sources):
        length, start = automaton.longest(source)
        if length > best.length:
            best = Run(length, start, number)
    return best


class _Automaton:
    """All stretches of a text: a state for each set of places at which stretches end."""

    def __init__(self, text: Iterable[Hashable]) -> None:
        self._next: list[dict[Hashable, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        last = 0
        for place, item in enumerate(text, start=1):
            last = self._extend(last, item, place)

    def longest(self, source: Iterable[Hashable]) -> tuple[int, int]:
        """Return the length of the longest shared stretch, and where it begins in the text."""
        state = length = 0
        best = (0, 0)
        for item in source:
            while state and item not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if item in self._next[state]:
                state = self._next[state][item]
                length += 1
            if length > best[0]:
                best = (length, self._end[state] - length)
        return best

    def _extend(self, last: int, item: Hashable, place: int) -> int:
        new = self._add(self._length[last] + 1, {}, place)
        at = last
        while at >= 0 and item not in self._next[at]:
            self._next[at][item] = new
            at = self._link[at]
        self._link[new] = 0 if at < 0 else self._split(at, item)
        return new

    def _split(self, at: int, item: Hashable) -> int:
        """Return the state of the longest suffix that was there before, apart from longer ones."""
        target = self._next[at][item]
        if self._length[target] == self._length[at] + 1:
            return target
        copy = self._add(self._length[at] + 1, dict(self._next[target]), self._end[target])
        self._link[copy] = self._link[target]
        self._link[target] = copy
        while at >= 0 and self._next[at].get(item) == target:
            self._next[at][item] = copy
            at = self._link[at]
        return copy

    def _add(self, length: int, following: dict[Hashable, int], end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._link) - 1
