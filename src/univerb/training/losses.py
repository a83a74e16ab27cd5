"""L_p, L_t and L_kl of the paper's section 2.4 as sums over positions (docs/method.md, Losses).

The |V| logits of only `chunk` positions are alive at a time, forward and backward: a chunk keeps
its hidden states and computes its logits again for its gradient. Sums and counts are separate, so
that several processes can divide by the counts of the whole batch.

`mixed` (B, M, d) are states of the pass over units, `plain` (B, N, d) of the pass over tokens; ids
and masks have their shape without d, and masks are False where padded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from univerb.training.config import LossConfig
from univerb.training.mixed_batch import PoolEntry


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
class LossSum:
    """A loss summed over `count` positions; L_p also counts what would be chosen there."""

    total: Tensor
    count: int
    right: int = 0
    """Phrases that win where they are the next unit."""
    phrases: int = 0
    """Positions whose next unit is a phrase."""
    fired: int = 0
    """Positions whose next unit is a token and where a phrase wins."""


def phrase_loss(
    mixed: Tensor,
    unit_ids: Tensor,
    mask: Tensor,
    expanded: Expanded,
    chunk: int,
    masked: Sequence[PoolEntry] = (),
) -> LossSum:
    """Sum L_p over all but the first units: the cross-entropy of the next unit over V + P.

    `masked` phrases are left out of the pool after a unit.
    """
    scored = mask[:, 1:]
    states, targets = mixed[:, :-1][scored], unit_ids[:, 1:][scored]
    static_size = expanded.static_size
    masked_rows, masked_columns = _masked_logits(masked, scored, static_size)

    def part(states: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
        logits, truth = expanded.logits(states), targets[begin:end]
        here = (masked_rows >= begin) & (masked_rows < end)
        if here.any():
            logits[masked_rows[here] - begin, masked_columns[here]] = float("-inf")
        winner = logits.detach().argmax(-1)
        is_phrase = truth >= static_size
        right = (winner == truth) & is_phrase
        fired = (winner >= static_size) & ~is_phrase
        loss = functional.cross_entropy(logits, truth, reduction="sum")
        return loss, torch.stack([right.sum(), fired.sum()])

    total, wins = mixed.sum() * 0.0, torch.zeros(2, dtype=torch.long, device=mixed.device)
    for loss, counts in _chunked(part, chunk, states):
        total, wins = total + loss, wins + counts
    right, fired = wins.tolist()
    phrases = int((targets >= static_size).sum())
    return LossSum(total, len(targets), right, phrases, fired)


def token_loss(
    plain: Tensor, token_ids: Tensor, mask: Tensor, output: nn.Module, chunk: int
) -> LossSum:
    """Sum L_t over all but the first tokens: the cross-entropy of the next token over V."""
    scored = mask[:, 1:]
    states, targets = plain[:, :-1][scored], token_ids[:, 1:][scored]

    def part(states: Tensor, begin: int, end: int) -> tuple[Tensor]:
        logits = output(states).float()
        return (functional.cross_entropy(logits, targets[begin:end], reduction="sum"),)

    total = sum((loss for (loss,) in _chunked(part, chunk, states)), plain.sum() * 0.0)
    return LossSum(total, len(targets))


def kl_loss(
    mixed: Tensor,
    plain: Tensor,
    sigma: Tensor,
    mask: Tensor,
    dynamic: Expanded,
    static: Expanded,
    settings: LossConfig,
) -> LossSum:
    """Sum L_kl: KL(dynamic || static), the mixed pass against the plain one.

    Args:
        mixed: States of the mixed pass.
        plain: States of the plain pass.
        sigma: The last token that each unit covers.
        mask: Of the units.
        dynamic: The output side of the mixed pass.
        static: That of the plain pass; another one if another LM is the teacher.
        settings: `alignment` context compares the states after unit i and after token sigma(i),
            which have read the same text, for every unit; target those that predict unit i and
            token sigma(i), for every unit but the first. Both are distributions over `support`;
            `detach` and a bare `teacher` stop the gradient of the plain pass.

    Returns:
        The sum.
    """
    if settings.alignment == "target":
        mixed, mask, sigma = mixed[:, :-1], mask[:, 1:], sigma[:, 1:] - 1
    passages = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    ours, theirs = mixed[mask], plain[passages[mask], sigma[mask]]
    has_gradient = settings.detach == "none" and settings.teacher == "self"

    def part(ours: Tensor, theirs: Tensor, begin: int, end: int) -> tuple[Tensor]:
        p = dynamic.logits(ours, settings.support).log_softmax(-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and has_gradient):
            q = static.logits(theirs, settings.support).log_softmax(-1)
        return (functional.kl_div(q, p, reduction="sum", log_target=True),)

    parts = _chunked(part, settings.chunk, ours, theirs)
    return LossSum(sum((loss for (loss,) in parts), mixed.sum() * 0.0), len(ours))


def _chunked(
    part: Callable[..., tuple[Tensor, ...]], chunk: int, *states: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    for begin in range(0, len(states[0]), chunk):
        end = min(begin + chunk, len(states[0]))
        rows = (tensor[begin:end] for tensor in states)
        # Nothing in a part is random, so there is no generator state to keep.
        yield checkpoint(part, *rows, begin, end, use_reentrant=False, preserve_rng_state=False)


def _masked_logits(
    masked: Sequence[PoolEntry], scored: Tensor, static_size: int
) -> tuple[Tensor, Tensor]:
    """Return masked entries as rows among the scored positions and columns of the logits."""
    entries = torch.tensor(masked, dtype=torch.long, device=scored.device).reshape(-1, 3)
    # The last unit of a passage predicts nothing.
    passage, unit, phrase = entries[entries[:, 1] < scored.shape[1]].T
    row = scored.flatten().cumsum(0).view(scored.shape) - 1
    is_scored = scored[passage, unit]
    return row[passage, unit][is_scored], phrase[is_scored] + static_size
