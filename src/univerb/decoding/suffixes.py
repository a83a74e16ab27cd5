"""Where a text's last tokens have stood before: in documents, and in the text itself.

Both answer one question: the longest end of the text that stands somewhere, and how it goes on
there. Documents do not change, so their places are sorted once; the text grows token by token.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.int64]

DEPTH = 16
"""Tokens before a place that places are sorted by; longer matches count as this long."""
_MAX_PLACES = 64
"""Places that are asked how the text goes on, where there are more."""
_MIN_LATER = 4
"""Tokens that must agree where a text has ended and another one goes on."""
_BREAK = -1
"""Between two texts; no token."""


class Match(NamedTuple):
    """How a text may go on, as it did where its last tokens stood before."""

    ids: list[int]
    length: int
    """Number of last tokens that agree; 0 if there is no such place."""


class DocumentSuffixes:
    """A suffix array of reversed texts: their places, sorted by the tokens before them.

    Args:
        texts: Token ids.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        parts = [part for text in texts for part in (numpy.asarray(text, numpy.int64), [_BREAK])]
        tokens = numpy.concatenate([[_BREAK], *parts]).astype(numpy.int64)
        self._places = _sorted_places(tokens).data
        self._tokens = tokens.data

    def find(self, ids: Sequence[int], count: int) -> Match:
        """Return how a text goes on in the documents, at most `count` tokens.

        Of several places with as long a match, each next token is the one that most of them have.
        Where a text ends, others that agree with its end go on.
        """
        match = self._followed(ids, count, 1)
        while 0 < len(match.ids) < count:
            written, left = [*ids[-DEPTH:], *match.ids], count - len(match.ids)
            if not (more := self._followed(written, left, _MIN_LATER).ids):
                break
            match.ids.extend(more)
        return match

    def _followed(self, ids: Sequence[int], count: int, at_least: int) -> Match:
        """Return how a text goes on where the most of its last tokens stand and are followed."""
        for length, places in reversed(list(enumerate(self._places_after(ids), 1))):
            if length < at_least or count < 1:
                break
            if following := self._most_common(places, count):
                return Match(following, length)
        return Match([], 0)

    def _places_after(self, ids: Sequence[int]) -> Iterator[range]:
        """Yield the sorted places that stand after the last token, the last two, and so on."""
        tokens, places = self._tokens, range(len(self._places))
        for back, token in enumerate(islice(reversed(ids), DEPTH), 1):

            def before(place: int, back: int = back) -> int:
                return tokens[place - back] if place >= back else _BREAK

            begin = bisect_left(self._places, token, places.start, places.stop, key=before)
            end = bisect_right(self._places, token, begin, places.stop, key=before)
            if begin == end:
                return
            places = range(begin, end)
            yield places

    def _most_common(self, places: range, count: int) -> list[int]:
        """Return how most of some places go on, until a text ends."""
        step = -(-len(places) // _MAX_PLACES) or 1
        current = [self._places[at] for at in places[::step]]
        following: list[int] = []
        while len(following) < count:
            tokens = [self._tokens[place] for place in current]
            counts = Counter(token for token in tokens if token != _BREAK)
            if not counts:
                break
            token = counts.most_common(1)[0][0]
            following.append(token)
            current = [p + 1 for p, t in zip(current, tokens, strict=True) if t == token]
        return following


def _sorted_places(tokens: Ints) -> Ints:
    """Sort the places of tokens by the tokens before them, the nearest first (prefix doubling)."""
    backwards = tokens[::-1]
    ranks = numpy.unique(backwards, return_inverse=True)[1].astype(numpy.int64)
    size = 1
    while size < DEPTH and (top := int(ranks.max())) + 1 < len(ranks):
        second = numpy.zeros_like(ranks)
        second[:-size] = ranks[size:] + 1
        ranks = numpy.unique(ranks * (top + 2) + second, return_inverse=True)[1]
        size *= 2
    # What begins at i of the reversed text stands before the place len - i.
    return len(tokens) - numpy.argsort(ranks, kind="stable")


class TextSuffixes:
    """A suffix automaton of a text that grows: the longest end of it that stood in it before.

    States are sets of substrings that end at the same places (Blumer et al., 1985).
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        """For each state, the place behind its last occurrence but that of the newest token."""
        self._last = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in ids:
            self._mark()
            self._ids.append(token)
            self._last = self._add(token)

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, count: int) -> Match:
        """Return how the text went on after its last tokens when they stood in it before.

        Where that reaches the text's end it goes round.
        """
        state = self._link[self._last]
        if state <= 0 or count < 1:
            return Match([], 0)
        text, begin = self._ids[self._end[state] :], len(self._ids) - self._end[state]
        while len(text) < count:
            text.append(text[len(text) - begin])
        return Match(text[:count], self._length[state])

    def _mark(self) -> None:
        """Note that all ends of the text stand at its end, too, which is behind from now on."""
        state = self._last
        while state > 0:
            self._end[state] = len(self._ids)
            state = self._link[state]

    def _add(self, token: int) -> int:
        """Add a state for the text with a token more, and the transitions to it."""
        new = self._state({}, 0, self._length[self._last] + 1)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            self._link[new] = self._state_after(state, token)
        return new

    def _state_after(self, state: int, token: int) -> int:
        """Return the state of a suffix and a token, split from that of longer ones if it must."""
        target = self._next[state][token]
        if self._length[target] == self._length[state] + 1:
            return target
        clone = self._state(dict(self._next[target]), self._link[target], self._length[state] + 1)
        self._end[clone] = self._end[target]
        self._link[target] = clone
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, following: dict[int, int], link: int, length: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(len(self._ids))
        return len(self._length) - 1
