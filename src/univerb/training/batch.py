"""A batch of passages in which some stretches are phrases, ready for both passes of the LM."""

from dataclasses import dataclass

from torch import Tensor

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A passage as units (METHOD A.1): tokens and phrases that tile its tokens."""

    ids: list[int]
    units: list[tuple[int, int]]
    """Token ranges; one of two tokens or more is a phrase."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The phrases of a batch: where in the encoder's rows each one's vector is found."""

    rows: list[Key]
    """Token windows to encode."""
    row: list[int]
    column: list[int]
    """For each phrase its row, and the column of its last token."""
    keys: list[Key]
    """For each phrase its tokens; no key twice."""
    golds: int
    """The first so many are gold somewhere in the batch."""


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """What the losses need. B passages, at most M units and N tokens each, padded on the right."""

    unit_ids: Tensor
    """(B, M) a token, or |V| + its place in the pool."""
    unit_mask: Tensor
    """(B, M) False where padded."""
    token_ids: Tensor
    """(B, N)"""
    token_mask: Tensor
    """(B, N)"""
    sigma: Tensor
    """(B, M) the last token that each unit covers."""
    pool: Pool
