"""What the frozen regime is scored by: held-out passages, used as at run time.

The phrases are the n-grams of the passages' first halves, the rows are the word starts of their
second halves. No row owns anything, so a phrase fits only if another place has it.
"""

import math

import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.training.config import TrainingConfig
from univerb.training.frozen.input_side import input_losses
from univerb.training.frozen.losses import fits, row_losses
from univerb.training.frozen.pools import Bank, Candidates, LivePool
from univerb.training.frozen.states import StateCache, States
from univerb.training.frozen.windows import Letters, Windows, windows

# Windows per encoder pass.
_PASS = 512


@torch.no_grad()
def validate_frozen(
    lm: DynamicLM, cache: StateCache, config: TrainingConfig, known: Letters
) -> dict[str, float]:
    """Measure an encoder.

    Args:
        lm: The LM and its encoder, in evaluation mode.
        cache: The validation text.
        config: The run's.
        known: What tokens are made of.

    Returns:
        `marginal` and `strict`: what phrases add to the bare LM's loss, in nats per word start
        (below zero is a gain), and `score`: both as the run weighs them; `fires`, `precision`: the
        share of rows at which a phrase beats every token, and of those at which the text goes on
        with it; `kl` after a phrase fed as one vector.
    """
    sums = torch.zeros(7, dtype=torch.float64)
    for group in range(math.ceil(config.data.passages / 16)):
        states = cache.group(group)
        found = windows(states, config.frozen.sizes, known)
        is_second = _second_halves(states)[found.at]
        sums += _measured(lm, states, found[~is_second], found[is_second])
        near = found[states.passage[found.at] == 0]
        near = near[near.at < config.frozen.input_context][::4]
        if not len(near):
            continue
        fed = input_losses(lm, states, near, _typical(near), config.frozen.input_context)
        kl = fed.measured
        sums += torch.tensor([0, 0, 0, 0, 0, float(kl.sum()), len(kl)], dtype=torch.float64)
    rows, fired = max(float(sums[0]), 1.0), max(float(sums[3]), 1.0)
    marginal, strict = float(sums[1]) / rows, float(sums[2]) / rows
    share = config.frozen.marginal
    return {
        "score": share * marginal + (1 - share) * strict,
        "marginal": marginal,
        "strict": strict,
        "fires": float(sums[3]) / rows,
        "precision": float(sums[4]) / fired,
        "kl": float(sums[5]) / max(float(sums[6]), 1.0),
    }


def _measured(lm: DynamicLM, states: States, own: Windows, rows: Windows) -> Tensor:
    if not bool(own.allowed.any()):
        # No first half has a phrase: every row is the bare LM's.
        return torch.tensor([len(rows), 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    pool = LivePool.of(own, own.allowed)
    hidden = torch.cat(
        [lm.encoder.hidden_states(part, lm.embeddings) for part in torch.split(own.ids, _PASS)]
    )[pool.window, pool.column]
    outputs = lm.encoder.heads(
        hidden, lm.embeddings.input(pool.last), lm.embeddings.output_weight[pool.first]
    )[1]
    candidates = Candidates.joined(pool, outputs, Bank.empty(lm.width))
    sums = torch.zeros(7, dtype=torch.float64)
    for begin in range(0, len(rows), _PASS):
        part = rows[slice(begin, begin + _PASS)]
        logits = candidates.scores(
            states.hidden[part.at].float(),
            lm.encoder.heads.bias,
            lm.static_size,
            lm.encoder.config.count_correction,
        )
        found = fits(part, candidates, torch.zeros(len(part), dtype=torch.long), mask_true=True)
        losses = row_losses(logits, states.total[part.at], states.best[part.at], part, found)
        right = losses.fires & losses.is_right
        values = (
            len(part),
            losses.marginal.sum(),
            losses.strict.sum(),
            losses.fires.sum(),
            right.sum(),
        )
        sums[:5] += torch.tensor([float(value) for value in values], dtype=torch.float64)
    return sums


def _second_halves(states: States) -> Tensor:
    """Tell which tokens lie in the second half of their passage."""
    sizes = torch.bincount(states.passage.long())
    begins = sizes.cumsum(0) - sizes
    within = torch.arange(len(states.ids)) - begins[states.passage.long()]
    return within * 2 >= sizes[states.passage.long()]


def _typical(rows: Windows) -> Tensor:
    """Give each row one of its lengths: all lengths in turn, so that every run has the same."""
    sizes = torch.arange(1, rows.allowed.shape[1] + 1)
    wanted = sizes[torch.arange(len(rows)) % len(sizes)]
    distance = (sizes - wanted[:, None]).abs().masked_fill(~rows.allowed, 99)
    return distance.argmin(1) + 1
