"""What the LM itself thinks of the phrases that begin as the text does: a teacher for every row.

The text shows which of a pool's phrases was right, if any was: one bit of news in most rows. The
cached state after the true first token says more. It gives the probability of every second token,
so of all phrases that share that first token: which of them the LM would go on to write.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.training.frozen.pools import LivePool


class Pairs(NamedTuple):
    """The different beginnings of a pool's phrases."""

    first: Tensor
    """(C,) first tokens."""
    second: Tensor
    """(C,) second tokens."""
    of_phrase: Tensor
    """(K,) the beginning of each phrase."""

    @classmethod
    def of(cls, pool: LivePool) -> "Pairs":
        """Find the beginnings of a pool's phrases."""
        both = torch.stack([pool.first, pool.second], dim=1)
        pairs, of_phrase = torch.unique(both, dim=0, return_inverse=True)
        return cls(pairs[:, 0], pairs[:, 1], of_phrase)


class Taught(NamedTuple):
    """How far the phrases' scores are from the LM's own expectation, row by row."""

    loss: Tensor
    """(R,) KL(LM || phrases) over the second tokens that the pool offers."""
    weight: Tensor
    """(R,) the LM's probability that one of them follows; 0 where the pool offers no choice."""


def taught(
    logits: Tensor, first: Tensor, following: Tensor, total: Tensor, seconds: Tensor, pairs: Pairs
) -> Taught:
    """Compare phrases that share the true first token with the LM's second tokens.

    Args:
        logits: (R, K) of the pool's phrases.
        first: (R,) the tokens that really come next.
        following: (R, d) the LM's states after them.
        total: (R,) the logsumexp of its logits over V there.
        seconds: (C, d) the LM's output rows of the second tokens.
        pairs: The beginnings of the phrases.

    Returns:
        The loss of each row and how much it matters.
    """
    shared = first[:, None] == pairs.first
    kept = (shared.sum(1) > 1).nonzero()[:, 0]
    shared = shared[kept]
    mine = logits[kept].masked_fill(~shared[:, pairs.of_phrase], -torch.inf).log_softmax(1)
    mass = torch.zeros_like(shared, dtype=mine.dtype).index_add(1, pairs.of_phrase, mine.exp())
    with torch.no_grad():
        offered = following[kept] @ seconds.T - total[kept, None]
        offered = offered.masked_fill(~shared, -torch.inf)
        covered = offered.logsumexp(1)
        target = (offered - covered[:, None]).exp()
        entropy = torch.special.entr(target).sum(1)
    # Where the target is nothing, so is the term, whatever the scores.
    cross = -(target * mass.clamp_min(1e-12).log()).sum(1)
    nothing = logits.new_zeros(len(first))
    return Taught(
        nothing.index_copy(0, kept, cross - entropy), nothing.index_copy(0, kept, covered.exp())
    )
