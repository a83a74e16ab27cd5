"""The paper's training: passages read with phrases in them and without (section 2.4).

`full` trains the LM and the encoder, `lora` an adapter on the LM and the encoder. What they share
is here: docs/method.md, Losses.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from univerb.config import Profile
from univerb.errors import OptionError
from univerb.modeling.adapter import attach, save_adapter
from univerb.modeling.card import ADAPTER
from univerb.modeling.checkpoint import describe, write_checkpoint
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.heads import SplitHeads
from univerb.modeling.phrase_table import PhraseVectors
from univerb.phrase import Document, Phrase
from univerb.phrases.guards import PAPER_GUARDS
from univerb.training.batch_loader import BatchLoader
from univerb.training.config import TrainingConfig
from univerb.training.losses import Expanded, LossSum, kl_loss, phrase_loss, token_loss
from univerb.training.mixed_batch import MixedBatch, PoolEntry, true_continuations
from univerb.training.negatives import Generator, PreBatch, before_training
from univerb.training.pool_encoding import encode_pool, pool_bias
from univerb.training.processes import Processes
from univerb.training.samples import Key
from univerb.training.task import TaskLoss
from univerb.training.training_passages import Passages

if TYPE_CHECKING:
    from peft import PeftModel


LossSums = dict[str, LossSum]
"""The losses of this process's share of a batch: phrase, token and kl, where they have a weight."""


