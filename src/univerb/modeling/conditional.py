"""The trained part of the conditional form: what phrases are scored against, and when to stop.

An LM's last state was made to predict one token, and a few of its directions are a hundred times
larger than the rest. Phrases are scored against q = z + a residual of z that starts at zero, where
z is the state in coordinates in which all directions are alike. At each node of the phrase tree
they compete with "stop here", whose score depends on the state and on how many phrases go on from
there. A phrase scores higher where the text is in the middle of a longer one: where the last tokens
and the phrase are together a candidate, too. The documents also vote on the next token: with a
probability that the state gives, one of the tokens that phrases begin with is chosen by the LM's
own logits and the same kind of scores. `scoring` computes all this without torch.
"""

import torch
from torch import Tensor, nn

from univerb.modeling.heads import whitening
from univerb.modeling.phrase_tree import MAX_OVERLAP


class ConditionalHead(nn.Module):
    """Scores states for the conditional form.

    Args:
        hidden_size: d, the size of the LM's states.
        query: Width of the residual; 0 for none.
        bias: Where stopping begins: high, so that a fresh head lets no phrase pass.
    """

    def __init__(self, hidden_size: int, query: int, bias: float) -> None:
        super().__init__()
        self.register_buffer("whiten", torch.eye(hidden_size))
        self.whiten: Tensor
        self.down = nn.Linear(hidden_size, query) if query else None
        self.up = nn.Linear(query, hidden_size) if query else None
        if self.up is not None:
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)
        # Not to go on at all is another choice than to stop after some words: row 0 and row 1.
        self.stop_bias = nn.Parameter(torch.full((2,), bias))
        self.stop_count = nn.Parameter(torch.ones(2))
        self.stop_gate = nn.Parameter(torch.zeros(2, hidden_size))
        # A nat for each token is a cautious beginning.
        self.overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        self.vote_overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        # By the longest overlap of any token: rare where the text is in the middle of no phrase.
        self.vote_bias = nn.Parameter(torch.linspace(-3.0, 0.0, MAX_OVERLAP + 1))
        self.vote_gate = nn.Parameter(torch.zeros(hidden_size))

    @torch.no_grad()
    def fit(self, states: Tensor) -> None:
        """Choose the coordinates by some of the LM's states (N, d), before any training."""
        if states.any():
            self.whiten.copy_(whitening(states))

    def query(self, hidden: Tensor) -> Tensor:
        """Map states (..., d) to what phrases are scored against."""
        state: Tensor = hidden @ self.whiten
        if self.down is not None and self.up is not None:
            state = state + self.up(nn.functional.silu(self.down(state)))
        # Of length one, not of size one in each direction: a score is a sum over all of them.
        query: Tensor = state / hidden.shape[-1] ** 0.5
        return query

    def bonus(self, overlap: Tensor) -> Tensor:
        """Return what is added to the scores of phrases by the tokens that lead to them."""
        return nn.functional.pad(self.overlap, (1, 0))[overlap]

    def voted(
        self, hidden: Tensor, scores: Tensor, logprobs: Tensor, overlap: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Let the documents vote on the next token.

        Args:
            hidden: (T, d), the LM's states.
            scores: (T, F), of the tokens that phrases begin with.
            logprobs: (T, F), the LM's own log-probabilities of them.
            overlap: (T, F), the tokens before that lead to each.

        Returns:
            (T,) the logit of the documents' part, and (T, F) log-probabilities in it.
        """
        bonus = nn.functional.pad(self.vote_overlap, (1, 0))[overlap]
        chosen = (logprobs + scores + bonus).log_softmax(-1)
        gate = (hidden @ self.whiten) @ self.vote_gate
        # In the middle of a word, or before a mark, documents that begin phrases have no say.
        return self.vote_bias[overlap.amax(-1)] + gate + logprobs.logsumexp(-1), chosen

    def stops(self, hidden: Tensor, is_phrase: Tensor, sizes: Tensor) -> Tensor:
        """Return the logits (N,) of stopping at nodes of the tree.

        Args:
            hidden: (N, d), the LM's states.
            is_phrase: (N,) whether the node is a phrase already, not only a first token.
            sizes: (N,) number of phrases directly under it.

        Returns:
            The logits, on the scale of the phrases' scores.
        """
        kind = is_phrase.long()
        gate = ((hidden @ self.whiten) * self.stop_gate[kind]).sum(-1)
        return self.stop_bias[kind] + self.stop_count[kind] * sizes.to(gate.dtype).log() + gate
