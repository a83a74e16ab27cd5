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
        self._inputs: Matrix | None = None
        self._outputs: Matrix | None = None
        self._phrase_indices, self._first_tokens, self._lengths = (
            numpy.empty(0, numpy.int64) for _ in range(3)
        )
        self._rows = numpy.empty(0, numpy.int64)
        self._tokens: set[int] = set()
        self._view: TableView | None = None
        self._lock = threading.Lock()

    def sync(self, vocabulary: DynamicVocabulary) -> TableView | None:
        """Encode new phrases and return the table as it now is.

        Args:
            vocabulary: The same at every call. The table holds no reference to it, so that both
                can be freed together.

        Returns:
            The table, or None if the vocabulary never had a phrase.
        """
        if self._view is not None and self._view.version == vocabulary.version:
            return self._view
        with self._lock:
            known = len(self._rows)
            state = vocabulary.snapshot(since=known)
            active = numpy.frombuffer(state.active, dtype=bool)
            self._drop_inactive(active[self._phrase_indices])
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
        first_tokens = numpy.array([phrase.ids[0] for phrase in phrases])
        lengths = numpy.array([len(phrase) for phrase in phrases])
        # A new set: views of older versions may be in use.
        self._tokens = self._tokens.union(*(phrase.ids for phrase in phrases))
        is_large = len(phrases) >= HALF_FROM
        if is_large:
            order = numpy.argsort(first_tokens, kind="stable")
            phrases = [phrases[index] for index in order.tolist()]
            indices, first_tokens, lengths = indices[order], first_tokens[order], lengths[order]
        vectors = _contiguous(self._encode(phrases), is_large)
        used = len(self._phrase_indices)
        self._outputs = _appended(self._outputs, vectors.outputs, used)
        is_tied = vectors.inputs is vectors.outputs
        self._inputs = self._outputs if is_tied else _appended(self._inputs, vectors.inputs, used)
        self._rows[indices] = numpy.arange(used, used + len(indices))
        self._phrase_indices = numpy.concatenate([self._phrase_indices, indices])
        self._first_tokens = numpy.concatenate([self._first_tokens, first_tokens])
        self._lengths = numpy.concatenate([self._lengths, lengths])

    def _drop_inactive(self, is_active: NDArray[numpy.bool_]) -> None:
        """Drop the rows of phrases that cannot be chosen, if they are many."""
        cold = int((~is_active).sum())
        if cold <= max(KEEP_COLD, len(is_active) - cold):
            return
        assert self._inputs is not None
        assert self._outputs is not None
        # One stays in any case: a table is never empty.
        rows = numpy.flatnonzero(is_active) if is_active.any() else numpy.zeros(1, numpy.int64)
        is_tied = self._inputs is self._outputs
        # Copies: views of older versions keep their rows.
        self._outputs = self._outputs[rows]
        self._inputs = self._outputs if is_tied else self._inputs[rows]
        self._phrase_indices, self._first_tokens = (
            self._phrase_indices[rows],
            self._first_tokens[rows],
        )
        self._lengths = self._lengths[rows]
        self._rows = numpy.full(len(self._rows), -1)
        self._rows[self._phrase_indices] = numpy.arange(len(rows))

    def _make_view(self, state: VocabularyState) -> TableView:
        assert self._inputs is not None
        assert self._outputs is not None
        rows = len(self._phrase_indices)
        is_active = numpy.frombuffer(state.active, dtype=bool)[self._phrase_indices]
        weights = numpy.frombuffer(state.weights, dtype=numpy.float64)[self._phrase_indices]
        bias = weights + self._encoder_bias()
        if self._count_correction and rows:
            counts = numpy.bincount(
                self._first_tokens[is_active], minlength=int(self._first_tokens.max()) + 1
            )
            bias = bias - numpy.log(numpy.maximum(counts[self._first_tokens], 1))
        return TableView(
            state.version,
            self._phrase_indices,
            # A copy: the table goes on writing into its own.
            self._rows.copy(),
            self._inputs[:rows],
            self._outputs[:rows],
            numpy.where(is_active, bias, -numpy.inf).astype(numpy.float32),
            self._first_tokens,
            self._lengths,
            self._tokens,
        )


def _contiguous(vectors: PhraseVectors[Matrix], is_large: bool) -> PhraseVectors[Matrix]:
    """Return vectors as rows without gaps, which are read several times faster."""
    dtype = numpy.dtype(numpy.float16) if is_large else vectors.outputs.dtype
    outputs = numpy.ascontiguousarray(vectors.outputs, dtype)
    if vectors.inputs is vectors.outputs:
        return PhraseVectors(outputs, outputs)
    return PhraseVectors(numpy.ascontiguousarray(vectors.inputs, dtype), outputs)


def _appended(buffer: Matrix | None, rows: Matrix, used: int) -> Matrix:
    """Write rows into a buffer after those in use, doubling it when it is full."""
    if buffer is None:
        # No copy of the first rows: only vocabularies that grow pay for spare room.
        return rows
    end = used + len(rows)
    if len(buffer) < end:
        grown = numpy.empty((max(end, 2 * len(buffer)), buffer.shape[1]), buffer.dtype)
        grown[:used] = buffer[:used]
        buffer = grown
    # Views of older versions end before `used`: what is written here is in none of them.
    buffer[used:end] = rows
    return buffer
