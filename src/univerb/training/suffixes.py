"""What follows a phrase in the training text, found with a suffix array."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import BREAK
from univerb.training.batch import Key

# Suffixes are in order up to so many tokens: no phrase is longer, and long repeats cost nothing.
_DEPTH = 64


class Suffixes:
    """All suffixes of a text in order.

    Args:
        ids: The text as a `Run` has it: tokens, with breaks that nothing goes across.
    """

    def __init__(self, ids: NDArray[numpy.int32]) -> None:
        self._ids = ids
        self._order = _sorted_suffixes(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def places(self, key: Key) -> Ints:
        """Return where a phrase of at most 64 tokens begins, in the order of what follows it."""

        def head(place: int) -> Key:
            return tuple(self._ids[place : place + len(key)].tolist())

        low = bisect_left(self._order, key, key=head)
        high = bisect_right(self._order, key, lo=low, key=head)
        found: Ints = self._order[low:high]
        return found

    def successors(self, key: Key, k: int, hits: int) -> list[Key]:
        """Return what follows a phrase.

        Args:
            key: The phrase.
            k: Tokens, at most; fewer before a break.
            hits: How many places to look at, spread evenly over all continuations.

        Returns:
            Different continuations of a token or more.
        """
        places = self.places(key)
        chosen = places[numpy.linspace(0, len(places) - 1, min(hits, len(places))).astype(int)]
        found = (tuple(self._until_break(place + len(key), k)) for place in chosen.tolist())
        return [follow for follow in dict.fromkeys(found) if follow]

    def _until_break(self, begin: int, k: int) -> Iterator[int]:
        for token in self._ids[begin : begin + k].tolist():
            if token == BREAK:
                return
            yield token


def _sorted_suffixes(ids: NDArray[numpy.int32]) -> Ints:
    """Sort by one token, then by two, four and so on (prefix doubling)."""
    size = len(ids)
    _, rank = numpy.unique(ids, return_inverse=True)
    order = numpy.argsort(rank, kind="stable")
    length = 1
    while length < _DEPTH and size and int(rank.max()) + 1 < size:
        # What ends before the second half begins comes first.
        second = numpy.zeros(size, dtype=numpy.int64)
        second[: max(size - length, 0)] = rank[length:] + 1
        pairs = rank * (size + 1) + second
        order = numpy.argsort(pairs, kind="stable")
        ordered = pairs[order]
        rank[order] = numpy.cumsum(numpy.append(False, ordered[1:] != ordered[:-1]))
        length *= 2
    return order
