"""The trained part of the conditional form: what phrases are scored against, and when to stop.

An LM's last state was made to predict one token, and a few of its directions are a hundred times
larger than the rest; z is the state in coordinates in which all directions are alike, and phrases
are scored against it. With `query` they are scored against a guess of the state that the LM would
have after reading their first token, which is chosen already (as Hydra and EAGLE draft): a small
network of z and of the token's row, which learns from the states that training has anyway. A
phrase's vector then begins as the LM's output row of its second token: with a perfect guess the
product is the LM's own logit of it.

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


class ConditionalHead(nn.Module):
    """Scores states for the conditional form.

    Args:
        hidden_size: d, the size of the LM's states.
        query: Width of the network that guesses the next state; 0 for none.
        bias: Where stopping begins: high, so that a fresh head lets no phrase pass.
    """

    def __init__(self, hidden_size: int, query: int, bias: float) -> None:
        super().__init__()
        self.register_buffer("whiten", torch.eye(hidden_size))
        self.whiten: Tensor
        self.has_guess = query > 0
        if self.has_guess:
            self._add_guess(hidden_size, query)
        # Not to go on at all is another choice than to stop after some words: row 0 and row 1.
        self.stop_bias = nn.Parameter(torch.full((2,), bias))
        # A guess is normalised: among many phrases each has less.
        self.stop_count = nn.Parameter(torch.full((2,), 0.0 if query else 1.0))
        self.stop_gate = nn.Parameter(torch.zeros(2, hidden_size))
        # A nat for each token is a cautious beginning.
        self.overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        self.vote_overlap = nn.Parameter(torch.arange(1.0, MAX_OVERLAP + 1))
        # As often as in the documents; the LM knows for itself how frequent a token is.
        self.counts = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.vote_counts = nn.Parameter(torch.tensor([0.0, 0.5]))
        # By the longest overlap of any token: rare where the text is in the middle of no phrase.
        self.vote_bias = nn.Parameter(torch.linspace(-3.0, 0.0, MAX_OVERLAP + 1))
        self.vote_gate = nn.Parameter(torch.zeros(hidden_size))

    def _add_guess(self, hidden_size: int, width: int) -> None:
        self.register_buffer("unwhiten", torch.eye(hidden_size))
        self.unwhiten: Tensor
        self.register_buffer("row_scale", torch.ones(()))
        self.row_scale: Tensor
        # The last number is added to scores: it makes them log-probabilities.
        self.linear = nn.Linear(2 * hidden_size, hidden_size + 1)
        self.down = nn.Linear(2 * hidden_size, width)
        self.up = nn.Linear(width, hidden_size + 1)
        for layer in (self.linear, self.up):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    @torch.no_grad()
    def fit(self, states: Tensor, rows: Tensor) -> None:
        """Choose the coordinates, before any training.

        Args:
            states: Some of the LM's states (N, d).
            rows: Its input rows (..., d) of some tokens.
        """
        if states.any():
            self.whiten.copy_(whitening(states))
        if self.has_guess:
            self.unwhiten.copy_(torch.linalg.inv(self.whiten))
            self.row_scale.copy_(rows.pow(2).mean().sqrt().clamp_min(1e-6))

    def state(self, hidden: Tensor) -> Tensor:
        """Return z of the LM's states (..., d)."""
        state: Tensor = hidden @ self.whiten
        return state

    def base(self, output_rows: Tensor) -> Tensor:
        """Return what phrases' vectors begin as, by the output rows (P, d) of second tokens."""
        if not self.has_guess:
            return torch.zeros_like(output_rows)
        # h . row = (h whiten) . (unwhiten row); queries are divided by the root.
        base: Tensor = output_rows @ self.unwhiten * output_rows.shape[-1] ** 0.5
        return base

    def query(self, state: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what phrases are scored against, and what is added to their scores.

        Args:
            state: z (..., d).
            rows: The LM's input rows (..., d) of the tokens that the phrases begin with.

        Returns:
            (..., d) and (...).
        """
        guess, offset = state, torch.zeros_like(state[..., 0])
        if self.has_guess:
            inputs = self.guess_inputs(state, rows)
            made = self.linear(inputs) + self.up(nn.functional.silu(self.down(inputs)))
            # As the LM has its states: there a small step is small for its logits.
            guess, offset = self.state(made[..., :-1]), made[..., -1]
        return self.scaled(guess), offset

    def guess_inputs(self, state: Tensor, rows: Tensor) -> Tensor:
        """Return what the guess is made of (..., 2 d), all about as large."""
        return torch.cat([state, rows / self.row_scale], -1)

    def scaled(self, state: Tensor) -> Tensor:
        """Make a state of length one, not of size one in each direction: a score is a sum."""
        scaled: Tensor = state / state.shape[-1] ** 0.5
        return scaled

    def bonus(self, evidence: Evidence) -> Tensor:
        """Return what the documents' counts add to the scores of phrases."""
        return _bonus(evidence, self.overlap, self.counts)

    def voted(
        self, state: Tensor, scores: Tensor, logprobs: Tensor, evidence: Evidence
    ) -> tuple[Tensor, Tensor]:
        """Let the documents vote on the next token.

        Args:
            state: z (T, d).
            scores: (T, F), of the tokens that phrases begin with.
            logprobs: (T, F), the LM's own log-probabilities of them.
            evidence: (T, F), or (F,) for what is the same everywhere.

        Returns:
            (T,) the logit of the documents' part, and (T, F) log-probabilities in it.
        """
        bonus = _bonus(evidence, self.vote_overlap, self.vote_counts)
        chosen = (logprobs + scores + bonus).log_softmax(-1)
        # In the middle of a word, or before a mark, documents that begin phrases have no say.
        bias = self.vote_bias[torch.from_numpy(evidence.overlaps.max(-1))]
        return bias + state @ self.vote_gate + logprobs.logsumexp(-1), chosen

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
