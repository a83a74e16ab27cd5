"""The validation score of the frozen regime: held-out passages, used as at run time.

The phrases are the n-grams of the passages' first halves, the rows are the word starts of their
second halves. No row owns a phrase, so one matches only if another window brought it.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.training.config import TrainingConfig
from univerb.training.frozen.input_loss import input_losses
from univerb.training.frozen.pools import Bank, Candidates, LivePool
from univerb.training.frozen.row_losses import match_gold, row_losses
from univerb.training.frozen.states import GROUP, StateCache, States
from univerb.training.frozen.windows import CharClasses, Windows, windows

# Windows per encoder pass.
_PASS = 512


@torch.no_grad()
def validate_frozen(
    lm: DynamicLM, cache: StateCache, config: TrainingConfig, classes: CharClasses
) -> dict[str, float]:
    """Measure an encoder.

    Args:
        lm: The LM and its encoder, in evaluation mode.
        cache: The validation text.
        config: The run's.
        classes: Of the tokens.

    Returns:
        `marginal` and `strict`: what phrases add to the bare LM's loss, in nats per word start
        (below zero is a gain), and `score`: both as the run weighs them; `fires`, `precision`: the
        share of rows at which a phrase beats every token, and of those at which the text continues
        with it; `kl` after a phrase fed as one vector.
    """
    sums: dict[str, float] = defaultdict(float)
    for group in range(math.ceil(config.data.passages / GROUP)):
        states = cache.group(group)
        rows = windows(states, config.frozen.sizes, classes)
        is_second = _second_halves(states)[rows.before]
        for name, value in _row_sums(lm, states, rows[~is_second], rows[is_second]).items():
            sums[name] += value
        near = rows[states.passage[rows.before] == 0]
        near = near[near.before < config.frozen.input_context][::4]
        if len(near):
            fed = input_losses(lm, states, near, _cycled_lengths(near), config.frozen.input_context)
            sums["kl"] += float(fed.measured.sum())
            sums["fed"] += len(near)
    count, fired = max(sums["rows"], 1.0), max(sums["fires"], 1.0)
    marginal, strict = sums["marginal"] / count, sums["strict"] / count
    share = config.frozen.marginal
    return {
        "score": share * marginal + (1 - share) * strict,
        "marginal": marginal,
        "strict": strict,
        "fires": sums["fires"] / count,
        "precision": sums["right"] / fired,
        "kl": sums["kl"] / max(sums["fed"], 1.0),
    }


def _row_sums(lm: DynamicLM, states: States, sources: Windows, rows: Windows) -> dict[str, float]:
    """Sum losses and choices over rows, with all phrases of the source windows as candidates."""
    sums: dict[str, float] = defaultdict(float, rows=len(rows))
    if not bool(sources.is_phrase.any()):
        # No first half has a phrase: every row is the bare LM's.
        return sums
    pool = LivePool.of(sources, sources.is_phrase)
    parts = torch.split(sources.ids, _PASS)
    hidden = torch.cat([lm.encoder.hidden_states(part, lm.embeddings) for part in parts])
    last, first = lm.embeddings.input(pool.last), lm.embeddings.output_weight[pool.first]
    outputs = lm.encoder.heads(hidden[pool.window, pool.column], last, first)[1]
    candidates = Candidates.joined(pool, outputs, Bank.empty(lm.width))
    for begin in range(0, len(rows), _PASS):
        part = rows[slice(begin, begin + _PASS)]
        at = part.before
        logits = candidates.logits(lm, states.hidden[at].float())
        matches = match_gold(part, candidates, torch.zeros(len(part), dtype=torch.long), True)
        losses = row_losses(logits, states.logsumexp[at], states.max_logit[at], part, matches)
        values = {
            "marginal": losses.marginal,
            "strict": losses.strict,
            "fires": losses.fires,
            "right": losses.fires & losses.is_right,
        }
        for name, value in values.items():
            sums[name] += float(value.sum())
    return sums


def _second_halves(states: States) -> Tensor:
    """Tell which tokens lie in the second half of their passage."""
    sizes = torch.bincount(states.passage.long())
    begins = sizes.cumsum(0) - sizes
    within = torch.arange(len(states.ids)) - begins[states.passage.long()]
    return within * 2 >= sizes[states.passage.long()]


def _cycled_lengths(rows: Windows) -> Tensor:
    """Assign phrase lengths in turn, so that all lengths occur and every run has the same."""
    sizes = torch.arange(1, rows.is_phrase.shape[1] + 1)
    wanted = sizes[torch.arange(len(rows)) % len(sizes)]
    distance = (sizes - wanted[:, None]).abs().masked_fill(~rows.is_phrase, 99)
    return distance.argmin(1) + 1
