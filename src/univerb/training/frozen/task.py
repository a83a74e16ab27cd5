"""The `frozen` regime: the encoder learns from cached states of a backbone that stays as it is.

A row is the LM's state before a word. Its choice is between V, of which only the cached logsumexp
is needed, and a pool of phrases (DESIGN 5). Some rows own a phrase: their true continuation is
encoded and may be chosen there, as if a document had brought it. The others are as at run time:
they go on with a phrase only if another place of the pool has it.
"""

import copy
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

from univerb.config import Profile
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.heads import SplitHeads
from univerb.training.config import Negatives, TrainingConfig
from univerb.training.frozen.input_side import input_losses
from univerb.training.frozen.losses import RowLosses, fits, row_losses
from univerb.training.frozen.pools import Bank, Candidates, LivePool
from univerb.training.frozen.second_tokens import Pairs, taught
from univerb.training.frozen.states import GROUP, Marked, StateCache, States
from univerb.training.frozen.validation import validate_frozen
from univerb.training.frozen.windows import Windows, letters, windows
from univerb.training.processes import Processes
from univerb.training.randomness import seed_dropout
from univerb.training.task import Loss

# Passages that are tried for one with phrases.
_TRIES = 8


class FrozenTask:
    """A task of the trainer: the encoder of a frozen LM."""

    def __init__(
        self,
        lm: DynamicLM,
        config: TrainingConfig,
        cache: StateCache,
        validation: StateCache | None,
        processes: Processes,
    ) -> None:
        self._lm = lm
        self._config = config
        self._cache = cache
        self._validation = validation
        self._processes = processes
        self._trained_before = lm.encoder.config.trained_steps
        self._letters = letters(lm.tokenizer, lm.static_size)
        self._bank = Bank.empty(lm.width)
        self._group: tuple[int, States, Windows] | None = None
        lm.model.requires_grad_(False)
        lm.encoder.train()
        for parameter in lm.encoder.parameters():
            parameter.requires_grad_(True)
        if isinstance(lm.encoder.heads, SplitHeads) and not lm.is_trained:
            states, rows = self._rows(0)
            with torch.no_grad():
                hidden = lm.encoder.hidden_states(rows.ids, lm.embeddings)
            tokens = lm.embeddings.input(rows.ids)
            lm.encoder.heads.fit(hidden.flatten(0, 1), states.hidden.float(), tokens)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The encoder; the LM is frozen."""
        return {"encoder": self._lm.encoder}

    def loss(self, index: int) -> Loss:
        """Compute the loss of one step's rows, and of the input head where it is due."""
        settings = self._config.frozen
        states, rows = self._rows(index)
        generator = torch.Generator().manual_seed(_mixed(self._config.run.seed, index))
        # Some steps do without the longest windows, which cost most and fit least often.
        low, high = settings.sizes
        width = int(torch.randint(low, high + 1, (2,), generator=generator).max())
        rows = rows.cut(width) or rows
        length = _lengths(rows, settings.decay, generator)
        draw = torch.rand(len(rows), generator=generator)
        # At least one row: the others need something to choose from.
        is_own = (draw < settings.own) | (draw == draw.min())
        length = length.where(is_own, 0)
        pool, outputs = self._encoded(index, rows[is_own], length[is_own])
        candidates = Candidates.joined(pool, outputs, self._bank)
        share = self._processes.share(len(rows))
        mine = slice(share.start, share.stop)
        logits = self._logits(states, rows[mine], candidates)
        found = self._scored(states, rows[mine], length[mine], candidates, logits)
        if "pre-batch" in self._config.negatives.kinds:
            self._bank = self._bank.pushed(pool, outputs, settings.bank)
        golds = self._processes.total({"golds": float((found.gold >= 0).sum())})["golds"]
        total, terms = _weighed(found, is_own, golds, mine, settings.own_weight, settings.marginal)
        if settings.teacher:
            kl = self._taught(states, rows[mine], pool, logits[:, : len(pool.keys)])
            total = total + settings.teacher * kl
            terms["teacher"] = float(kl.detach())
        if settings.input_every and index % settings.input_every == 0:
            kl = self._input_loss(index, generator)
            total = total + settings.input_weight * kl
            terms["kl"] = float(kl.detach())
        return Loss(total, terms, len(share))

    def memory(self) -> dict[str, Tensor]:
        """Return the bank, and the coordinates that the heads were fitted to."""
        bank = {"keys": self._bank.keys, "first": self._bank.first, "outputs": self._bank.outputs}
        return bank | dict(self._lm.encoder.heads.named_buffers())

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Take both back."""
        self._bank = Bank(memory["keys"], memory["first"], memory["outputs"])
        for name, value in self._lm.encoder.heads.named_buffers():
            value.copy_(memory[name])

    def validate(self) -> dict[str, float]:
        """Measure held-out passages: first halves give the phrases, second halves the rows."""
        if self._validation is None:
            return {}
        return validate_frozen(self._lm, self._validation, self._config, self._letters)

    def export(self, folder: Path, step: int) -> None:
        """Write the encoder."""
        encoder, steps = self._lm.encoder, self._trained_before + step
        encoder.config = encoder.config.model_copy(update={"trained_steps": steps})
        if not self._trained_before:
            # The input head has learned to stand where a phrase's last token does.
            self._lm.profile = Profile(positions="token")
        try:
            # What goes on training stays as it is.
            self._lm.encoder = copy.deepcopy(encoder)
            if isinstance(self._lm.encoder.heads, SplitHeads):
                self._lm.encoder.heads.sharpen(self._config.frozen.sharpen)
            self._lm.save_pretrained(folder)
        finally:
            self._lm.encoder = encoder

    def _rows(self, index: int) -> tuple[States, Windows]:
        """Return the states of a group and the word starts that this step looks at."""
        settings = self._config.frozen
        group, part = divmod(index, settings.steps_per_group)
        group %= settings.groups
        if self._group is None or self._group[0] != group:
            states = self._cache.group(group)
            self._group = group, states, windows(states, settings.sizes, self._letters)
        _, states, found = self._group
        if len(found) < settings.steps_per_group:
            raise DocumentError(
                f"group {group} of the text has {len(found)} places where a phrase may begin, too "
                f"few for {settings.steps_per_group} steps. Give more text, or another block or "
                "frozen.steps_per_group."
            )
        edges = numpy.linspace(0, len(found), settings.steps_per_group + 1).astype(int)
        return states, found[slice(int(edges[part]), int(edges[part + 1]))]

    def _encoded(self, index: int, own: Windows, length: Tensor) -> tuple[LivePool, Tensor]:
        """Encode the phrases of owning rows, each process its share of the windows."""
        pool = LivePool.of(own, taken(own, length, self._config.negatives))
        embeddings, share = self._lm.embeddings, self._processes.share(len(own))
        windows_of_mine = own.ids[share.start : share.stop]
        seed_dropout(self._config.run.seed, index, self._processes.rank)
        hidden = self._processes.gather(
            self._lm.encoder.hidden_states(windows_of_mine, embeddings)
        )[pool.window, pool.column]
        last, first = embeddings.input(pool.last), embeddings.output_weight[pool.first]
        # All processes turn the same states into vectors: with the same masks.
        seed_dropout(self._config.run.seed, index)
        return pool, self._lm.encoder.heads(hidden, last, first)[1]

    def _logits(self, states: States, rows: Windows, candidates: Candidates) -> Tensor:
        return candidates.scores(
            states.hidden[rows.at].float(),
            self._lm.encoder.heads.bias,
            self._lm.static_size,
            self._lm.encoder.config.count_correction,
        )

    def _scored(
        self,
        states: States,
        rows: Windows,
        length: Tensor,
        candidates: Candidates,
        logits: Tensor,
    ) -> RowLosses:
        found = fits(rows, candidates, length, self._config.negatives.mask_true)
        return row_losses(logits, states.total[rows.at], states.best[rows.at], rows, found)

    def _taught(self, states: States, rows: Windows, pool: LivePool, logits: Tensor) -> Tensor:
        """Return this process's share of the mean distance from the LM's own choice."""
        pairs, after = Pairs.of(pool), rows.at + 1
        found = taught(
            logits,
            rows.ids[:, 0],
            states.hidden[after].float(),
            states.total[after],
            self._lm.embeddings.output_weight[pairs.second],
            pairs,
        )
        weights = self._processes.total({"weight": float(found.weight.sum())})["weight"]
        return (found.weight * found.loss).sum() / max(weights, 1e-6)

    def _input_loss(self, index: int, generator: torch.Generator) -> Tensor:
        """Return this process's share of the mean KL after phrases fed as one vector."""
        settings = self._config.frozen
        text, found = self._fresh(index)
        # Phrases that stand near each other, so that one pass reads the context of all.
        last = found.at[torch.randint(len(found), (1,), generator=generator)]
        near = found[(found.at <= last) & (found.at > last - settings.input_context // 2)]
        length = _lengths(near, 1.0, generator)
        chosen = torch.randperm(len(near), generator=generator)[: settings.input_phrases]
        share = self._processes.share(len(chosen))
        # Without phrases of its own a process feeds one for nothing: all make the same calls.
        mine = chosen[share.start : share.stop] if share else chosen[:1]
        losses = input_losses(self._lm, text, near[mine], length[mine], settings.input_context)
        return losses.learned.sum() * bool(share) / len(chosen)

    def _fresh(self, index: int) -> tuple[Marked, Windows]:
        """Return a passage with phrases, of the text that no step has read before.

        The input side needs no states, so nothing keeps it to the cached text, which it would soon
        know by heart: 0.6 nats there, 1.7 on held-out text.
        """
        settings = self._config.frozen
        first = settings.groups * GROUP + index * _TRIES
        for number in range(first, first + _TRIES):
            text = self._cache.passage(number)
            found = windows(text, settings.sizes, self._letters)
            if len(found):
                return text, found
        raise DocumentError(
            f"passages {first} to {first + _TRIES - 1} of the text have no phrases. Give more text."
        )


def taken(own: Windows, length: Tensor, negatives: Negatives) -> Tensor:
    """Say which prefixes of owning windows join the pool.

    Args:
        own: The windows.
        length: (W,) tokens of the gold phrase of each.
        negatives: Which kinds are in use.

    Returns:
        (W, L): the gold phrases, their prefixes and their extensions, as far as wanted.
    """
    size = torch.arange(1, own.ids.shape[1] + 1)
    wanted = size == length[:, None]
    if "prefixes" in negatives.kinds:
        wanted |= size < length[:, None]
    if "self-retrieval" in negatives.kinds:
        wanted |= (size > length[:, None]) & (size <= length[:, None] + negatives.extensions)
    return wanted & own.allowed


def _lengths(rows: Windows, decay: float, generator: torch.Generator) -> Tensor:
    """Draw how long each row's phrase is, shorter ones more often."""
    weights = rows.allowed * decay ** torch.arange(rows.allowed.shape[1])
    return torch.multinomial(weights, 1, generator=generator)[:, 0] + 1


def _weighed(
    found: RowLosses,
    is_own: Tensor,
    golds: float,
    mine: slice,
    own_weight: float,
    marginal: float,
) -> tuple[Tensor, dict[str, float]]:
    """Add up this process's rows: weights are those of the whole step."""
    owners = max(int(is_own.sum()), 1)
    others = max(len(is_own) - owners, 1)
    weights = torch.where(is_own, own_weight / owners, (1 - own_weight) / others)[mine]
    total = (weights * torch.lerp(found.strict, found.marginal, marginal)).sum()
    has_gold = found.gold >= 0
    mine_own = is_own[mine]
    right = mine_own & (found.chosen == found.gold)
    false = ~has_gold & found.fires
    terms = {
        "phrase": float((weights * found.strict.detach()).sum()),
        "marginal": float((weights * found.marginal.detach()).sum()),
        "phrase_accuracy": float(right.sum() / owners),
        "fires": float(found.fires.sum() / len(is_own)),
        "over_firing": float(false.sum()) / max(len(is_own) - golds, 1.0),
    }
    return total, terms


def _mixed(seed: int, index: int) -> int:
    return int(numpy.random.SeedSequence((seed, index)).generate_state(1)[0])
