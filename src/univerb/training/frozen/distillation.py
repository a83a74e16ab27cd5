"""Distillation of the LM's own expectation into the scores of phrases that begin as the text does.

The text shows which of a pool's phrases was right, if any: little information in most rows. The
cached state after the true first token says more. It gives the probability of every second token,
so of all phrases that share that first token: which of them the LM would go on to write.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.training.frozen.pools import LivePool


class Bigrams(NamedTuple):
    """The different first two tokens of a pool's phrases."""

    first: Tensor
    """(C,) first tokens."""
    second: Tensor
    """(C,) second tokens."""
    of_phrase: Tensor
    """(K,) the bigram of each phrase."""

    @classmethod
    def of(cls, pool: LivePool) -> "Bigrams":
        """Collect the bigrams of a pool's phrases."""
        both = torch.stack([pool.first, pool.second], dim=1)
        bigrams, of_phrase = torch.unique(both, dim=0, return_inverse=True)
        return cls(bigrams[:, 0], bigrams[:, 1], of_phrase)


def distillation_loss(
    logits: Tensor,
    first: Tensor,
    following: Tensor,
    logsumexp: Tensor,
    second_rows: Tensor,
    bigrams: Bigrams,
) -> tuple[Tensor, Tensor]:
    """Compare phrases that share the true first token with the LM's second tokens.

    Args:
        logits: (R, K) of the pool's phrases.
        first: (R,) the tokens that follow in the text.
        following: (R, d) the LM's states after them.
        logsumexp: (R,) of its logits over V there.
        second_rows: (C, d) the LM's output rows of the second tokens.
        bigrams: Of the phrases.

    Returns:
        (R,) KL(LM || phrases) over the second tokens that the pool offers, and (R,) its weight: the
        LM's probability that one of them follows, 0 where the pool offers no choice.
    """
    shared = first[:, None] == bigrams.first
    rows = (shared.sum(1) > 1).nonzero()[:, 0]
    shared = shared[rows]
    student = logits[rows].masked_fill(~shared[:, bigrams.of_phrase], -torch.inf).log_softmax(1)
    mass = torch.zeros_like(shared, dtype=student.dtype)
    mass = mass.index_add(1, bigrams.of_phrase, student.exp())
    with torch.no_grad():
        teacher = following[rows] @ second_rows.T - logsumexp[rows, None]
        teacher = teacher.masked_fill(~shared, -torch.inf)
        covered = teacher.logsumexp(1)
        target = (teacher - covered[:, None]).exp()
        entropy = torch.special.entr(target).sum(1)
    # Where the target is 0, so is the term, whatever the scores.
    cross_entropy = -(target * mass.clamp_min(1e-12).log()).sum(1)
    zeros = logits.new_zeros(len(first))
    loss = zeros.index_copy(0, rows, cross_entropy - entropy)
    return loss, zeros.index_copy(0, rows, covered.exp())
