"""The protocol between the decode loop and whatever computes.

What passes between them lies in host memory as numpy arrays: a choice needs a few numbers of each
row, and an engine that has no torch must not bring it in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from univerb.config import GenerationConfig
from univerb.engines.row_costs import RowCosts
from univerb.modeling.phrase_table import TableView

Floats = NDArray[numpy.float32]
Ints = NDArray[numpy.int64]


class PhraseRow(NamedTuple):
    """A phrase fed as one vector."""

    vector: Floats
    """(d,)"""
    length: int
    """Number of base tokens that it stands for."""


Row = int | PhraseRow
"""One position of input: a token id, or a phrase's vector."""


class Output(NamedTuple):
    """The results of a sequence's rows, one entry per row."""

    hidden: Floats
    """(r, d), after the final norm: what the output layer sees."""
    logits: Floats
    """(r, V)"""


class Session(Protocol):
    """The KV cache of a batch of sequences and the four operations on it."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Read the prompts; returns the last row of each."""
        ...

    def step(self, rows: Sequence[Sequence[Row]]) -> list[Output]:
        """Read further rows of every sequence, possibly of different number, in one pass."""
        ...

    def rewind(self, counts: Sequence[int]) -> None:
        """Drop the last rows of each sequence."""
        ...

    def select(self, indices: Sequence[int]) -> None:
        """Keep these sequences in this order; naming one twice forks it."""
        ...


class ShortList(NamedTuple):
    """Which phrases of a large vocabulary are scored where all of them could be chosen."""

    min_phrases: int
    """Vocabularies with fewer phrases are scored in full."""
    first_tokens: int
    """Number of likeliest first tokens whose phrases are scored."""
    per_token: int
    """Phrases scored per first token, those that were added first."""
    max_gap: float
    """Tokens whose logit is lower than the best one's by more than this are left out."""


class PhraseWeights(Protocol):
    """The output vectors of a phrase table, as an engine multiplies them."""

    @property
    def short_list(self) -> ShortList:
        """What is worth the time that it saves, as measured."""
        ...

    @property
    def is_approximate(self) -> bool:
        """Whether `logits` is right to two digits only."""
        ...

    def update(self, view: TableView) -> None:
        """Follow the table to a view of it."""
        ...

    def logits(self, hidden: Floats, spans: Sequence[Ints | slice]) -> Floats:
        """Multiply rows with a state (d,); float16 rows approximately, float32 ones exactly."""
        ...

    def exact_logits(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,) in single precision."""
        ...


@dataclass(frozen=True)
class Sampler(ABC):
    """How one sequence turns logits into a choice; holds the sequence's own random state."""

    filters: Sequence[Callable[..., Any]]
    """Applied one after the other; empty if `filtered` changes nothing."""
    is_greedy: bool
    """Whether it picks without drawing."""

    @abstractmethod
    def filtered(self, logits: Floats, seen: Sequence[int]) -> Floats:
        """Apply penalties and cut-offs to logits (N,), given the ids seen so far."""

    @abstractmethod
    def pick(self, filtered: Floats) -> int:
        """Choose an id from filtered logits (N,)."""


class Engine(Protocol):
    """What computes for an LM."""

    @property
    def has_equal_rows(self) -> bool:
        """Whether a row gives the same whatever rows are read beside it."""
        ...

    def row_costs(self, config: GenerationConfig) -> RowCosts:
        """Return what passes over several rows cost: as measured once on this machine."""
        ...

    def session(
        self, config: GenerationConfig, *, has_phrases: bool, needs_states: bool = True
    ) -> Session:
        """Begin a batch of sequences.

        Args:
            config: The options of the generation.
            has_phrases: Whether there are phrases: without any, every bit is the bare model's.
            needs_states: Whether somebody looks at states, now or later.

        Returns:
            A session.
        """
        ...

    def sampler(self, config: GenerationConfig) -> Sampler:
        """Make a sampler for one sequence."""
        ...

    def phrase_weights(self) -> PhraseWeights:
        """Make what multiplies the rows of one sequence's phrases."""
        ...
