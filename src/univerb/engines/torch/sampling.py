"""Filters and the final pick for the torch engine.

The filters are transformers' own, in its order, and the draw consumes the generator as its
`generate()` does: a seed gives the same text here and there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from univerb.config import GenerationConfig
from univerb.engines.base import Floats, Sampler

Filter = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TorchSampler(Sampler):
    """With transformers' filters and torch's random numbers."""

    generator: torch.Generator | None
    """None is greedy."""
    device: torch.device
    """Where a draw happens: the LM's own, as its `generate()` does."""

    def filtered(self, logits: Floats, seen: Sequence[int]) -> Floats:
        """Apply penalties and cut-offs to logits (N,), given the ids seen so far."""
        if not self.filters:
            return logits
        ids = torch.tensor([seen], device=self.device)
        scores = torch.from_numpy(logits)[None].to(self.device)
        for apply in self.filters:
            scores = apply(ids, scores)
        result: Floats = scores[0].cpu().numpy()
        return result

    def pick(self, filtered: Floats) -> int:
        """Choose an id from filtered logits (N,)."""
        if self.generator is None or not numpy.isfinite(filtered.max()):
            # Where all is masked, or logits were too large to divide, there is nothing to draw by.
            return int(filtered.argmax())
        probabilities = torch.softmax(torch.from_numpy(filtered)[None].to(self.device), dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


def make_sampler(config: GenerationConfig, device: torch.device | str = "cpu") -> TorchSampler:
    """Make a sampler with fresh random state for an LM on a device."""
    filters: list[Filter] = []
    torch_device = torch.device(device)
    if config.repetition_penalty != 1.0:
        filters.append(RepetitionPenaltyLogitsProcessor(penalty=config.repetition_penalty))
    if config.temperature == 0.0:
        return TorchSampler(filters, True, None, torch_device)
    if config.temperature != 1.0:
        filters.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        filters.append(TopKLogitsWarper(top_k=config.top_k))
    if config.top_p < 1.0:
        filters.append(TopPLogitsWarper(top_p=config.top_p))
    generator = torch.Generator(device=torch_device).manual_seed(config.seed)
    return TorchSampler(filters, False, generator, torch_device)
