"""Rows of the dynamic vocabulary: one vector per phrase, kept in step with its names."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from univerb.modeling.encoder import Vectors
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary, Snapshot

Encode = Callable[[Sequence[Phrase]], Vectors]


class TableView(NamedTuple):
    """The table at one version of its vocabulary; row i belongs to phrase id V + i for ever."""

    version: int
    inputs: Tensor
    """(P, d), fed when a phrase is read."""
    outputs: Tensor
    """(P, d), scored against the LM's hidden state."""
    bias: Tensor
    """(P,), added to the scores; -inf for phrases that are not active."""
    first: Tensor
    """(P,), each phrase's first token id."""
    lengths: Tensor
    """(P,), each phrase's number of tokens."""


class PhraseTable:
    """The matrices of one vocabulary, grown in place: what was encoded stays where it is."""

    def __init__(
        self, encode: Encode, bias: Callable[[], float], count_correction: bool = False
    ) -> None:
        self._encode = encode
        self._encoder_bias = bias
        self._count_correction = count_correction
        self._rows = 0
        self._inputs: Tensor | None = None
        self._outputs: Tensor | None = None
        self._first = torch.empty(0, dtype=torch.long)
        self._lengths = torch.empty(0, dtype=torch.long)
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
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            state = vocabulary.snapshot(since=self._rows)
            if state.phrases:
                self._append(state.phrases)
            if self._rows and (self._view is None or self._view.version != state.version):
                self._view = self._make_view(state)
        return self._view

    def _append(self, phrases: Sequence[Phrase]) -> None:
        vectors = self._encode(phrases)
        end = self._rows + len(phrases)
        is_tied = vectors.inputs is vectors.outputs
        self._outputs = _written(self._outputs, vectors.outputs, self._rows)
        self._inputs = (
            self._outputs if is_tied else _written(self._inputs, vectors.inputs, self._rows)
        )
        device = vectors.outputs.device
        first = torch.tensor([phrase.ids[0] for phrase in phrases], device=device)
        lengths = torch.tensor([len(phrase) for phrase in phrases], device=device)
        self._first = torch.cat([self._first.to(device), first])
        self._lengths = torch.cat([self._lengths.to(device), lengths])
        self._rows = end

    def _make_view(self, state: Snapshot) -> TableView:
        assert self._inputs is not None
        assert self._outputs is not None
        device, dtype = self._outputs.device, self._outputs.dtype
        is_active = torch.frombuffer(state.active, dtype=torch.bool).to(device)
        weights = torch.frombuffer(state.weights, dtype=torch.float64).to(device)
        bias = weights + self._encoder_bias()
        if self._count_correction:
            counts = torch.bincount(self._first[is_active], minlength=int(self._first.max()) + 1)
            bias = bias - counts[self._first].clamp_min(1).log()
        return TableView(
            state.version,
            self._inputs[: self._rows],
            self._outputs[: self._rows],
            bias.masked_fill(~is_active, float("-inf")).to(dtype),
            self._first,
            self._lengths,
        )


def _written(buffer: Tensor | None, rows: Tensor, at: int) -> Tensor:
    """Write rows into a buffer from a place on, doubling it when it is full."""
    if buffer is None:
        # The first rows are taken as they are; only vocabularies that grow pay for spare room.
        return rows
    end = at + rows.shape[0]
    if buffer.shape[0] < end:
        grown = rows.new_empty(max(end, 2 * buffer.shape[0]), rows.shape[1])
        grown[:at] = buffer[:at]
        buffer = grown
    # Views of older versions end before `at`, so nobody reads what is written here.
    buffer[at:end] = rows
    return buffer
