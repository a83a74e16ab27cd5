"""Counting every n-gram of a corpus on one machine, millions of tokens a second.

An n-gram is frequent only if its first n - 1 symbols are, so each size sorts only what the size
before left. Three numbers share one 64-bit key (rank of the n-gram so far, next symbol, index), so
that a plain sort, which numpy does with vector instructions, also yields the positions.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.errors import OptionError

Flags = NDArray[numpy.bool_]
Ints = NDArray[numpy.int64]
Symbols = NDArray[numpy.uint32]
_KEY_BITS = 64


class NgramCounts(NamedTuple):
    """N-grams of a sequence, in no particular order."""

    start: Ints
    """First position at which each may be a phrase."""
    size: Ints
    counts: Ints
    """Number of positions at which it may be a phrase."""


def count_ngrams(
    symbols: NDArray[numpy.int32],
    sizes: tuple[int, int],
    min_count: int,
    may_start: Flags | None = None,
    may_end: Flags | None = None,
    is_content: Flags | None = None,
) -> NgramCounts:
    """Count the frequent n-grams of a sequence.

    Args:
        symbols: Tokens or words as numbers, with -1 for a break that no n-gram contains.
        sizes: Shortest and longest n-gram.
        min_count: Minimum number of occurrences.
        may_start: Whether one may begin at a position; everywhere by default.
        may_end: Whether one may end at a position.
        is_content: Whether a symbol says something; an n-gram has one that does.

    Returns:
        All of them.
    """
    low, high = sizes
    if not 2 <= low <= high or min_count < 1:
        raise OptionError(
            f"sizes are {sizes} and min_count is {min_count}; an n-gram has at least 2 symbols "
            "and occurs at least once."
        )
    # Breaks become 0, as does the padding: a window never leaves the array.
    padded = numpy.zeros(len(symbols) + high, dtype=numpy.uint32)
    padded[: len(symbols)] = symbols + 1
    starts = padded[: len(symbols)] > 0
    starting = numpy.flatnonzero(starts if may_start is None else starts & may_start)
    ends = numpy.zeros(len(padded), dtype=bool)
    ends[: len(symbols)] = starts if may_end is None else may_end
    contents = numpy.ones(len(padded), dtype=bool)
    contents[: len(symbols)] = True if is_content is None else is_content
    before = numpy.append(numpy.uint32(0), numpy.cumsum(contents, dtype=numpy.uint32))

    def may_be_phrases(first: Symbols, size: int) -> Flags:
        after = first + numpy.uint32(size)
        is_allowed: Flags = ends[after - numpy.uint32(1)] & (before[after] > before[first])
        return is_allowed

    levels = _levels(padded, starting.astype(numpy.uint32), sizes, min_count, may_be_phrases)
    empty = numpy.empty(0, dtype=numpy.int64)
    columns = zip((empty, empty, empty), *levels, strict=True)
    return NgramCounts(*(numpy.concatenate(column) for column in columns))


def top_ngrams(mined: NgramCounts, cap: int | None, gain: Ints | None = None) -> NgramCounts:
    """Return the `cap` n-grams with the largest count or `gain`, in that order.

    Ties are broken by position, then longer ones come first.
    """
    measure = mined.counts if gain is None else gain
    order = numpy.lexsort((-mined.size, mined.start, -measure))[:cap]
    return NgramCounts(*(column[order] for column in mined))


_MayBePhrases = Callable[[Symbols, int], Flags]
"""Tells which n-grams of a size may be phrases, by their first positions."""


class _Groups(NamedTuple):
    """Positions of n-grams of one size; equal n-grams have equal ranks."""

    size: int
    positions: Symbols
    rank: NDArray[numpy.uint64]


def _levels(
    padded: Symbols,
    positions: Symbols,
    sizes: tuple[int, int],
    min_count: int,
    may_be_phrases: _MayBePhrases,
) -> Iterator[NgramCounts]:
    low, high = sizes
    symbol_bits = _bits(int(padded.max(initial=0)))
    left = [_Groups(1, positions, padded[positions].astype(numpy.uint64))]
    while left:
        for part in _fitting(left.pop(), symbol_bits):
            longer, counts = _lengthened(padded, part, symbol_bits, min_count)
            if not len(counts):
                continue
            if longer.size >= low:
                valid = may_be_phrases(longer.positions, longer.size)
                yield _valid(longer, counts, min_count, valid)
            if longer.size < high:
                left.append(longer)


def _fitting(groups: _Groups, symbol_bits: int) -> Iterator[_Groups]:
    """Split the positions between groups, until three numbers fit a key."""
    size, positions, rank = groups
    limit = 1 << (_KEY_BITS - symbol_bits) // 2
    if max(len(positions), int(rank.max(initial=0))) < limit:
        yield groups
        return
    order = numpy.argsort(rank, kind="stable")
    positions, rank = positions[order], rank[order]
    is_new = numpy.diff(rank, prepend=rank[:1]) > 0
    rank = numpy.cumsum(is_new, dtype=numpy.uint64)
    edges = numpy.append(numpy.flatnonzero(is_new), len(positions))
    begin = end = 0
    for edge in edges.tolist():
        # As many groups as fit; a single one always does, since its rank is 0.
        if edge - begin >= limit and end > begin:
            yield _Groups(size, positions[begin:end], rank[begin:end] - rank[begin])
            begin = end
        end = edge
    yield _Groups(size, positions[begin:end], rank[begin:end] - rank[begin])


def _lengthened(
    padded: Symbols, groups: _Groups, symbol_bits: int, min_count: int
) -> tuple[_Groups, Ints]:
    """Return the frequent n-grams that are one symbol longer, and their counts."""
    size, positions, rank = groups
    index_bits = numpy.uint64(_bits(len(positions)))
    following = padded[positions + numpy.uint32(size)]
    keys = ((rank << numpy.uint64(symbol_bits) | following) << index_bits) | _numbers(
        len(positions)
    )
    keys = keys[following > 0]
    keys.sort()
    order, grouped = keys & ((numpy.uint64(1) << index_bits) - numpy.uint64(1)), keys >> index_bits
    is_new = numpy.ones(len(grouped), dtype=bool)
    numpy.not_equal(grouped[1:], grouped[:-1], out=is_new[1:])
    counts = numpy.diff(numpy.flatnonzero(is_new), append=len(grouped))
    is_frequent = counts >= min_count
    positions = positions[order[numpy.repeat(is_frequent, counts)]]
    counts = counts[is_frequent]
    return _Groups(size + 1, positions, numpy.repeat(_numbers(len(counts)), counts)), counts


def _valid(groups: _Groups, counts: Ints, min_count: int, valid: Flags) -> NgramCounts:
    """Keep the groups with enough valid positions."""
    size, positions, _ = groups
    begins = numpy.cumsum(counts) - counts
    valid_counts = numpy.add.reduceat(valid, begins, dtype=numpy.int64)
    nowhere = numpy.uint32(numpy.iinfo(numpy.uint32).max)
    first = numpy.minimum.reduceat(numpy.where(valid, positions, nowhere), begins)
    is_frequent = valid_counts >= min_count
    first, valid_counts = first[is_frequent].astype(numpy.int64), valid_counts[is_frequent]
    return NgramCounts(first, numpy.full(len(first), size), valid_counts)


def _numbers(count: int) -> NDArray[numpy.uint64]:
    return numpy.arange(count, dtype=numpy.uint64)


def _bits(value: int) -> int:
    return max(int(value).bit_length(), 1)
