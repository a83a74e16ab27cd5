"""Filters and the final pick in numpy, the same over V and over V + P, in transformers' order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy

from univerb.config import GenerationConfig
from univerb.engines.base import Floats, Sampler

Filter = Callable[[Floats, Sequence[int]], Floats]


@dataclass(frozen=True)
class NumpySampler(Sampler):
    """With filters and random numbers of numpy."""

    generator: numpy.random.Generator | None
    """None is greedy."""

    def filtered(self, logits: Floats, seen: Sequence[int]) -> Floats:
        """Apply penalties and cut-offs to logits (N,), given the ids seen so far."""
        with numpy.errstate(over="ignore", invalid="ignore"):
            for apply in self.filters:
                logits = apply(logits, seen)
        return logits

    def pick(self, filtered: Floats) -> int:
        """Choose an id from filtered logits (N,)."""
        if self.generator is None or not numpy.isfinite(filtered.max()):
            # Where all is masked, or logits were too large to divide, there is nothing to draw by.
            return int(filtered.argmax())
        shares = numpy.exp((filtered - filtered.max()).astype(numpy.float64)).cumsum()
        drawn = self.generator.random() * shares[-1]
        # A draw that was rounded up to the whole mass is still a draw of the last one.
        return min(int(numpy.searchsorted(shares, drawn, side="right")), len(shares) - 1)


def make_sampler(config: GenerationConfig) -> NumpySampler:
    """Make a sampler with fresh random state."""
    penalty, temperature = config.repetition_penalty, config.temperature
    filters: list[Filter] = []
    if penalty != 1.0:
        filters.append(lambda logits, seen: _penalised(logits, seen, penalty))
    if temperature == 0.0:
        return NumpySampler(filters, True, None)
    if temperature != 1.0:
        filters.append(lambda logits, seen: logits / numpy.float32(temperature))
    if config.top_k:
        filters.append(lambda logits, seen: _top_k(logits, config.top_k))
    if config.top_p < 1.0:
        filters.append(lambda logits, seen: _top_p(logits, config.top_p))
    generator = numpy.random.default_rng(config.seed)
    return NumpySampler(filters, False, generator)


def _penalised(logits: Floats, seen: Sequence[int], penalty: float) -> Floats:
    """Push down what was seen: positive logits are divided, negative ones multiplied."""
    ids = numpy.unique(numpy.asarray(seen, dtype=numpy.int64))
    changed = logits.copy()
    seen_logits = logits[ids]
    changed[ids] = numpy.where(seen_logits < 0, seen_logits * penalty, seen_logits / penalty)
    return changed


def _top_k(logits: Floats, count: int) -> Floats:
    """Keep the `count` best, and what equals the last of them."""
    count = min(count, len(logits))
    lowest = numpy.partition(logits, -count)[-count]
    return numpy.where(logits < lowest, numpy.float32(-numpy.inf), logits)


def _top_p(logits: Floats, mass: float) -> Floats:
    """Drop the tail that holds at most 1 - mass; the best one always stays."""
    order = numpy.argsort(logits, kind="stable")
    shares = numpy.exp((logits[order] - logits[order[-1]]).astype(numpy.float64))
    is_tail = (shares / shares.sum()).cumsum() <= 1 - mass
    is_tail[-1] = False
    filtered = logits.copy()
    filtered[order[is_tail]] = -numpy.inf
    return filtered
