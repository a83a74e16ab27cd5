"""An encoder on held-out passages, with the candidates of run time and all of them as options."""

from collections import defaultdict

import numpy
import torch

from univerb.modeling.dynamic import DynamicLM
from univerb.training.config import TrainingConfig
from univerb.training.frozen.greedy import greedy_counts
from univerb.training.frozen.input_loss import context_begin, input_losses
from univerb.training.frozen.states import PassageStates, StateCache
from univerb.training.frozen.stretches import loss_of, stretch_vectors, stretches
from univerb.training.frozen.windows import windows

# Passages from one in which phrases are fed as vectors to the next.
_KL_EVERY = 8


@torch.no_grad()
def validate_frozen(lm: DynamicLM, cache: StateCache, config: TrainingConfig) -> dict[str, float]:
    """Measure an encoder.

    Args:
        lm: The LM and its encoder.
        cache: The validation text.
        config: The run's.

    Returns:
        `gain`: what phrases add to the exact log-likelihood of the text, in nats per token (above
        zero is fewer bits than the bare LM's); `saved`: units per token that the likeliest ways of
        writing it save; `score`: what the run minimises; `fires` and `right`: at how many of the
        word starts that the LM expects a phrase would be chosen greedily, and how often it is
        right, to the LM's own greedy tokens there; `kl` after a phrase fed as one vector.
    """
    sums: dict[str, float] = defaultdict(float)
    settings = config.frozen.model_copy(update={"max_options": None, "max_votes": None})
    for index in range(config.data.passages):
        passage = cache.passage(index)
        parts = stretches(passage, settings, numpy.random.default_rng(0))
        for part, vectors in zip(parts, stretch_vectors(lm, parts) if parts else [], strict=True):
            made = loss_of(lm, part, vectors, passage, settings.unit_price)
            sums["gain"] += made.gain
            sums["saved"] += made.saved
            sums["score"] -= made.priced
            sums["tokens"] += part.stretch.end - part.stretch.begin
            counts = greedy_counts(*part[:2], made.go.numpy(), made.stop.numpy(), passage)
            for name, count in counts._asdict().items():
                sums[name] += count
        if index % _KL_EVERY == 0:
            _add_divergence(lm, passage, config, sums)
    tokens = max(sums["tokens"], 1.0)
    result = {name: sums[name] / tokens for name in ("score", "gain", "saved")}
    result["fires"] = sums["fired"] / max(sums["starts"], 1.0)
    result["right"] = sums["right"] / max(sums["lm_right"], 1.0)
    return result | {"kl": sums["kl"] / max(sums["fed"], 1.0)}


def _add_divergence(
    lm: DynamicLM, passage: PassageStates, config: TrainingConfig, sums: dict[str, float]
) -> None:
    context = config.frozen.input_context
    rows = windows(passage.text, config.frozen.sizes, 1, min(context, len(passage.ids)))
    rows = rows.take(numpy.flatnonzero(rows.is_phrase.any(1)))
    rows = rows.take(numpy.arange(0, len(rows.start), 4))
    if not len(rows.start):
        return
    sizes = numpy.arange(1, rows.is_phrase.shape[1] + 1)
    # In turn, so that all lengths occur and every run has the same.
    wanted = sizes[numpy.arange(len(rows.start)) % len(sizes)]
    distance = numpy.where(rows.is_phrase, numpy.abs(sizes - wanted[:, None]), 99)
    lengths = torch.from_numpy(distance.argmin(1) + 1)
    fed = input_losses(lm, passage.ids, rows, lengths, context_begin(rows, lengths, context))
    sums["kl"] += float(fed.measured.sum())
    sums["fed"] += len(rows.start)
