"""L_p, L_t and L_kl as sums over positions (METHOD A.6), in memory that does not grow with them.

The |V| logits of only `chunk` positions are alive at a time, forward and backward: a chunk keeps
its hidden states and computes its logits again when its gradient is asked for. Sums and counts
are apart, so that several processes can divide by the counts of the whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Place = tuple[int, int, int]
"""A passage, a unit in it, and a phrase of the pool."""


class Expanded(NamedTuple):
    """The output side of V' = V + P."""

    output: nn.Module
    """The LM's output layer."""
    phrases: Tensor
    """(P, d), the output vectors of the pool."""
    bias: Tensor
    """(P,), added to their logits."""

    @property
    def static_size(self) -> int:
        """|V|, the id of the first phrase."""
        weight = self.output.weight
        assert isinstance(weight, Tensor)
        return int(weight.shape[0])

    def logits(self, hidden: Tensor, support: Literal["V", "V+P"] = "V+P") -> Tensor:
        """Score states (N, d) against V or V + P, in single precision even under autocast."""
        tokens: Tensor = self.output(hidden)
        if support == "V" or not len(self.phrases):
            return tokens.float()
        phrases = hidden @ self.phrases.T.to(hidden.dtype)
        return torch.cat([tokens.float(), phrases.float() + self.bias.float()], dim=-1)


@dataclass(frozen=True, slots=True)
class Sum:
    """A loss summed over its positions."""

    total: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class PhraseSum:
    """L_p summed over its positions, and what would have been chosen there."""

    total: Tensor
    count: int
    right: int
    """Phrases that win where they are the next unit."""
    phrases: int
    """Positions whose next unit is a phrase."""
    fired: int
    """Positions whose next unit is a token and where a phrase wins."""


def phrase_loss(
    hidden: Tensor,
    unit_ids: Tensor,
    mask: Tensor,
    expanded: Expanded,
    chunk: int,
    masked: Sequence[Place] = (),
) -> PhraseSum:
    """Sum L_p: the cross-entropy of the next unit over V + P.

    Args:
        hidden: States of the mixed pass (B, M, d).
        unit_ids: What was read (B, M).
        mask: Which units are no padding (B, M).
        expanded: The output side.
        chunk: Positions whose logits are in memory at a time.
        masked: Phrases that are not in the pool after a unit.

    Returns:
        The sum over every unit but the first of each passage.
    """
    scored = mask[:, 1:]
    states, targets = hidden[:, :-1][scored], unit_ids[:, 1:][scored]
    static_size = expanded.static_size
    banned = _banned(masked, scored, static_size)

    def part(states: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
        logits, truth = expanded.logits(states), targets[begin:end]
        here = (banned[0] >= begin) & (banned[0] < end)
        if here.any():
            logits[banned[0][here] - begin, banned[1][here]] = float("-inf")
        winner = logits.detach().argmax(-1)
        is_phrase = truth >= static_size
        right = (winner == truth) & is_phrase
        fired = (winner >= static_size) & ~is_phrase
        return functional.cross_entropy(logits, truth, reduction="sum"), torch.stack(
            [right.sum(), fired.sum()]
        )

    total, wins = hidden.sum() * 0.0, torch.zeros(2, dtype=torch.long, device=hidden.device)
    for loss, counts in _chunked(part, chunk, states):
        total, wins = total + loss, wins + counts
    right, fired = wins.tolist()
    phrases = int((targets >= static_size).sum())
    return PhraseSum(total, len(targets), right, phrases, fired)


def token_loss(
    hidden: Tensor, token_ids: Tensor, mask: Tensor, output: nn.Module, chunk: int
) -> Sum:
    """Sum L_t: the cross-entropy of the next token over V.

    Args:
        hidden: States of the plain pass (B, N, d).
        token_ids: What was read (B, N).
        mask: Which tokens are no padding (B, N).
        output: The LM's output layer.
        chunk: Positions whose logits are in memory at a time.

    Returns:
        The sum over every token but the first of each passage.
    """
    scored = mask[:, 1:]
    states, targets = hidden[:, :-1][scored], token_ids[:, 1:][scored]

    def part(states: Tensor, begin: int, end: int) -> tuple[Tensor]:
        logits = output(states).float()
        return (functional.cross_entropy(logits, targets[begin:end], reduction="sum"),)

    total = hidden.sum() * 0.0
    for (loss,) in _chunked(part, chunk, states):
        total = total + loss
    return Sum(total, len(targets))


def kl_loss(
    mixed: Tensor,
    plain: Tensor,
    sigma: Tensor,
    mask: Tensor,
    dynamic: Expanded,
    static: Expanded,
    chunk: int,
    alignment: Literal["context", "target"] = "context",
    support: Literal["V", "V+P"] = "V",
    detach: Literal["none", "static"] = "none",
) -> Sum:
    """Sum L_kl: KL(dynamic || static), the mixed pass against the plain one.

    Args:
        mixed: States of the mixed pass (B, M, d).
        plain: States of the plain pass (B, N, d).
        sigma: The last token that each unit covers (B, M).
        mask: Which units are no padding (B, M).
        dynamic: The output side of the mixed pass.
        static: That of the plain pass; another one if another LM is the teacher.
        chunk: Positions whose logits are in memory at a time.
        alignment: context compares the states after unit i and after token sigma(i), which have
            read the same text; target those that predict unit i and token sigma(i).
        support: Over which vocabulary both are distributions.
        detach: static stops the gradient of the plain pass.

    Returns:
        The sum over every unit, or for target over every unit but the first of each passage.
    """
    if alignment == "target":
        mixed, mask, sigma = mixed[:, :-1], mask[:, 1:], sigma[:, 1:] - 1
    passages = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    ours, theirs = mixed[mask], plain[passages[mask], sigma[mask]]

    def part(ours: Tensor, theirs: Tensor, begin: int, end: int) -> tuple[Tensor]:
        p = dynamic.logits(ours, support).log_softmax(-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and detach == "none"):
            q = static.logits(theirs, support).log_softmax(-1)
        return (functional.kl_div(q, p, reduction="sum", log_target=True),)

    total = mixed.sum() * 0.0
    for (loss,) in _chunked(part, chunk, ours, theirs):
        total = total + loss
    return Sum(total, len(ours))


def _chunked(
    part: Callable[..., tuple[Tensor, ...]], chunk: int, *states: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    for begin in range(0, len(states[0]), chunk):
        end = min(begin + chunk, len(states[0]))
        rows = (one[begin:end] for one in states)
        # Nothing in a part is random, so there is no generator to keep.
        yield checkpoint(part, *rows, begin, end, use_reentrant=False, preserve_rng_state=False)


def _banned(masked: Sequence[Place], scored: Tensor, static_size: int) -> tuple[Tensor, Tensor]:
    """Turn places into rows among the scored positions and columns of the logits."""
    if not masked:
        none = torch.empty(0, dtype=torch.long, device=scored.device)
        return none, none
    passage, unit, phrase = torch.tensor(masked, device=scored.device).T
    row = scored.flatten().cumsum(0).view(scored.shape) - 1
    inside = unit < scored.shape[1]
    passage, unit, phrase = passage[inside], unit[inside], phrase[inside]
    real = scored[passage, unit]
    return row[passage, unit][real], phrase[real] + static_size
