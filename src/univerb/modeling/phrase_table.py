"""The phrase table: vectors of a vocabulary's phrases, synchronised with its names.

Everything here is numpy: an engine that has no torch reads the same table. A row knows its phrase
(`phrase_indices`) and a phrase its row (`rows`), so rows can have any order and some can be absent:

* Large batches are stored in half precision and ordered by first token, so that the phrases that
  begin alike are contiguous.
* Phrases that can no longer be chosen are dropped once they are the majority. If one comes back,
  its vector is looked up again; a corpus or the cache then has it, and nothing is encoded.
"""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy
from numpy.typing import NDArray

from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary, VocabularyState

HALF_FROM = 16_384
"""Batches of at least this many phrases are stored in half precision and by first token."""
KEEP_COLD = 1024
"""Up to this many phrases that cannot be chosen keep their rows, whatever their share."""

Floats = NDArray[numpy.float32]
Ints = NDArray[numpy.int64]
Matrix = NDArray[Any]
"""Rows in single or half precision."""


Array = TypeVar("Array")


class PhraseVectors(NamedTuple, Generic[Array]):
    """Input and output vectors of some phrases, both (P, d); one array or tensor when tied."""

    inputs: Array
    outputs: Array


Encode = Callable[[Sequence[Phrase]], PhraseVectors[Matrix]]


@dataclass(frozen=True, eq=False)
class TableView:
    """The table at one version of its vocabulary."""

    version: int
    phrase_indices: Ints
    """(R,), the phrase of each row: its id is |V| + index."""
    rows: Ints
    """(P,), the row of each phrase, or -1 if it is absent."""
    inputs: Matrix
    """(R, d), fed when a phrase is read."""
    outputs: Matrix
    """(R, d), scored against the LM's hidden state."""
    bias: Floats
    """(R,), added to the scores; -inf for phrases that are not active."""
    first_tokens: Ints
    """(R,), each phrase's first token id."""
    lengths: Ints
    """(R,), each phrase's number of tokens."""
    tokens: Set[int]
    """All tokens of the phrases, and maybe of absent ones."""

    def in_order(self) -> "TableView":
        """Return the table with row i for phrase i; absent phrases cannot be chosen."""
        indices = numpy.arange(len(self.rows))
        if numpy.array_equal(self.phrase_indices, indices):
            return self
        is_absent = self.rows < 0
        return TableView(
            self.version,
            indices,
            indices,
            self.inputs[self.rows],
            self.outputs[self.rows],
            numpy.where(is_absent, numpy.float32(-numpy.inf), self.bias[self.rows]),
            self.first_tokens[self.rows],
            self.lengths[self.rows],
            self.tokens,
        )

    @cached_property
    def groups(self) -> "FirstTokenGroups":
        """The rows by their first tokens."""
        return FirstTokenGroups(self.first_tokens)

    def input(self, index: int) -> Floats:
        """Return the vector that is fed for a phrase, (d,)."""
        vector: Floats = self.inputs[self.rows[index]].astype(numpy.float32)
        return vector


class FirstTokenGroups:
    """Rows of phrases that begin with the same token, found by it."""

    def __init__(self, first_tokens: Ints) -> None:
        self._order = numpy.argsort(first_tokens, kind="stable")
        self._tokens, begins = numpy.unique(first_tokens[self._order], return_index=True)
        self._edges = numpy.append(begins, len(first_tokens))

    def find(self, tokens: Ints) -> list[Ints | slice]:
        """Return the rows of each token that has any, contiguous ones as a slice."""
        groups = numpy.searchsorted(self._tokens, tokens)
        groups = groups[self._tokens.take(groups, mode="clip") == tokens]
        return [self._rows(group) for group in groups.tolist()]

    def _rows(self, group: int) -> Ints | slice:
        rows = self._order[self._edges[group] : self._edges[group + 1]]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        return slice(begin, end) if end - begin == len(rows) else rows


