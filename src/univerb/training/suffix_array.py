"""What follows a phrase in the training text, found with a suffix array."""

from bisect import bisect_left, bisect_right

import numpy
from numpy.typing import NDArray

from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import BREAK
from univerb.training.samples import Key

# Suffixes are sorted by their first 64 tokens: no phrase is longer, and long repeats cost nothing.
_DEPTH = 64


class SuffixArray:
    """All suffixes of a text in order; its `ids` have breaks, which nothing goes across."""

    def __init__(self, ids: NDArray[numpy.int32]) -> None:
        self._ids = ids
        self._order = _sorted_suffixes(ids)

    def occurrences(self, key: Key) -> Ints:
        """Return where a phrase of at most 64 tokens begins, sorted by what follows it."""

        def head(begin: int) -> Key:
            return tuple(self._ids[begin : begin + len(key)].tolist())

        low = bisect_left(self._order, key, key=head)
        high = bisect_right(self._order, key, lo=low, key=head)
        starts: Ints = self._order[low:high]
        return starts

    def continuations(self, key: Key, k: int, samples: int) -> list[Key]:
        """Return what follows a phrase.

        Args:
            key: The phrase.
            k: TokenizedText, at most; fewer before a break.
            samples: Number of occurrences to look at, spread evenly over all continuations.

        Returns:
            Different continuations of a token or more.
        """
        starts = self.occurrences(key)
        chosen = starts[numpy.linspace(0, len(starts) - 1, min(samples, len(starts))).astype(int)]
        following = (self._until_break(begin + len(key), k) for begin in chosen.tolist())
        return [tokens for tokens in dict.fromkeys(following) if tokens]

    def _until_break(self, begin: int, k: int) -> Key:
        tokens = self._ids[begin : begin + k].tolist()
        return tuple(tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens)


def _sorted_suffixes(ids: NDArray[numpy.int32]) -> Ints:
    """Sort by one token, then by two, four and so on (prefix doubling)."""
    size = len(ids)
    _, rank = numpy.unique(ids, return_inverse=True)
    order = numpy.argsort(rank, kind="stable")
    length = 1
    while length < _DEPTH and size and int(rank.max()) + 1 < size:
        # A suffix that ends before the second half begins comes first.
        second = numpy.zeros(size, dtype=numpy.int64)
        second[: max(size - length, 0)] = rank[length:] + 1
        pairs = rank * (size + 1) + second
        order = numpy.argsort(pairs, kind="stable")
        ordered = pairs[order]
        rank[order] = numpy.cumsum(numpy.append(False, ordered[1:] != ordered[:-1]))
        length *= 2
    return order
