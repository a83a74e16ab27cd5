"""64-bit hashes of any span of a sequence, fast lookup of hashes, and helpers for ragged arrays."""

from itertools import pairwise
from typing import TypeVar

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.int64]
Keys = NDArray[numpy.uint64]
_Number = TypeVar("_Number", bound=numpy.generic)

_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)


class RollingHash:
    """Hashes of spans: equal spans have equal hashes, wherever they begin.

    A hash is the sum of mixed id x factor^index, divided by factor^(first index). Modulo 2^64 an
    odd factor has an inverse, so prefix sums give the hash of any span at once.
    """

    def __init__(self, ids: NDArray[numpy.int32]) -> None:
        powers = numpy.cumprod(numpy.full(len(ids), _FACTOR, dtype=numpy.uint64))
        mixed = _mixed(ids.astype(numpy.uint64) + numpy.uint64(2))
        self._sums = prepend_zero(numpy.cumsum(mixed * powers))
        inverse = numpy.full(len(ids) + 1, _INVERSE, dtype=numpy.uint64)
        self._inverse = numpy.cumprod(inverse)

    def keys(self, first: Ints, end: Ints) -> Keys:
        """Return the hashes of the spans from `first` up to, not including, `end`."""
        keys: Keys = (self._sums[end] - self._sums[first]) * self._inverse[first]
        return keys


class KeyIndex:
    """Finds 64-bit hashes among sorted ones.

    Hashes are spread evenly, so the first bits of one nearly give its index: a few steps from
    there are several times faster than a binary search.

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
        """Return the index of each key, or -1."""
        index = self._first[(keys >> self._shift).astype(numpy.int64)]
        behind = numpy.flatnonzero(self._padded[index] < keys)
        while len(behind):
            index[behind] += 1
            behind = behind[self._padded[index[behind]] < keys[behind]]
        is_known = (self._padded[index] == keys) & (index < len(self))
        return numpy.where(is_known, index, -1)


def ranges(begin: Ints, end: Ints) -> Ints:
    """Return the concatenation of all ranges from each `begin` to its `end`."""
    sizes = end - begin
    shift = begin - (numpy.cumsum(sizes) - sizes)
    indices: Ints = numpy.arange(int(sizes.sum())) + numpy.repeat(shift, sizes)
    return indices


def split_ids(ids: NDArray[numpy.int32], ends: Ints) -> list[tuple[int, ...]]:
    """Split concatenated ids at the end of each."""
    edges = [0, *ends.tolist()]
    flat = ids[: edges[-1]].tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise(edges)]


def prepend_zero(totals: NDArray[_Number]) -> NDArray[_Number]:
    """Put a zero before cumulative sums, so that they include that of an empty span."""
    return numpy.concatenate([numpy.zeros(1, totals.dtype), totals])


def _mixed(values: Keys) -> Keys:
    """Spread numbers over 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))
