"""The protocol between the decode loop and whatever computes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class PhraseRow(NamedTuple):
    """A phrase fed as one vector."""

    vector: Tensor
    """(d,)"""
    length: int
    """How many base tokens it stands for."""


Row = int | PhraseRow
"""One position of input: a token id, or a phrase's vector."""


class Output(NamedTuple):
    """What a sequence's rows gave, one entry per row."""

    hidden: Tensor
    """(r, d), after the final norm: what the output layer sees."""
    logits: Tensor
    """(r, V), float32."""


class Session(Protocol):
    """The KV cache of a batch of sequences and the four things that can be done with it."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Read the prompts; returns the last row of each."""
        ...

    def step(self, rows: Sequence[Sequence[Row]]) -> list[Output]:
        """Read further rows of every sequence, possibly of different number, in one pass."""
        ...

    def rewind(self, counts: Sequence[int]) -> None:
        """Forget the last rows of each sequence."""
        ...

    def select(self, indices: Sequence[int]) -> None:
        """Keep these sequences in this order; naming one twice forks it."""
        ...