class PhraseTable:
    """The matrices of one vocabulary, which grow as it does; `sync` returns views of them."""

    def __init__(
        self, encode: Encode, bias: Callable[[], float], count_correction: bool = False
    ) -> None:
        self._encode = encode
        self._encoder_bias = bias
        self._count_correction = count_correction
        self._sides: tuple[Matrix, ...] = ()
        """Buffers of input and output vectors; one buffer when tied."""
        self._columns = numpy.empty((3, 0), numpy.int64)
        """(3, R): each row's phrase index, first token and length."""
        self._rows = numpy.empty(0, numpy.int64)
        self._tokens: set[int] = set()
        self._view: TableView | None = None
        self._lock = threading.Lock()

    def sync(self, vocabulary: DynamicVocabulary) -> TableView | None:
        """Encode new phrases and return the table as it now is, None if there never was a phrase.

        The vocabulary is the same at every call. The table holds no reference to it, so that both
        can be freed together.
        """
        if self._view is not None and self._view.version == vocabulary.version:
            return self._view
        with self._lock:
            known = len(self._rows)
            state = vocabulary.snapshot(since=known)
            active = numpy.frombuffer(state.active, dtype=bool)
            self._drop_inactive(active[self._columns[0]])
            returning = numpy.flatnonzero(active[:known] & (self._rows < 0))
            old = [vocabulary.phrase(vocabulary.static_size + int(index)) for index in returning]
            new = numpy.arange(known, known + len(state.phrases))
            self._rows = numpy.concatenate([self._rows, numpy.full(len(new), -1)])
            if len(returning) + len(new):
                self._append(numpy.concatenate([returning, new]), [*old, *state.phrases])
            if len(self._rows) and (self._view is None or self._view.version != state.version):
                self._view = self._make_view(state)
        return self._view

    def _append(self, indices: Ints, phrases: Sequence[Phrase]) -> None:
        # A new set: views of older versions may be in use.
        self._tokens = self._tokens.union(*(phrase.ids for phrase in phrases))
        first_tokens = [phrase.ids[0] for phrase in phrases]
        columns = numpy.array([indices, first_tokens, [len(phrase) for phrase in phrases]])
        is_large = len(phrases) >= HALF_FROM
        if is_large:
            order = numpy.argsort(columns[1], kind="stable")
            phrases = [phrases[index] for index in order.tolist()]
            columns = columns.take(order, axis=1)
        vectors = self._encode(phrases)
        sides = vectors[:1] if vectors.inputs is vectors.outputs else tuple(vectors)
        # Rows without gaps are read several times faster.
        dtype = numpy.dtype(numpy.float16) if is_large else vectors.outputs.dtype
        sides = tuple(numpy.ascontiguousarray(side, dtype) for side in sides)
        used = self._columns.shape[1]
        # No copy of the first rows: only vocabularies that grow pay for spare room.
        self._sides = (
            tuple(_appended(*pair, used) for pair in zip(self._sides, sides, strict=True))
            if self._sides
            else sides
        )
        self._rows[columns[0]] = numpy.arange(used, used + len(phrases))
        self._columns = numpy.concatenate([self._columns, columns], axis=1)

    def _drop_inactive(self, is_active: NDArray[numpy.bool_]) -> None:
        """Drop the rows of phrases that cannot be chosen, if they are many."""
        cold = int((~is_active).sum())
        if cold <= max(KEEP_COLD, len(is_active) - cold):
            return
        # One stays in any case: a table is never empty.
        rows = numpy.flatnonzero(is_active) if is_active.any() else numpy.zeros(1, numpy.int64)
        # Copies: views of older versions keep their rows.
        self._sides = tuple(side[rows] for side in self._sides)
        self._columns = self._columns.take(rows, axis=1)
        self._rows = numpy.full(len(self._rows), -1)
        self._rows[self._columns[0]] = numpy.arange(len(rows))

    def _make_view(self, state: VocabularyState) -> TableView:
        indices, first_tokens, lengths = self._columns
        is_active = numpy.frombuffer(state.active, dtype=bool)[indices]
        weights = numpy.frombuffer(state.weights, dtype=numpy.float64)[indices]
        bias = weights + self._encoder_bias()
        if self._count_correction:
            counts = numpy.bincount(first_tokens[is_active], minlength=first_tokens.max() + 1)
            bias = bias - numpy.log(numpy.maximum(counts[first_tokens], 1))
        return TableView(
            state.version,
            indices,
            # A copy: the table goes on writing into its own.
            self._rows.copy(),
            self._sides[0][: len(indices)],
            self._sides[-1][: len(indices)],
            numpy.where(is_active, bias, -numpy.inf).astype(numpy.float32),
            first_tokens,
            lengths,
            self._tokens,
        )


def _appended(buffer: Matrix, rows: Matrix, used: int) -> Matrix:
    """Write rows into a buffer after those in use, doubling it when it is full."""
    end = used + len(rows)
    if len(buffer) < end:
        grown = numpy.empty((max(end, 2 * len(buffer)), buffer.shape[1]), buffer.dtype)
        grown[:used] = buffer[:used]
        buffer = grown
    # Views of older versions end before `used`: what is written here is in none of them.
    buffer[used:end] = rows
    return buffer
