"""Rows of the dynamic vocabulary: one vector per phrase, kept in step with its names.

Everything here is numpy: an engine that has no torch reads the same table. A row knows its phrase
(`numbers`) and a phrase its row (`places`), so rows may lie in any order and some may be away:

* Large batches are laid down in the order of their first tokens, so that the phrases that begin
  alike are one stretch of memory, and in half precision, as a store keeps them.
* Phrases that can no longer be chosen are let go once they are the larger part. If one comes back,
  its vector is asked for again; a store or a cache then has it, and nothing is encoded.
"""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary, VocabularyState

HALF_FROM = 16_384
"""Batches of so many phrases are kept in half precision and by first token."""
KEEP_COLD = 1024
"""So many phrases that cannot be chosen stay where they are, whatever their share."""

Floats = NDArray[numpy.float32]
Ints = NDArray[numpy.int64]
Matrix = NDArray[Any]
"""Rows in single or half precision."""


class VectorPair(NamedTuple):
    """Input and output vectors of some phrases, both (P, d); one array when tied."""

    inputs: Matrix
    outputs: Matrix


Encode = Callable[[Sequence[Phrase]], VectorPair]


@dataclass(frozen=True, eq=False)
class TableView:
    """The table at one version of its vocabulary."""

    version: int
    numbers: Ints
    """(R,), the phrase of each row: its id is |V| + number."""
    places: Ints
    """(P,), the row of each phrase, or -1 if it is away."""
    inputs: Matrix
    """(R, d), fed when a phrase is read."""
    outputs: Matrix
    """(R, d), scored against the LM's hidden state."""
    bias: Floats
    """(R,), added to the scores; -inf for phrases that are not active."""
    first: Ints
    """(R,), each phrase's first token id."""
    lengths: Ints
    """(R,), each phrase's number of tokens."""
    tokens: Set[int]
    """All tokens of the phrases, and maybe of some that are away."""

    @property
    def is_plain(self) -> bool:
        """Whether row i is phrase i, all of them."""
        return len(self.numbers) == len(self.places) and bool(
            (self.numbers == numpy.arange(len(self.numbers))).all()
        )

    def in_order(self) -> "TableView":
        """Return the same with row i for phrase i; what is away cannot be chosen."""
        is_away = self.places < 0
        numbers = numpy.arange(len(self.places))
        return TableView(
            self.version,
            numbers,
            numbers,
            self.inputs[self.places],
            self.outputs[self.places],
            numpy.where(is_away, numpy.float32(-numpy.inf), self.bias[self.places]),
            self.first[self.places],
            self.lengths[self.places],
            self.tokens,
        )

    @cached_property
    def groups(self) -> "Groups":
        """The rows by their first tokens."""
        return Groups(self.first)

    def input(self, number: int) -> Floats:
        """Return the vector that is fed for a phrase, (d,)."""
        vector: Floats = self.inputs[self.places[number]].astype(numpy.float32)
        return vector


class Groups:
    """Rows that begin with the same token, found by it."""

    def __init__(self, first: Ints) -> None:
        self._order = numpy.argsort(first, kind="stable")
        self._tokens, begins = numpy.unique(first[self._order], return_index=True)
        self._edges = numpy.append(begins, len(first))

    def find(self, tokens: Ints) -> list[Ints | slice]:
        """Return the rows of each of some tokens that have any, stretches of memory as slices."""
        place = numpy.searchsorted(self._tokens, tokens)
        place = place[self._tokens.take(place, mode="clip") == tokens]
        return [self._rows(at) for at in place.tolist()]

    def _rows(self, group: int) -> Ints | slice:
        rows = self._order[self._edges[group] : self._edges[group + 1]]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        return slice(begin, end) if end - begin == len(rows) else rows


