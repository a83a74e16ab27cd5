"""The paper's training: passages read with phrases in them and without (METHOD A.6).

`full` trains the LM and the encoder, `lora` an adapter on the LM and the encoder.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from univerb.config import Profile
from univerb.errors import OptionError
from univerb.modeling.adapter import attach, save_adapter
from univerb.modeling.card import ADAPTER, BACKBONE
from univerb.modeling.checkpoint import describe, write_checkpoint
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.heads import SplitHeads
from univerb.modeling.phrase_table import PhraseVectors
from univerb.phrase import Document, Phrase
from univerb.training.batch import Key, MixedBatch
from univerb.training.batches import Batches
from univerb.training.collate import true_continuations
from univerb.training.config import TrainingConfig
from univerb.training.losses import (
    Expanded,
    PhraseSum,
    Sum,
    kl_loss,
    phrase_loss,
    token_loss,
)
from univerb.training.negatives import PreBatch
from univerb.training.pool_vectors import encode_pool, pool_bias
from univerb.training.processes import Processes
from univerb.training.randomness import seed_dropout
from univerb.training.task import Loss
from univerb.training.texts import Texts

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True, slots=True)
class _Sums:
    """The losses of this process's share of a batch; None where a weight is 0."""

    phrase: PhraseSum | None
    token: Sum | None
    kl: Sum | None

    def items(self) -> Iterator[tuple[str, PhraseSum | Sum]]:
        for name in ("phrase", "token", "kl"):
            if (given := getattr(self, name)) is not None:
                yield name, given


class _Older(NamedTuple):
    """Phrases of earlier batches that are scored, too."""

    keys: list[Key]
    outputs: Tensor


