"""Places of a text at which a word begins, each with all phrases that begin there."""

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import BREAK, CONTENT, DIGIT, END, LETTER, START, TokenArrays

Flags = NDArray[numpy.bool_]

# An odd factor makes multiplication modulo 2**64 a bijection; its bits are well mixed.
_FACTOR = numpy.int64(-7046029254386353131)


class Windows(NamedTuple):
    """Word starts (S,) and the tokens that follow them, up to L."""

    start: Ints
    """(S,) the index of the first token."""
    ids: Ints
    """(S, L) the tokens; 0 where the line ends."""
    is_phrase: Flags
    """(S, L) whether the first l + 1 tokens are a phrase."""
    keys: Ints
    """(S, L) a hash of these tokens."""

    def take(self, index: Ints | Flags | slice) -> "Windows":
        """Return some of the windows, by number, by a mask (S,) or as a part."""
        return Windows(self.start[index], self.ids[index], self.is_phrase[index], self.keys[index])

    @classmethod
    def joined(cls, *parts: "Windows") -> "Windows":
        """Put windows one after the other."""
        return cls(*(numpy.concatenate(column) for column in zip(*parts, strict=True)))


def windows(
    text: TokenArrays, sizes: tuple[int, int], begin: int = 0, end: int | None = None
) -> Windows:
    """Find the word starts between `begin` and `end`, and the phrases of `sizes` tokens there.

    A phrase ends before `end`, too.
    """
    low, high = sizes
    stop = len(text.ids) if end is None else end
    start = begin + numpy.flatnonzero(text.has(START)[begin:stop])
    index = start[:, None] + numpy.arange(high)
    is_inside = index < stop
    index = numpy.minimum(index, len(text.ids) - 1)
    is_inside &= text.ids[index] != BREAK
    is_inside = numpy.logical_and.accumulate(is_inside, axis=1)
    flags = numpy.where(is_inside, text.flags[index], 0)
    seen = numpy.bitwise_or.accumulate(flags, axis=1)
    is_number = (seen & (LETTER | DIGIT)) == DIGIT
    is_phrase = (flags & END > 0) & (seen & CONTENT > 0) & ~is_number
    is_phrase[:, : low - 1] = False
    ids = numpy.where(is_inside, text.ids[index], BREAK).astype(numpy.int64)
    # Token 0 may be a word: behind a line's end no hash is that of any phrase.
    return Windows(start, numpy.maximum(ids, 0), is_phrase, hashes(ids))


def hashes(ids: Ints) -> Ints:
    """Return a hash of every beginning of rows of tokens."""
    keys = numpy.empty_like(ids)
    key = numpy.ones(len(ids), dtype=numpy.int64)
    with numpy.errstate(over="ignore"):
        for column in range(ids.shape[1]):
            key = (key + ids[:, column] + 1) * _FACTOR
            key ^= key >> 29
            keys[:, column] = key
    return keys
