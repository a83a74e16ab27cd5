"""The `frozen` regime: the encoder learns from cached states of a backbone that stays as it is.

A row is the LM's state before a word. Its choice is between V, of which only the cached logsumexp
is needed, and a pool of phrases (docs/method.md, Frozen regime). Some rows own a phrase: their true
continuation is encoded and may be chosen there, as if a document had brought it. The others are as
at run time: a phrase of the pool matches only if another window brought it.
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
from univerb.training.config import TrainingConfig
from univerb.training.frozen.distillation import Bigrams, distillation_loss
from univerb.training.frozen.input_loss import input_losses
from univerb.training.frozen.pools import Bank, Candidates, LivePool, pool_mask
from univerb.training.frozen.row_losses import RowLosses, match_gold, row_losses
from univerb.training.frozen.states import GROUP, StateCache, States, TokenizedPassages
from univerb.training.frozen.validation import validate_frozen
from univerb.training.frozen.windows import Windows, char_classes, windows
from univerb.training.processes import Processes
from univerb.training.seeding import generator_of, seed_torch
from univerb.training.task import TaskLoss

# Passages that are tried for one with phrases.
_TRIES = 8


class FrozenTask:
    """The regime `frozen`: implements `task.Task`."""

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
        self._classes = char_classes(lm.tokenizer, lm.static_size)
        self._bank = Bank.empty(lm.width)
        self._group: tuple[int, States, Windows] | None = None
        lm.model.requires_grad_(False)
        lm.encoder.train().requires_grad_(True)
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

    def loss(self, index: int) -> TaskLoss:
        """Compute the loss of a micro-batch's rows, and of the input head where it is due."""
        settings = self._config.frozen
        states, rows = self._rows(index)
        generator = generator_of(self._config.run.seed, index)
        # Some steps do without the longest windows, which cost most and match least often.
        low, high = settings.sizes
        width = int(torch.randint(low, high + 1, (2,), generator=generator).max())
        rows = rows.truncate(width) or rows
        length = _draw_lengths(rows, settings.decay, generator)
        draw = torch.rand(len(rows), generator=generator)
        # At least one row: the others need something to choose from.
        is_owner = (draw < settings.own) | (draw == draw.min())
        length = length.where(is_owner, 0)
        pool, outputs = self._encode(index, rows[is_owner], length[is_owner])
        candidates = Candidates.joined(pool, outputs, self._bank)
        share = self._processes.share(len(rows))
        mine = slice(share.start, share.stop)
        at = rows[mine].before
        logits = candidates.logits(self._lm, states.hidden[at].float())
        matches = match_gold(rows[mine], candidates, length[mine], self._config.negatives.mask_true)
        losses = row_losses(logits, states.logsumexp[at], states.max_logit[at], rows[mine], matches)
        if "pre-batch" in self._config.negatives.kinds:
            self._bank = self._bank.pushed(pool, outputs, settings.bank)
        golds = self._processes.all_reduce({"golds": float((losses.gold >= 0).sum())})["golds"]
        total, terms = self._weighted(losses, is_owner, golds, mine)
        if settings.teacher:
            kl = self._distillation(states, rows[mine], pool, logits[:, : len(pool.keys)])
            total = total + settings.teacher * kl
            terms["teacher"] = float(kl.detach())
        if settings.input_every and index % settings.input_every == 0:
            kl = self._input_loss(index, generator)
            total = total + settings.input_weight * kl
            terms["kl"] = float(kl.detach())
        return TaskLoss(total, terms, len(share))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the bank, and the coordinates that the heads were fitted to."""
        bank = {"keys": self._bank.keys, "first": self._bank.first, "outputs": self._bank.outputs}
        return bank | dict(self._lm.encoder.heads.named_buffers())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._bank = Bank(state["keys"], state["first"], state["outputs"])
        for name, value in self._lm.encoder.heads.named_buffers():
            value.copy_(state[name])

    def validate(self) -> dict[str, float]:
        """Measure held-out passages: first halves give the phrases, second halves the rows."""
        if self._validation is None:
            return {}
        return validate_frozen(self._lm, self._validation, self._config, self._classes)

    def export(self, folder: Path, step: int) -> None:
        """Write the encoder after `step` steps."""
        encoder, steps = self._lm.encoder, self._trained_before + step
        encoder.config = encoder.config.model_copy(update={"trained_steps": steps})
        if not self._trained_before:
            # The input head has learned the position of a phrase's last token.
            self._lm.profile = Profile(positions="token")
        try:
            # The encoder that goes on training stays as it is.
            self._lm.encoder = copy.deepcopy(encoder)
            if isinstance(self._lm.encoder.heads, SplitHeads):
                self._lm.encoder.heads.sharpen(self._config.frozen.sharpen)
            self._lm.save_pretrained(folder)
        finally:
            self._lm.encoder = encoder

    def _rows(self, index: int) -> tuple[States, Windows]:
        """Return the states of a group and the word starts of this micro-batch."""
        settings = self._config.frozen
        group, part = divmod(index, settings.steps_per_group)
        group %= settings.groups
        if self._group is None or self._group[0] != group:
            states = self._cache.group(group)
            self._group = group, states, windows(states, settings.sizes, self._classes)
        _, states, rows = self._group
        if len(rows) < settings.steps_per_group:
            raise DocumentError(
                f"group {group} of the text has {len(rows)} word starts where a phrase may begin, "
                f"too few for {settings.steps_per_group} steps. Give more text, or another block "
                "or frozen.steps_per_group."
            )
        edges = numpy.linspace(0, len(rows), settings.steps_per_group + 1).astype(int)
        return states, rows[slice(int(edges[part]), int(edges[part + 1]))]

    def _encode(self, index: int, owners: Windows, length: Tensor) -> tuple[LivePool, Tensor]:
        """Encode the phrases of owning rows, each process its share of the windows."""
        pool = LivePool.of(owners, pool_mask(owners, length, self._config.negatives))
        embeddings, share = self._lm.embeddings, self._processes.share(len(owners))
        ids = owners.ids[share.start : share.stop]
        every = self._processes.gather(self._lm.encoder.hidden_states(ids, embeddings))
        hidden = every[pool.window, pool.column]
        last, first = embeddings.input(pool.last), embeddings.output_weight[pool.first]
        # All processes turn the same states into vectors: with the same dropout masks.
        seed_torch(self._config.run.seed, index)
        return pool, self._lm.encoder.heads(hidden, last, first)[1]

    def _weighted(
        self, losses: RowLosses, is_owner: Tensor, golds: float, mine: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """Add up this process's rows; weights and counts are those of the whole micro-batch."""
        settings = self._config.frozen
        owners = max(int(is_owner.sum()), 1)
        others = max(len(is_owner) - owners, 1)
        weights = torch.where(
            is_owner, settings.own_weight / owners, (1 - settings.own_weight) / others
        )[mine]
        total = (weights * torch.lerp(losses.strict, losses.marginal, settings.marginal)).sum()
        right = is_owner[mine] & (losses.chosen == losses.gold)
        over_fired = (losses.gold < 0) & losses.fires
        return total, {
            "phrase": float((weights * losses.strict.detach()).sum()),
            "marginal": float((weights * losses.marginal.detach()).sum()),
            "phrase_accuracy": float(right.sum() / owners),
            "fires": float(losses.fires.sum() / len(is_owner)),
            "over_firing": float(over_fired.sum()) / max(len(is_owner) - golds, 1.0),
        }

    def _distillation(
        self, states: States, rows: Windows, pool: LivePool, logits: Tensor
    ) -> Tensor:
        """Return this process's share of the mean divergence from the LM's own choice."""
        bigrams, after = Bigrams.of(pool), rows.before + 1
        loss, weight = distillation_loss(
            logits,
            rows.ids[:, 0],
            states.hidden[after].float(),
            states.logsumexp[after],
            self._lm.embeddings.output_weight[bigrams.second],
            bigrams,
        )
        total = self._processes.all_reduce({"weight": float(weight.sum())})["weight"]
        return (weight * loss).sum() / max(total, 1e-6)

    def _input_loss(self, index: int, generator: torch.Generator) -> Tensor:
        """Return this process's share of the mean KL after phrases fed as one vector."""
        settings = self._config.frozen
        text, rows = self._fresh_passage(index)
        # Phrases near each other, so that one pass reads the context of all.
        last = rows.before[torch.randint(len(rows), (1,), generator=generator)]
        near = rows[(rows.before <= last) & (rows.before > last - settings.input_context // 2)]
        length = _draw_lengths(near, 1.0, generator)
        chosen = torch.randperm(len(near), generator=generator)[: settings.input_phrases]
        share = self._processes.share(len(chosen))
        # A process without phrases feeds one that does not count: all make the same calls.
        mine = chosen[share.start : share.stop] if share else chosen[:1]
        losses = input_losses(self._lm, text, near[mine], length[mine], settings.input_context)
        return losses.learned.sum() * bool(share) / len(chosen)

    def _fresh_passage(self, index: int) -> tuple[TokenizedPassages, Windows]:
        """Return a passage with phrases, of text beyond the cached groups.

        The input head needs no cached states, so it can always learn from text it has not seen;
        on the cached text it would overfit.
        """
        settings = self._config.frozen
        first = settings.groups * GROUP + index * _TRIES
        for number in range(first, first + _TRIES):
            text = self._cache.passage(number)
            rows = windows(text, settings.sizes, self._classes)
            if len(rows):
                return text, rows
        raise DocumentError(
            f"passages {first} to {first + _TRIES - 1} of the text have no phrases. Give more text."
        )


def _draw_lengths(rows: Windows, decay: float, generator: torch.Generator) -> Tensor:
    """Draw the length of each row's phrase, shorter ones more often."""
    weights = rows.is_phrase * decay ** torch.arange(rows.is_phrase.shape[1])
    return torch.multinomial(weights, 1, generator=generator)[:, 0] + 1