class MixedTask:
    """The regimes `full` and `lora`: implements `task.Task`.

    A batch and its pool are the same for any number of processes. Each process encodes its share
    of the pool, reads its share of the passages, and divides by the counts of the whole batch.
    Dropout alone depends on the number of processes: each draws masks for its own share.
    """

    def __init__(
        self,
        config: TrainingConfig,
        processes: Processes,
        lm: DynamicLM,
        documents: Sequence[Document],
        validation: Sequence[Document],
    ) -> None:
        self._config = config
        self._processes = processes
        self._lm = lm
        self._trained_before = lm.encoder.config.trained_steps
        self._texts = Texts(documents, lm.tokenizer, config.data.block)
        self._validation = (
            Texts(validation, lm.tokenizer, config.data.block) if validation else None
        )
        self._pre_batch = PreBatch(config.negatives.depth)
        self._adapted: PeftModel | None = None
        self._original: PreTrainedModel | None = None
        """The LM before training, where no adapter can be switched off to get it."""
        self._make_trainable()
        self._batches = Batches(config, lm, documents, self._adapted or self._original)
        if isinstance(lm.encoder.heads, SplitHeads) and not lm.is_trained:
            self._fit(lm.encoder.heads)

    @torch.no_grad()
    def _fit(self, heads: SplitHeads) -> None:
        """Let fresh heads see the states of the first passages."""
        lm = self._lm
        batch = self._batches.batch(self._texts, range(self._config.run.batch))
        tokens = batch.token_ids.to(lm.model.device)
        mask = batch.token_mask.to(lm.model.device)
        phrases = [Phrase(key, lm.tokenizer.decode(key)) for key in batch.pool.keys]
        hidden = lm.encoder.states(phrases, lm.embeddings)
        heads.fit(hidden, self._read(tokens)[mask], lm.embeddings.input(tokens))

    def _make_trainable(self) -> None:
        config, lm = self._config, self._lm
        lm.encoder.requires_grad_(config.regime == "full" or config.lora.encoder)
        if config.regime == "lora":
            self._adapted = attach(lm.model, config.lora)
            return
        if "generation" in config.negatives.kinds or config.losses.teacher == "bare":
            self._original = copy.deepcopy(lm.model).eval().requires_grad_(False)
        lm.model.requires_grad_(True)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The LM, of which `lora` trains only the adapter, and the encoder."""
        return {"lm": self._lm.model, "encoder": self._lm.encoder}

    def loss(self, index: int) -> Loss:
        """Compute this process's share of a micro-batch's loss."""
        config = self._config
        batch = self._batches.batch(
            self._texts, range(index * config.run.batch, (index + 1) * config.run.batch)
        )
        older = self._older(batch)
        seed_dropout(config.run.seed, index, self._processes.rank)
        self._train(True)
        sums, vectors = self._sums(batch, older)
        if "pre-batch" in config.negatives.kinds:
            self._pre_batch.push(batch.pool.keys, vectors.outputs)
        return self._share(sums, batch, vectors)

    def memory(self) -> dict[str, Tensor]:
        """Return the phrases of the batches before, and the coordinates of the heads."""
        held = self._pre_batch.memory() if "pre-batch" in self._config.negatives.kinds else {}
        return held | dict(self._lm.encoder.heads.named_buffers())

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Take back what `memory` returned."""
        if "pre-batch" in self._config.negatives.kinds:
            self._pre_batch.remember(memory)
        for name, value in self._lm.encoder.heads.named_buffers():
            value.copy_(memory[name])

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Measure the losses, phrase accuracy and over-firing on the validation text.

        Returns:
            Means over the same passages at each call; `score` is L_p, or the first loss that has
            a weight. Nothing if there is no validation text.
        """
        if self._validation is None:
            return {}
        self._train(False)
        count = min(self._config.data.passages, len(self._validation))
        size = max(self._config.run.batch, self._processes.size)
        totals = dict.fromkeys(("right", "phrases", "fired", "tokens"), 0.0)
        for begin in range(0, count, size):
            batch = self._batches.batch(self._validation, range(begin, min(begin + size, count)))
            sums, _ = self._sums(batch, None)
            for name, term in sums.items():
                totals[name] = totals.get(name, 0.0) + float(term.total)
                totals[f"{name} rows"] = totals.get(f"{name} rows", 0.0) + term.count
            if sums.phrase is not None:
                totals["right"] += sums.phrase.right
                totals["phrases"] += sums.phrase.phrases
                totals["fired"] += sums.phrase.fired
                totals["tokens"] += sums.phrase.count - sums.phrase.phrases
        return _means(self._processes.total(totals))

    def export(self, folder: Path, step: int) -> None:
        """Write the encoder, and the adapter or the trained LM beside it.

        Args:
            folder: Where to.
            step: After how many steps of this run.
        """
        lm = self._lm
        description = describe(lm.model, lm.tokenizer)
        if self._adapted is not None:
            save_adapter(self._adapted, folder / ADAPTER)
        else:
            lm.model.save_pretrained(folder / BACKBONE)
            lm.hf_tokenizer.save_pretrained(folder / BACKBONE)
            description = description.model_copy(update={"name": BACKBONE})
        # The encoder is the same; only what is written about it changes.
        encoder = copy.copy(lm.encoder)
        steps = self._trained_before + step
        encoder.config = lm.encoder.config.model_copy(update={"trained_steps": steps})
        # These regimes train phrases that are fed as one vector, in these places.
        profile = lm.profile if self._trained_before else Profile(mode="atomic")
        profile = profile.model_copy(update={"positions": self._config.samples.positions})
        write_checkpoint(folder, encoder, description, profile)

    def _train(self, mode: bool) -> None:
        self._lm.model.train(mode)
        self._lm.encoder.train(mode)

    def _older(self, batch: MixedBatch) -> _Older | None:
        if "pre-batch" not in self._config.negatives.kinds:
            return None
        keys, outputs = self._pre_batch.entries(batch.pool.keys)
        return _Older(keys, outputs.to(self._lm.model.device)) if keys else None

    def _sums(self, batch: MixedBatch, older: _Older | None) -> tuple[_Sums, PhraseVectors[Tensor]]:
        """Return the losses of this process's passages, and the pool's vectors."""
        lm, weights = self._lm, self._config.losses
        vectors = encode_pool(lm, batch.pool, self._processes)
        keys, outputs = batch.pool.keys, vectors.outputs
        if older is not None:
            keys, outputs = [*keys, *older.keys], torch.cat([outputs, older.outputs.to(outputs)])
        expanded = Expanded(lm.embeddings.output, outputs, pool_bias(lm, keys))
        share = self._processes.share(len(batch.unit_ids))
        # Without passages of its own a process reads one for nothing, of which no row counts.
        own = slice(share.start, share.stop) if share else slice(1)
        columns = (batch.unit_ids, batch.unit_mask, batch.token_ids, batch.token_mask, batch.sigma)
        units, unit_mask, tokens, token_mask, sigma = (c[own].to(lm.model.device) for c in columns)
        unit_mask, token_mask = unit_mask & bool(share), token_mask & bool(share)
        trains_lm = any(p.requires_grad for p in lm.model.parameters())
        needs_mixed = weights.phrase or weights.kl
        mixed = self._read_mixed(units, sigma, vectors.inputs) if needs_mixed else None
        needs_plain = weights.kl and weights.teacher == "self"
        needs_token = weights.token and trains_lm
        plain = self._read(tokens) if needs_plain or needs_token else None
        phrase = token = kl = None
        if mixed is not None and weights.phrase:
            masked = self._masked(batch, keys[len(batch.pool.keys) :], share)
            phrase = phrase_loss(mixed, units, unit_mask, expanded, weights.chunk, masked)
        if plain is not None and needs_token:
            token = token_loss(plain, tokens, token_mask, lm.embeddings.output, weights.chunk)
        if mixed is not None and weights.kl:
            kl = self._kl(mixed, plain, tokens, sigma, unit_mask, expanded)
        return _Sums(phrase, token, kl), vectors

    def _kl(
        self,
        mixed: Tensor,
        plain: Tensor | None,
        tokens: Tensor,
        sigma: Tensor,
        mask: Tensor,
        expanded: Expanded,
    ) -> Sum:
        settings, static = self._config.losses, expanded
        if plain is None or settings.teacher == "bare":
            plain, output = self._read_bare(tokens)
            static = expanded._replace(output=output)
        return kl_loss(
            mixed,
            plain,
            sigma,
            mask,
            expanded,
            static,
            settings.chunk,
            settings.alignment,
            settings.support,
            "static" if settings.teacher == "bare" else settings.detach,
        )

    def _read(self, tokens: Tensor) -> Tensor:
        states: Tensor = self._lm.model.base_model(
            input_ids=tokens, use_cache=False
        ).last_hidden_state
        return states

    def _read_mixed(self, units: Tensor, sigma: Tensor, vectors: Tensor) -> Tensor:
        """Read units; padding on the right is not seen by what is before it."""
        lm = self._lm
        is_phrase = units >= lm.static_size
        rows = lm.embeddings.input(units.masked_fill(is_phrase, 0))
        phrases = vectors[units[is_phrase] - lm.static_size].to(rows.dtype)
        rows = rows.masked_scatter(is_phrase[..., None], phrases)
        by_token = self._config.samples.positions == "token"
        states: Tensor = lm.model.base_model(
            inputs_embeds=rows,
            position_ids=sigma if by_token else None,
            # Without it, positions that jump are taken for several texts in one row.
            attention_mask=torch.ones_like(units) if by_token else None,
            use_cache=False,
        ).last_hidden_state
        return states

    @torch.no_grad()
    def _read_bare(self, tokens: Tensor) -> tuple[Tensor, nn.Module]:
        """Read tokens with the LM as it was; returns its states and its output layer."""
        model = self._original or self._lm.model
        with _without_dropout(model), self._without_adapter():
            states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return states, model.get_output_embeddings()

    def _without_adapter(self) -> AbstractContextManager[None]:
        return self._adapted.disable_adapter() if self._adapted else nullcontext()

    def _masked(
        self, batch: MixedBatch, older: Sequence[Key], share: range
    ) -> list[tuple[int, int, int]]:
        if not self._config.negatives.mask_true:
            return []
        found = true_continuations(batch, older)
        return [(row - share.start, unit, k) for row, unit, k in found if row in share]

    def _share(self, sums: _Sums, batch: MixedBatch, vectors: PhraseVectors[Tensor]) -> Loss:
        weights = self._config.losses
        next_units = batch.unit_mask[:, 1:]
        every = batch.unit_mask if weights.alignment == "context" else next_units
        counts = {"phrase": next_units, "token": batch.token_mask[:, 1:], "kl": every}
        # Every process's loss depends on the whole pool, or one would wait for it in vain.
        total = (vectors.inputs.sum() + vectors.outputs.sum()) * 0.0
        terms: dict[str, float] = {}
        for name, term in sums.items():
            mean = term.total / max(int(counts[name].sum()), 1)
            total = total + getattr(weights, name) * mean
            terms[name] = float(mean.detach())
        rows = 0
        if sums.phrase is not None:
            phrases = int((batch.unit_ids[:, 1:] >= self._lm.static_size)[next_units].sum())
            tokens = int(next_units.sum()) - phrases
            terms["phrase_accuracy"] = sums.phrase.right / max(phrases, 1)
            terms["over_firing"] = sums.phrase.fired / max(tokens, 1)
            rows = sums.phrase.count
        elif sums.token is not None:
            rows = sums.token.count
        return Loss(total, terms, rows)


def make_mixed_task(
    config: TrainingConfig,
    processes: Processes,
    lm: DynamicLM,
    documents: Sequence[Document],
    validation: Sequence[Document] = (),
) -> MixedTask:
    """Make the task of the regimes `full` and `lora`.

    Args:
        config: The run.
        processes: Who shares it.
        lm: The LM and its encoder, which are trained in place.
        documents: The training text.
        validation: Held-out text.

    Returns:
        The task.

    Raises:
        OptionError: If there are too few passages for the processes.
    """
    if config.run.batch < processes.size:
        raise OptionError(
            f"run.batch is {config.run.batch} and there are {processes.size} processes, which "
            "share a batch's passages. Give at least one passage to each."
        )
    return MixedTask(config, processes, lm, documents, validation)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def _means(totals: dict[str, float]) -> dict[str, float]:
    names: list[str] = [name for name in ("phrase", "token", "kl") if name in totals]
    result = {name: totals[name] / max(totals[f"{name} rows"], 1.0) for name in names}
    result["score"] = result[names[0]] if names else 0.0
    if "phrase" in result:
        result["phrase_accuracy"] = totals["right"] / max(totals["phrases"], 1.0)
        result["over_firing"] = totals["fired"] / max(totals["tokens"], 1.0)
    return result
