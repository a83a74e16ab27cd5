"""The `frozen` regime: the encoder learns from states of a backbone that stays as it is.

Every word start of a passage is a choice between the LM's next token and the phrases that retrieval
would bring there (docs/method.md, Frozen regime). The loss is the exact likelihood of the text over
all its segmentations.
"""

from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

from univerb.config import Profile
from univerb.errors import DocumentError
from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.heads import SplitHeads
from univerb.training.config import TrainingConfig
from univerb.training.frozen.distillation import distillation_loss
from univerb.training.frozen.input_loss import context_begin, input_losses
from univerb.training.frozen.states import GROUP, PassageStates, StateCache
from univerb.training.frozen.stretches import (
    PooledStretch,
    loss_of,
    stretch_vectors,
    stretches,
)
from univerb.training.frozen.validation import validate_frozen
from univerb.training.frozen.windows import Windows, windows
from univerb.training.processes import Processes
from univerb.training.seeding import generator_of
from univerb.training.task import TaskLoss


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
        lm.model.requires_grad_(False)
        lm.encoder.train().requires_grad_(True)
        if not lm.is_trained:
            self._fit()

    @property
    def _head(self) -> ConditionalHead:
        assert self._lm.encoder.conditional is not None
        return self._lm.encoder.conditional

    def _fit(self) -> None:
        """Choose the heads' coordinates by the first passages."""
        passages = [self._cache.passage(index) for index in range(GROUP)]
        parts = [part for each in passages for part in self._stretches(each, 0)]
        if not parts:
            raise DocumentError(
                f"none of the first {GROUP} passages has a phrase to learn from. Give more text, "
                "or a smaller frozen.first."
            )
        ids = torch.from_numpy(numpy.concatenate([part.pool.ids for part in parts]))[:4096]
        states = torch.cat([each.hidden for each in passages]).float()
        lm = self._lm
        with torch.no_grad():
            hidden = lm.encoder.hidden_states(ids, lm.embeddings).flatten(0, 1)
        heads = lm.encoder.heads
        assert isinstance(heads, SplitHeads)
        heads.fit(hidden, states, lm.embeddings.input(ids))
        self._head.fit(states)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The encoder; the LM is frozen."""
        return {"encoder": self._lm.encoder}

    def loss(self, index: int) -> TaskLoss:
        """Compute the loss of a micro-batch's passages, and of the input head where it is due."""
        batch, settings = self._config.run.batch, self._config.frozen
        share = self._processes.share(batch)
        numbers = [index * batch + place for place in share]
        passages = [self._cache.passage(number) for number in numbers]
        total = torch.zeros(())
        sums = dict.fromkeys(("gain", "saved", "teacher"), 0.0)
        for number, passage in zip(numbers, passages, strict=True):
            terms = self._passage_terms(passage, number)
            total = total + terms["loss"] + settings.teacher * terms["teacher"]
            for name in sums:
                sums[name] += float(terms[name].detach())
        # The same divisor in every process, whatever its passages have: shares add up to a mean.
        scale = 1.0 / (batch * self._config.data.block)
        total, sums = total * scale, {name: value * scale for name, value in sums.items()}
        if settings.input_every and index % settings.input_every == 0:
            kl = self._input_loss(index)
            total = total + settings.input_weight * kl
            sums["kl"] = float(kl.detach())
        return TaskLoss(total, sums, sum(len(passage.ids) for passage in passages))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the coordinates that the heads were fitted to."""
        return dict(self._lm.encoder.named_buffers())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in self._lm.encoder.named_buffers():
            value.copy_(state[name])

    def validate(self) -> dict[str, float]:
        """Measure held-out passages."""
        if self._validation is None:
            return {}
        return validate_frozen(self._lm, self._validation, self._config)

    def export(self, folder: Path, step: int) -> None:
        """Write the encoder after `step` steps."""
        encoder, steps = self._lm.encoder, self._trained_before + step
        encoder.config = encoder.config.model_copy(update={"trained_steps": steps})
        if not self._trained_before:
            # The input head has learned the position of a phrase's last token.
            self._lm.profile = Profile(positions="token")
        self._lm.save_pretrained(folder)

    def _generator(self, number: int) -> numpy.random.Generator:
        """Return what draws for a passage, the same whichever process has it."""
        return numpy.random.default_rng((self._config.run.seed, number))

    def _stretches(self, passage: PassageStates, number: int) -> list[PooledStretch]:
        return stretches(passage, self._config.frozen, self._generator(number))

    def _passage_terms(self, passage: PassageStates, number: int) -> dict[str, Tensor]:
        """Return the sums of what a passage adds to the loss and to the log."""
        terms = {name: torch.zeros(()) for name in ("gain", "saved", "teacher")}
        # A passage without phrases has a loss, too, of which no gradient comes.
        terms["loss"] = self._head.stop_bias.sum() * 0.0
        settings, parts = self._config.frozen, self._stretches(passage, number)
        if not parts:
            return terms
        output_weight = self._lm.embeddings.output_weight
        for part, vectors in zip(parts, stretch_vectors(self._lm, parts), strict=True):
            made = loss_of(self._lm, part, vectors, passage, settings.unit_price)
            terms["loss"] = terms["loss"] + made.loss
            terms["gain"] += made.gain
            terms["saved"] += made.saved
            if settings.teacher:
                kl = distillation_loss(part.pool, part.stretch, made.go, passage, output_weight)
                terms["teacher"] = terms["teacher"] + kl
        return terms

    def _input_loss(self, index: int) -> Tensor:
        """Return this process's share of the mean KL after phrases fed as one vector."""
        settings, generator = self._config.frozen, generator_of(self._config.run.seed, index)
        passage = self._cache.passage(index * self._config.run.batch)
        rows = windows(passage.text, settings.sizes, 1)
        rows = rows.take(numpy.flatnonzero(rows.is_phrase.any(1)))
        if not len(rows.start):
            return torch.zeros(())
        # Phrases near each other, so that one pass reads the context of all.
        last = int(rows.start[int(torch.randint(len(rows.start), (1,), generator=generator))])
        distance = last - rows.start
        near = rows.take((distance >= 0) & (distance < settings.input_context // 2))
        chosen = torch.randperm(len(near.start), generator=generator)[: settings.input_phrases]
        some, lengths = near.take(chosen.numpy()), _draw_lengths(near, generator)[chosen]
        base = context_begin(some, lengths, settings.input_context)
        share = self._processes.share(len(chosen))
        # A process without phrases feeds one that does not count: all make the same calls.
        mine = slice(share.start, share.stop) if share else slice(1)
        losses = input_losses(self._lm, passage.ids, some.take(mine), lengths[mine], base)
        return losses.learned.sum() * bool(share) / len(chosen)


def _draw_lengths(rows: Windows, generator: torch.Generator) -> Tensor:
    """Draw the length of a phrase at each word start."""
    weights = torch.from_numpy(rows.is_phrase).float()
    return torch.multinomial(weights, 1, generator=generator)[:, 0] + 1