class MixedTask:
    """The regimes `full` and `lora`: implements `task.Task`.

    A batch and its pool are the same for any number of processes. Each process encodes its share
    of the pool, reads its share of the passages, and divides by the counts of the whole batch.
    Dropout alone depends on the number of processes: each draws masks for its own share. The LM and
    its encoder are trained in place. Generated negatives are those of `generator`, by default of
    the LM as it was before training.
    """

    def __init__(
        self,
        config: TrainingConfig,
        processes: Processes,
        lm: DynamicLM,
        documents: Sequence[Document],
        validation: Sequence[Document] = (),
        generator: Generator | None = None,
    ) -> None:
        if config.run.batch < processes.size:
            raise OptionError(
                f"run.batch is {config.run.batch} and there are {processes.size} processes, which "
                "share a batch's passages. Give at least one passage to each."
            )
        self._config = config
        self._processes = processes
        self._lm = lm
        self._trained_before = lm.encoder.config.trained_steps
        block = config.data.block
        passages = partial(Passages, tokenizer=lm.tokenizer, block=block, guards=PAPER_GUARDS)
        self._passages = passages(documents)
        self._validation = passages(validation) if validation else None
        self._pre_batch = PreBatch(config.negatives.depth)
        self._adapted: PeftModel | None = None
        self._original: PreTrainedModel | None = None
        """The LM before training, where no adapter can be switched off to get it."""
        self._make_trainable(needs_original=generator is None)
        original = self._adapted or self._original
        if generator is None and original is not None:
            generator = Generator(original, lm.tokenizer)
        self._loader = BatchLoader(config, lm, documents, generator)
        if isinstance(lm.encoder.heads, SplitHeads) and not lm.is_trained:
            self._fit_heads(lm.encoder.heads)

    def _make_trainable(self, needs_original: bool) -> None:
        config, lm = self._config, self._lm
        lm.encoder.requires_grad_(config.regime == "full" or config.lora.encoder)
        if config.regime == "lora":
            self._adapted = attach(lm.model, config.lora)
            return
        generates = needs_original and "generation" in config.negatives.kinds
        if generates or config.losses.teacher == "bare":
            self._original = copy.deepcopy(lm.model).eval().requires_grad_(False)
        lm.model.requires_grad_(True)

    @torch.no_grad()
    def _fit_heads(self, heads: SplitHeads) -> None:
        """Fit fresh heads to the states of the first passages."""
        lm = self._lm
        batch = self._loader.load(self._passages, range(self._config.run.batch))
        tokens = batch.token_ids.to(lm.model.device)
        mask = batch.token_mask.to(lm.model.device)
        phrases = [Phrase(key, lm.tokenizer.decode(key)) for key in batch.pool.keys]
        hidden = lm.encoder.states(phrases, lm.embeddings)
        heads.fit(hidden, self._read_tokens(tokens)[mask], lm.embeddings.input(tokens))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The LM, of which `lora` trains only the adapter, and the encoder."""
        return {"lm": self._lm.model, "encoder": self._lm.encoder}

    @property
    def _has_pre_batch(self) -> bool:
        return "pre-batch" in self._config.negatives.kinds

    def loss(self, index: int) -> TaskLoss:
        """Compute this process's share of a micro-batch's loss."""
        size = self._config.run.batch
        batch = self._loader.load(self._passages, range(index * size, (index + 1) * size))
        sums, vectors = self._loss_sums(batch, *self._pre_batch.entries(batch.pool.keys))
        if self._has_pre_batch:
            self._pre_batch.push(batch.pool.keys, vectors.outputs)
        return self._weighted(sums, batch, vectors)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the phrases of earlier batches, and the coordinates of the heads."""
        state = self._pre_batch.state_dict() if self._has_pre_batch else {}
        return state | dict(self._lm.encoder.heads.named_buffers())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if self._has_pre_batch:
            self._pre_batch.load_state_dict(state)
        for name, value in self._lm.encoder.heads.named_buffers():
            value.copy_(state[name])

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Measure the losses, phrase accuracy and over-firing on the validation text.

        Returns:
            Means over the same passages at each call; `score` is L_p, or the first loss that has
            a weight. Nothing if there is no validation text.
        """
        if self._validation is None:
            return {}
        count = min(self._config.data.passages, len(self._validation))
        size = max(self._config.run.batch, self._processes.size)
        sums: dict[str, float] = {}
        counts: Counter[str] = Counter()
        for begin in range(0, count, size):
            batch = self._loader.load(self._validation, range(begin, min(begin + size, count)))
            for name, value in _metric_sums(self._loss_sums(batch)[0]).items():
                sums[name] = sums.get(name, 0.0) + value
            counts.update(self._counts(batch))
        totals = self._processes.all_reduce(sums)
        means = {name: total / max(counts[name], 1) for name, total in totals.items()}
        return means | {"score": next(iter(means.values()), 0.0)}

    def export(self, folder: Path, step: int) -> None:
        """Write the encoder after `step` steps, and the adapter or the trained LM beside it."""
        lm = self._lm
        description = describe(lm.model, lm.tokenizer)
        if self._adapted is not None:
            save_adapter(self._adapted, folder / ADAPTER)
        else:
            name = _trained_name(description.name, folder.resolve().parent.name)
            lm.model.save_pretrained(folder / name)
            lm.hf_tokenizer.save_pretrained(folder / name)
            names = {"name": name, "trained_from": description.name}
            description = description.model_copy(update=names)
        # The encoder is the same; only its description changes.
        encoder = copy.copy(lm.encoder)
        steps = self._trained_before + step
        encoder.config = lm.encoder.config.model_copy(update={"trained_steps": steps})
        # These regimes train phrases that are fed as one vector, at these positions.
        profile = lm.profile if self._trained_before else Profile(mode="atomic")
        profile = profile.model_copy(update={"positions": self._config.samples.positions})
        write_checkpoint(folder, encoder, description, profile)

    def _loss_sums(
        self, batch: MixedBatch, earlier: Sequence[Key] = (), earlier_outputs: Tensor | None = None
    ) -> tuple[LossSums, PhraseVectors[Tensor]]:
        """Return the losses of this process's passages, and the pool's vectors."""
        lm, weights = self._lm, self._config.losses
        vectors = encode_pool(lm, batch.pool, self._processes)
        outputs = vectors.outputs
        if earlier_outputs is not None and earlier:
            outputs = torch.cat([outputs, earlier_outputs.to(outputs)])
        expanded = Expanded(
            lm.embeddings.output, outputs, pool_bias(lm, [*batch.pool.keys, *earlier])
        )
        share = self._processes.share(len(batch.unit_ids))
        # A process without passages reads one of which no row counts.
        mine = slice(share.start, share.stop) if share else slice(1)
        columns = (batch.unit_ids, batch.unit_mask, batch.token_ids, batch.token_mask, batch.sigma)
        units, unit_mask, tokens, token_mask, sigma = (c[mine].to(lm.model.device) for c in columns)
        unit_mask, token_mask = unit_mask & bool(share), token_mask & bool(share)
        trains_lm = any(p.requires_grad for p in lm.model.parameters())
        needs_mixed = weights.phrase or weights.kl
        mixed = self._read_units(units, sigma, vectors.inputs) if needs_mixed else None
        needs_token = weights.token and trains_lm
        needs_plain = needs_token or (weights.kl and weights.teacher == "self")
        plain = self._read_tokens(tokens) if needs_plain else None
        sums: LossSums = {}
        if mixed is not None and weights.phrase:
            masked = self._masked(batch, earlier, share)
            sums["phrase"] = phrase_loss(mixed, units, unit_mask, expanded, weights.chunk, masked)
        if plain is not None and needs_token:
            output = lm.embeddings.output
            sums["token"] = token_loss(plain, tokens, token_mask, output, weights.chunk)
        if mixed is not None and weights.kl:
            static = expanded
            if plain is None or weights.teacher == "bare":
                plain, output = self._read_original(tokens)
                static = expanded._replace(output=output)
            sums["kl"] = kl_loss(mixed, plain, sigma, unit_mask, expanded, static, weights)
        return sums, vectors

    def _read_tokens(self, tokens: Tensor) -> Tensor:
        """The plain pass: states (B, N, d) after tokens."""
        model = self._lm.model.base_model
        states: Tensor = model(input_ids=tokens, use_cache=False).last_hidden_state
        return states

    def _read_units(self, units: Tensor, sigma: Tensor, vectors: Tensor) -> Tensor:
        """The mixed pass: states (B, M, d) after units; padding on the right is never seen."""
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
    def _read_original(self, tokens: Tensor) -> tuple[Tensor, nn.Module]:
        """Read tokens with the LM before training; returns its states and its output layer."""
        model = self._original or self._lm.model
        with before_training(self._adapted or model):
            states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return states, model.get_output_embeddings()

    def _masked(self, batch: MixedBatch, earlier: Sequence[Key], share: range) -> list[PoolEntry]:
        if not self._config.negatives.mask_true:
            return []
        entries = true_continuations(batch, earlier)
        return [(row - share.start, unit, k) for row, unit, k in entries if row in share]

    def _counts(self, batch: MixedBatch) -> dict[str, int]:
        """Return the number of positions of the whole batch over which each metric is a mean."""
        next_units = batch.unit_mask[:, 1:]
        compared = batch.unit_mask if self._config.losses.alignment == "context" else next_units
        units = int(next_units.sum())
        phrases = int((batch.unit_ids[:, 1:] >= self._lm.static_size)[next_units].sum())
        return {
            "phrase": units,
            "token": int(batch.token_mask[:, 1:].sum()),
            "kl": int(compared.sum()),
            "phrase_accuracy": phrases,
            "over_firing": units - phrases,
        }

    def _weighted(
        self, sums: LossSums, batch: MixedBatch, vectors: PhraseVectors[Tensor]
    ) -> TaskLoss:
        """Divide sums by the counts of the whole batch, and add the losses up."""
        counts = self._counts(batch)
        # Every process's loss depends on the whole pool, or one would wait for it in vain.
        total = (vectors.inputs.sum() + vectors.outputs.sum()) * 0.0
        for name, loss in sums.items():
            weight = getattr(self._config.losses, name)
            total = total + weight * (loss.total / max(counts[name], 1))
        metrics = _metric_sums(sums)
        terms = {name: value / max(counts[name], 1) for name, value in metrics.items()}
        scored = sums.get("phrase") or sums.get("token")
        return TaskLoss(total, terms, scored.count if scored else 0)


def _metric_sums(sums: LossSums) -> dict[str, float]:
    """Return what is logged, not yet divided by its counts."""
    metrics = {name: float(loss.total.detach()) for name, loss in sums.items()}
    if phrase := sums.get("phrase"):
        metrics |= {"phrase_accuracy": phrase.right, "over_firing": phrase.fired}
    return metrics


def _trained_name(source: str, run: str) -> str:
    """Return the name of what a run made of an LM, such as gpt2-wiki."""
    source = PurePath(source).name
    return run if run.startswith(source) else f"{source}-{run}"