class PhraseTable:
    """The matrices of one vocabulary, grown in place: what was encoded stays where it is."""

    def __init__(
        self, encode: Encode, bias: Callable[[], float], count_correction: bool = False
    ) -> None:
        self._encode = encode
        self._encoder_bias = bias
        self._count_correction = count_correction
        self._inputs: Matrix | None = None
        self._outputs: Matrix | None = None
        self._numbers, self._first, self._lengths = (numpy.empty(0, numpy.int64) for _ in range(3))
        self._places = numpy.empty(0, numpy.int64)
        self._tokens: set[int] = set()
        self._view: TableView | None = None
        self._lock = threading.Lock()

    def sync(self, vocabulary: DynamicVocabulary) -> TableView | None:
        """Encode what is new and return the rows.

        Args:
            vocabulary: The names to follow, the same at every call. The table does not hold it,
                so that it can be dropped with it.

        Returns:
            The rows, or None if the vocabulary never had a phrase.
        """
        if self._view is not None and self._view.version == vocabulary.version:
            return self._view
        with self._lock:
            known = len(self._places)
            state = vocabulary.snapshot(since=known)
            active = numpy.frombuffer(state.active, dtype=bool)
            self._let_go(active[self._numbers])
            back = numpy.flatnonzero(active[:known] & (self._places < 0))
            away = [vocabulary.phrase(vocabulary.static_size + int(at)) for at in back]
            fresh = numpy.arange(known, known + len(state.phrases))
            self._places = numpy.concatenate([self._places, numpy.full(len(fresh), -1)])
            if len(back) + len(fresh):
                self._append(numpy.concatenate([back, fresh]), [*away, *state.phrases])
            if len(self._places) and (self._view is None or self._view.version != state.version):
                self._view = self._make_view(state)
        return self._view

    def _append(self, numbers: Ints, phrases: Sequence[Phrase]) -> None:
        first = numpy.array([phrase.ids[0] for phrase in phrases])
        lengths = numpy.array([len(phrase) for phrase in phrases])
        # A new set: views of older versions may be looked at meanwhile.
        self._tokens = self._tokens.union(*(phrase.ids for phrase in phrases))
        is_large = len(phrases) >= HALF_FROM
        if is_large:
            order = numpy.argsort(first, kind="stable")
            phrases = [phrases[at] for at in order.tolist()]
            numbers, first, lengths = numbers[order], first[order], lengths[order]
        vectors = _laid_out(self._encode(phrases), is_large)
        used = len(self._numbers)
        self._outputs = _written(self._outputs, vectors.outputs, used)
        is_tied = vectors.inputs is vectors.outputs
        self._inputs = self._outputs if is_tied else _written(self._inputs, vectors.inputs, used)
        self._places[numbers] = numpy.arange(used, used + len(numbers))
        self._numbers = numpy.concatenate([self._numbers, numbers])
        self._first = numpy.concatenate([self._first, first])
        self._lengths = numpy.concatenate([self._lengths, lengths])

    def _let_go(self, is_active: NDArray[numpy.bool_]) -> None:
        """Drop the rows of phrases that cannot be chosen, if they are many."""
        cold = int((~is_active).sum())
        if cold <= max(KEEP_COLD, len(is_active) - cold):
            return
        assert self._inputs is not None
        assert self._outputs is not None
        # One stays in any case, so that there is something to look at.
        kept = numpy.flatnonzero(is_active) if is_active.any() else numpy.zeros(1, numpy.int64)
        is_tied = self._inputs is self._outputs
        # Copies: views of older versions keep what they see.
        self._outputs = self._outputs[kept]
        self._inputs = self._outputs if is_tied else self._inputs[kept]
        self._numbers, self._first = self._numbers[kept], self._first[kept]
        self._lengths = self._lengths[kept]
        self._places = numpy.full(len(self._places), -1)
        self._places[self._numbers] = numpy.arange(len(kept))

    def _make_view(self, state: VocabularyState) -> TableView:
        assert self._inputs is not None
        assert self._outputs is not None
        rows = len(self._numbers)
        is_active = numpy.frombuffer(state.active, dtype=bool)[self._numbers]
        weights = numpy.frombuffer(state.weights, dtype=numpy.float64)[self._numbers]
        bias = weights + self._encoder_bias()
        if self._count_correction and rows:
            counts = numpy.bincount(self._first[is_active], minlength=int(self._first.max()) + 1)
            bias = bias - numpy.log(numpy.maximum(counts[self._first], 1))
        masked = numpy.where(is_active, bias, -numpy.inf).astype(numpy.float32)
        # A copy: the table goes on writing into its own.
        places = self._places.copy()
        matrices = self._inputs[:rows], self._outputs[:rows]
        return TableView(
            state.version,
            self._numbers,
            places,
            *matrices,
            masked,
            self._first,
            self._lengths,
            self._tokens,
        )


def _laid_out(vectors: VectorPair, is_large: bool) -> VectorPair:
    """Return vectors as rows without gaps, which are read several times faster."""
    dtype = numpy.dtype(numpy.float16) if is_large else vectors.outputs.dtype
    outputs = numpy.ascontiguousarray(vectors.outputs, dtype)
    if vectors.inputs is vectors.outputs:
        return VectorPair(outputs, outputs)
    return VectorPair(numpy.ascontiguousarray(vectors.inputs, dtype), outputs)


def _written(buffer: Matrix | None, rows: Matrix, at: int) -> Matrix:
    """Write rows into a buffer from a place on, doubling it when it is full."""
    if buffer is None:
        # The first rows are taken as they are; only vocabularies that grow pay for spare room.
        return rows
    end = at + len(rows)
    if len(buffer) < end:
        grown = numpy.empty((max(end, 2 * len(buffer)), buffer.shape[1]), buffer.dtype)
        grown[:at] = buffer[:at]
        buffer = grown
    # Views of older versions end before `at`, so nobody reads what is written here.
    buffer[at:end] = rows
    return buffer
