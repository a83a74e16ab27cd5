"""Counting every n-gram of a corpus: one machine, millions of tokens a second.

An n-gram is frequent only if its first n - 1 symbols are, so each size sorts only what the size
before left. Three numbers share one 64-bit key (the n-gram so far, the next symbol, the place), so
that a plain sort, which numpy does with vector instructions, also tells where each one stands.
"""

from collections.abc import Iterator
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
    """The first place where each stands and may be a phrase."""
    size: Ints
    counts: Ints
    """How often it stands where it may be a phrase."""


def count_ngrams(
    symbols: NDArray[numpy.int32],
    sizes: tuple[int, int],
    min_count: int,
    may_start: Flags | None = None,
    may_end: Flags | None = None,
) -> NgramCounts:
    """Find the n-grams of a sequence that are frequent enough.

    Args:
        symbols: Tokens or words as numbers, with -1 where no n-gram may go on.
        sizes: The shortest and the longest n-gram.
        min_count: How often an n-gram must be found.
        may_start: At which places one may begin; everywhere by default.
        may_end: At which places one may end.

    Returns:
        All of them.

    Raises:
        OptionError: If `min_count` is below 1.
    """
    low, high = sizes
    if not 2 <= low <= high or min_count < 1:
        raise OptionError(
            f"sizes are {sizes} and min_count is {min_count}; an n-gram has at least 2 symbols "
            "and is found at least once."
        )
    # Breaks become 0, and so does what lies beyond the end: a window never leaves the array.
    padded = numpy.zeros(len(symbols) + high, dtype=numpy.uint32)
    padded[: len(symbols)] = symbols + 1
    starts = padded[: len(symbols)] > 0
    starting = numpy.flatnonzero(starts if may_start is None else starts & may_start)
    ends = numpy.zeros(len(padded), dtype=bool)
    ends[: len(symbols)] = starts if may_end is None else may_end
    levels = _levels(padded, starting.astype(numpy.uint32), sizes, min_count, ends)
    empty = numpy.empty(0, dtype=numpy.int64)
    columns = zip((empty, empty, empty), *levels, strict=True)
    return NgramCounts(*(numpy.concatenate(column) for column in columns))


def top_ngrams(mined: NgramCounts, cap: int | None, gain: Ints | None = None) -> NgramCounts:
    """Order n-grams by their count, or by another measure, and keep the first so many.

    Args:
        mined: The n-grams.
        cap: How many to keep; None keeps all.
        gain: What to order by instead of the count.

    Returns:
        The best, ties by the place where they stand first, longer ones before shorter.
    """
    measure = mined.counts if gain is None else gain
    order = numpy.lexsort((-mined.size, mined.start, -measure))[:cap]
    return NgramCounts(*(column[order] for column in mined))


class _Groups(NamedTuple):
    """Places of n-grams of one size; those of equal ones have equal ranks."""

    size: int
    places: Symbols
    rank: NDArray[numpy.uint64]


def _levels(
    padded: Symbols, places: Symbols, sizes: tuple[int, int], min_count: int, may_end: Flags
) -> Iterator[NgramCounts]:
    low, high = sizes
    symbol_bits = _bits(int(padded.max(initial=0)))
    left = [_Groups(1, places, padded[places].astype(numpy.uint64))]
    while left:
        for part in _fitting(left.pop(), symbol_bits):
            longer, counts = _lengthened(padded, part, symbol_bits, min_count)
            if not len(counts):
                continue
            if longer.size >= low:
                yield _valid(longer.places, counts, longer.size, min_count, may_end)
            if longer.size < high:
                left.append(longer)


def _fitting(groups: _Groups, symbol_bits: int) -> Iterator[_Groups]:
    """Split groups, each of them whole, until three numbers fit a key."""
    size, places, rank = groups
    limit = 1 << (_KEY_BITS - symbol_bits) // 2
    if max(len(places), int(rank.max(initial=0))) < limit:
        yield groups
        return
    order = numpy.argsort(rank, kind="stable")
    places, rank = places[order], rank[order]
    is_new = numpy.diff(rank, prepend=rank[:1]) > 0
    rank = numpy.cumsum(is_new, dtype=numpy.uint64)
    edges = numpy.append(numpy.flatnonzero(is_new), len(places))
    begin = end = 0
    for edge in edges.tolist():
        # As many groups as fit; one alone always does, since its rank is 0.
        if edge - begin >= limit and end > begin:
            yield _Groups(size, places[begin:end], rank[begin:end] - rank[begin])
            begin = end
        end = edge
    yield _Groups(size, places[begin:end], rank[begin:end] - rank[begin])


def _lengthened(
    padded: Symbols, groups: _Groups, symbol_bits: int, min_count: int
) -> tuple[_Groups, Ints]:
    """Return the frequent n-grams that are one symbol longer, and how often each stands."""
    size, places, rank = groups
    place_bits = numpy.uint64(_bits(len(places)))
    following = padded[places + numpy.uint32(size)]
    keys = ((rank << numpy.uint64(symbol_bits) | following) << place_bits) | _numbers(len(places))
    keys = keys[following > 0]
    keys.sort()
    order, grouped = keys & ((numpy.uint64(1) << place_bits) - numpy.uint64(1)), keys >> place_bits
    is_new = numpy.ones(len(grouped), dtype=bool)
    numpy.not_equal(grouped[1:], grouped[:-1], out=is_new[1:])
    counts = numpy.diff(numpy.flatnonzero(is_new), append=len(grouped))
    is_frequent = counts >= min_count
    places = places[order[numpy.repeat(is_frequent, counts)]]
    counts = counts[is_frequent]
    return _Groups(size + 1, places, numpy.repeat(_numbers(len(counts)), counts)), counts


def _valid(places: Symbols, counts: Ints, size: int, min_count: int, may_end: Flags) -> NgramCounts:
    """Keep the groups of places that may be phrases often enough."""
    begins = numpy.cumsum(counts) - counts
    valid = may_end[places + numpy.uint32(size - 1)]
    found = numpy.add.reduceat(valid, begins, dtype=numpy.int64)
    nowhere = numpy.uint32(numpy.iinfo(numpy.uint32).max)
    first = numpy.minimum.reduceat(numpy.where(valid, places, nowhere), begins)
    kept = found >= min_count
    return NgramCounts(
        first[kept].astype(numpy.int64), numpy.full(int(kept.sum()), size), found[kept]
    )


def _numbers(count: int) -> NDArray[numpy.uint64]:
    return numpy.arange(count, dtype=numpy.uint64)


def _bits(value: int) -> int:
    return max(int(value).bit_length(), 1)
