"""64-bit hashes of any stretch of a sequence, and a fast way to find one among many."""

from typing import TypeVar

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.int64]
Keys = NDArray[numpy.uint64]
_Number = TypeVar("_Number", bound=numpy.generic)

_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)


class RollingHash:
    """Hashes of stretches: equal stretches have equal hashes, wherever they stand.

    A hash is the sum of mixed id x factor^place, divided by factor^(first place). Modulo 2^64 an
    odd factor has an inverse, so running totals give the hash of any stretch at once.
    """

    def __init__(self, ids: NDArray[numpy.int32]) -> None:
        powers = numpy.cumprod(numpy.full(len(ids), _FACTOR, dtype=numpy.uint64))
        mixed = _mixed(ids.astype(numpy.uint64) + numpy.uint64(2))
        self._sums = prepend_zero(numpy.cumsum(mixed * powers))
        inverse = numpy.full(len(ids) + 1, _INVERSE, dtype=numpy.uint64)
        self._inverse = numpy.cumprod(inverse)

    def keys(self, first: Ints, end: Ints) -> Keys:
        """Return the hashes of the stretches from `first` up to, not including, `end`."""
        found: Keys = (self._sums[end] - self._sums[first]) * self._inverse[first]
        return found


class KeyIndex:
    """Finds 64-bit hashes among sorted ones.

    Hashes are spread evenly, so the first bits of one nearly tell its place: a few steps from there
    are several times faster than a binary search.

    Args:
        known: Sorted hashes, each once.
    """

    def __init__(self, known: Keys) -> None:
        bits = min(max(len(known).bit_length(), 1), 24)
        self._shift = numpy.uint64(64 - bits)
        edges = numpy.arange(1 << bits, dtype=numpy.uint64) << self._shift
        self._first = numpy.searchsorted(known, edges)
        self._padded = numpy.append(known, ~numpy.uint64(0))

    def __len__(self) -> int:
        return len(self._padded) - 1

    def find(self, keys: Keys) -> Ints:
        """Return the place of each key, or -1."""
        place = self._first[(keys >> self._shift).astype(numpy.int64)]
        behind = numpy.flatnonzero(self._padded[place] < keys)
        while len(behind):
            place[behind] += 1
            behind = behind[self._padded[place[behind]] < keys[behind]]
        is_there = (self._padded[place] == keys) & (place < len(self))
        return numpy.where(is_there, place, -1)


def ranges(begin: Ints, end: Ints) -> Ints:
    """Return all numbers from each `begin` to its `end`, one range after the other."""
    sizes = end - begin
    shift = begin - (numpy.cumsum(sizes) - sizes)
    places: Ints = numpy.arange(int(sizes.sum())) + numpy.repeat(shift, sizes)
    return places


def split_ids(ids: NDArray[numpy.int32], ends: Ints) -> list[tuple[int, ...]]:
    """Split concatenated ids at the end of each."""
    flat, edges = ids.tolist(), ends.tolist()
    return [tuple(flat[a:b]) for a, b in zip([0, *edges[:-1]], edges, strict=bool(edges))]


def prepend_zero(totals: NDArray[_Number]) -> NDArray[_Number]:
    """Put a zero before running totals, so that those of an empty stretch are there too."""
    return numpy.concatenate([numpy.zeros(1, totals.dtype), totals])


def _mixed(values: Keys) -> Keys:
    """Spread numbers over 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))
