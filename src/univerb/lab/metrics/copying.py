"""How much of a text stands in its sources, word for word: the longest run, and the coverage.

The text becomes a suffix automaton, through which each source is read once: the time grows with the
length of both, not with their product.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from univerb.errors import OptionError

AT_LEAST = 5
"""Words of a run that counts as copied; many shorter ones are shared by chance."""


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


def copy_coverage(
    text: Sequence[Hashable], sources: Iterable[Sequence[Hashable]], at_least: int = AT_LEAST
) -> float:
    """Return the share of a text's words that lie in verbatim runs from its sources.

    A run is a stretch of the text that one source contains; no run goes on from one source into the
    next. A word counts once, however many runs cover it.

    Args:
        text: Words or tokens.
        sources: The same of each source.
        at_least: How many words a run must have to count.

    Returns:
        From 0 to 1; 0 for an empty text.

    Raises:
        OptionError: If at_least is not positive.
    """
    if at_least < 1:
        raise OptionError(f"at_least is {at_least}; a run has at least 1 word.")
    covered = edge = 0
    for end, length in enumerate(_Automaton(text).endings(sources), start=1):
        if length >= at_least:
            # What an earlier run covered ends at the edge, and no run begins before an earlier one.
            covered += end - max(edge, end - length)
            edge = end
    return covered / len(text) if text else 0.0


class _Automaton:
    """All stretches of a text: a state for each set of places at which stretches end."""

    def __init__(self, text: Iterable[Hashable]) -> None:
        self._next: list[dict[Hashable, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        # The state of each beginning of the text.
        self._whole = [0]
        for place, item in enumerate(text, start=1):
            self._whole.append(self._extend(self._whole[-1], item, place))

    def longest(self, source: Iterable[Hashable]) -> tuple[int, int]:
        """Return the length of the longest shared stretch, and where it begins in the text."""
        best = (0, 0)
        for state, length in self._read(source):
            if length > best[0]:
                best = (length, self._end[state] - length)
        return best

    def endings(self, sources: Iterable[Iterable[Hashable]]) -> list[int]:
        """Return how long the longest stretch is that ends at each place and that a source has."""
        longest = [0] * len(self._link)
        for source in sources:
            for state, length in self._read(source):
                longest[state] = max(longest[state], length)
        by_length = sorted(range(1, len(self._link)), key=self._length.__getitem__)
        # A source that has a stretch has its ends, too.
        for state in reversed(by_length):
            if longest[state]:
                longest[self._link[state]] = self._length[self._link[state]]
        for state in by_length:
            longest[state] = longest[state] or longest[self._link[state]]
        return [longest[state] for state in self._whole[1:]]

    def _read(self, source: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
        """Yield for each place of a source the longest stretch that ends there: state, length."""
        state = length = 0
        for item in source:
            while state and item not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if item in self._next[state]:
                state = self._next[state][item]
                length += 1
            yield state, length

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
