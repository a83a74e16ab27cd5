"""The trained part of the conditional form: what phrases are scored against, and when to stop.

An LM's last state was made to predict one token, and a few of its directions are a hundred times
larger than the rest; z is the state in coordinates in which all directions are alike, and phrases
are scored against it.

At each node of the phrase tree phrases compete with "stop here", whose score depends on the state
and on how often phrases go on from there. What the documents have often scores higher, and so does
what they have after the last tokens of the text (`evidence`). The documents also vote on the next
token: with a probability that the state gives, one of the tokens that phrases begin with is chosen
by the LM's own logits and the same kind of scores. `scoring` computes all this without torch.
"""

import torch
from torch import Tensor, nn

from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.heads import whitening

# As a logit it leaves nothing, and has no gradient to speak of.
_NEVER = -60.0


class ConditionalHead(nn.Module):
    """Scores states for the conditional form.

    Args:
        hidden_size: d, the size of the LM's states.
        bias: Where stopping begins: high, so that a fresh head lets no phrase pass.
        has_votes: Whether documents vote on first tokens.
    """

    def __init__(self, hidden_size: int, bias: float, has_votes: bool = True) -> None:
        super().__init__()
        self.register_buffer("whiten", torch.eye(hidden_size))
        self.whiten: Tensor
        # Not to go on at all is another choice than to stop after some words: row 0 and row 1.
        self.stop_bias = nn.Parameter(torch.full((2,), bias))
        self.stop_count = nn.Parameter(torch.ones(2))
        self.stop_gate = nn.Parameter(torch.zeros(2, hidden_size))
        # A nat for each token is a cautious beginning.
        self.overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        self.vote_overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        # As often as in the documents; the LM knows for itself how frequent a token is.
        self.counts = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.vote_counts = nn.Parameter(torch.tensor([0.0, 0.5]))
        # By the longest overlap of any token: rare where the text is in the middle of no phrase.
        begin = torch.linspace(-3.0, 0.0, MAX_OVERLAP + 1)
        self.vote_bias = nn.Parameter(begin if has_votes else torch.full_like(begin, _NEVER))
        self.vote_gate = nn.Parameter(torch.zeros(hidden_size))

    @torch.no_grad()
    def fit(self, states: Tensor) -> None:
        """Choose the coordinates by some of the LM's states (N, d), before any training."""
        if states.any():
            self.whiten.copy_(whitening(states))

    def state(self, hidden: Tensor) -> Tensor:
        """Return z of the LM's states (..., d)."""
        state: Tensor = hidden @ self.whiten
        return state

    def scaled(self, state: Tensor) -> Tensor:
        """Make a state of length one, not of size one in each direction: a score is a sum."""
        scaled: Tensor = state / state.shape[-1] ** 0.5
        return scaled

    def bonus(self, evidence: Evidence) -> Tensor:
        """Return what the documents' counts add to the scores of phrases."""
        return _bonus(evidence, self.overlap, self.counts)

    def voted(
        self, state: Tensor, scores: Tensor, logprobs: Tensor, evidence: Evidence, longest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Let the documents vote on the next token.

        Args:
            state: z (T, d).
            scores: (T, F), of the tokens that phrases begin with.
            logprobs: (T, F), the LM's own log-probabilities of them.
            evidence: (T, F), or (F,) for what is the same everywhere.
            longest: (T,) the longest overlap of any token that phrases begin with.

        Returns:
            (T,) the logit of the documents' part, and (T, F) log-probabilities in it.
        """
        bonus = _bonus(evidence, self.vote_overlap, self.vote_counts)
        chosen = (logprobs + scores + bonus).log_softmax(-1)
        # In the middle of a word, or before a mark, documents that begin phrases have no say.
        return self.vote_bias[longest] + state @ self.vote_gate + logprobs.logsumexp(-1), chosen

    def stops(self, state: Tensor, is_phrase: Tensor, totals: Tensor, products: Tensor) -> Tensor:
        """Return the logits (N,) of stopping at nodes of the tree.

        Args:
            state: z (N, d).
            is_phrase: (N,) whether the node is a phrase already, not only a first token.
            totals: (N,) occurrences of the phrases directly under it.
            products: (N,) of the query and the vector of the node's phrase; 0 for a first token.

        Returns:
            The logits, on the scale of the phrases' scores.
        """
        kind = is_phrase.long()
        gate = (state * self.stop_gate[kind]).sum(-1)
        scale = self.stop_count[kind] * totals.to(gate.dtype).log()
        return self.stop_bias[kind] + scale + gate + products


def _bonus(evidence: Evidence, overlap: Tensor, weights: Tensor) -> Tensor:
    """Do what `Evidence.bonus` does, with gradients."""
    result = nn.functional.pad(overlap, (1, 0))[torch.from_numpy(evidence.overlaps)]
    for weight, each in zip(weights, (evidence.counts, evidence.overlap_counts), strict=True):
        result = result + weight * torch.from_numpy(each).to(weight.dtype).log()
    return result
