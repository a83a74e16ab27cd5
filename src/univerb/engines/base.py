"""The protocol between the decode loop and whatever computes.

What passes between them lies in host memory as numpy arrays: a choice needs a few numbers of each
row, and an engine that has no torch must not bring it in.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from univerb.decoding.options import Decoding, Resolved
from univerb.modeling.phrase_table import TableView

Floats = NDArray[numpy.float32]
Ints = NDArray[numpy.int64]


class PhraseRow(NamedTuple):
    """A phrase fed as one vector."""

    vector: Floats
    """(d,)"""
    length: int
    """How many base tokens it stands for."""


Row = int | PhraseRow
"""One position of input: a token id, or a phrase's vector."""


class Output(NamedTuple):
    """What a sequence's rows gave, one entry per row."""

    hidden: Floats
    """(r, d), after the final norm: what the output layer sees."""
    logits: Floats
    """(r, V)"""


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


class ShortList(NamedTuple):
    """Which phrases of a large vocabulary are scored where all of them could be chosen."""

    start: int
    """From so many phrases on."""
    first_tokens: int
    """Those that begin with one of so many tokens, the likeliest ones."""
    per_token: int
    """So many of each, those that were put in first."""
    gap: float = 99.0
    """No token whose logit is lower than the best one's by more than this."""


class PhraseRows(Protocol):
    """The output vectors of a phrase table, as an engine multiplies them."""

    @property
    def short_list(self) -> ShortList:
        """What is worth the time that it saves, as measured."""
        ...

    @property
    def is_rough(self) -> bool:
        """Whether `products` is right to two digits only."""
        ...

    def follow(self, view: TableView) -> None:
        """Take in a view of the table."""
        ...

    def products(self, hidden: Floats, stretches: Sequence[Ints | slice]) -> Floats:
        """Multiply rows with a state (d,); half-precision rows roughly, single ones exactly."""
        ...

    def exact(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,) in single precision."""
        ...


class Sampler(Protocol):
    """How one sequence turns logits into a choice; holds the sequence's own random state."""

    @property
    def temperature(self) -> float:
        """What the filters divide logits by, for scores that do not go through them."""
        ...

    @property
    def is_greedy(self) -> bool:
        """Whether it picks without drawing."""
        ...

    @property
    def has_filters(self) -> bool:
        """Whether `filtered` changes anything."""
        ...

    def filtered(self, logits: Floats, seen: Sequence[int]) -> Floats:
        """Apply penalties and cut-offs to logits (N,), given the ids seen so far."""
        ...

    def pick(self, filtered: Floats) -> int:
        """Choose an id from filtered logits (N,)."""
        ...


class Engine(Protocol):
    """What computes for an LM."""

    @property
    def draft_rows(self) -> int:
        """How many rows of a pass cost about as much as one; below 2 nothing is drafted."""
        ...

    def session(
        self, how: Resolved, *, has_phrases: bool, can_grow: bool = False, reuse: bool
    ) -> Session:
        """Begin with a batch of sequences.

        Without phrases, and if none can come later, nobody looks at their states.
        """
        ...

    def sampler(self, decoding: Decoding) -> Sampler:
        """Make a sampler for one sequence."""
        ...

    def phrase_rows(self) -> PhraseRows:
        """Make what multiplies the rows of one sequence's phrases."""
        ...
