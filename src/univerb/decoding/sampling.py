"""Filters and the final pick, the same over V and over V + P.

The filters are transformers' own, in its order, and the draw consumes the generator as its
`generate()` does: a seed gives the same text here and there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

Filter = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sampler:
    """How one sequence turns logits into a choice; holds the sequence's own random state."""

    filters: tuple[Filter, ...]
    generator: torch.Generator | None
    """None is greedy."""
    temperature: float = 1.0
    """What the filters divide logits by, for scores that do not go through them."""

    @property
    def is_greedy(self) -> bool:
        """Whether it picks without drawing."""
        return self.generator is None

    def filtered(self, logits: Tensor, seen: Sequence[int]) -> Tensor:
        """Apply penalties and cut-offs to logits (N,), given the ids seen so far."""
        if not self.filters:
            return logits
        ids = torch.tensor([seen], device=logits.device)
        scores = logits[None]
        for apply in self.filters:
            scores = apply(ids, scores)
        return scores[0]

    def pick(self, filtered: Tensor) -> int:
        """Choose an id from filtered logits (N,)."""
        if self.generator is None:
            return int(filtered.argmax())
        probabilities = torch.softmax(filtered[None], dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


def make_sampler(
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Sampler:
    """Make a sampler.

    Args:
        temperature: 0 is greedy.
        top_p: Keep the smallest set of choices whose mass reaches this.
        top_k: Keep so many; 0 keeps all.
        repetition_penalty: Above 1 makes ids that were seen less likely.
        seed: Of the sequence's own random state.
        device: Where the logits are.

    Returns:
        A sampler with fresh random state.
    """
    filters: list[Filter] = []
    if repetition_penalty != 1.0:
        filters.append(RepetitionPenaltyLogitsProcessor(penalty=repetition_penalty))
    if temperature == 0.0:
        return Sampler(tuple(filters), None)
    if temperature != 1.0:
        filters.append(TemperatureLogitsWarper(temperature))
    if top_k:
        filters.append(TopKLogitsWarper(top_k=top_k))
    if top_p < 1.0:
        filters.append(TopPLogitsWarper(top_p=top_p))
    generator = torch.Generator(device=device).manual_seed(seed)
    return Sampler(tuple(filters), generator, temperature)
