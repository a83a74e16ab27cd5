"""Does a premise entail a hypothesis? The question behind every citation score (METHOD C.8).

A scorer carries its name and what it was measured at, so that no score is printed without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.lab.judging.cross_encoder import CARD, CrossEncoderCard, read_cross_encoder
from univerb.lab.protocols.hf_models import (
    dtype_named,
    load_judge,
    longest_input,
    short_name,
    shortened,
)
from univerb.locations import cache_directory, locate

DEFAULT_SCORER = "minilm-l6-nli"
"""The cross-encoder that `recipes/nli` trains."""
Pair = tuple[str, str]
"""A premise and a hypothesis."""

_MAX_LENGTH = 512
_ANSWERS = ("1", "0")


@dataclass(frozen=True, slots=True)
class Scorer:
    """Who decides, and what it is worth: to be printed beside every score that comes from it."""

    name: str
    threshold: float = 0.5
    """Entailed from this probability on."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """In percent, by test set; empty if nobody measured."""

    def __str__(self) -> str:
        known = ", ".join(f"{name} {value:.1f} %" for name, value in self.accuracies.items())
        return f"NLI {self.name} ({known or 'accuracy not measured'})"


class Entailment(Protocol):
    """Tells of pairs whether the premise entails the hypothesis."""

    @property
    def about(self) -> Scorer:
        """Who decides."""
        ...

    def probabilities(self, pairs: Sequence[Pair]) -> list[float]:
        """Return how likely each premise entails its hypothesis."""
        ...

    def entails(self, pairs: Sequence[Pair]) -> list[bool]:
        """Return whether each premise entails its hypothesis."""
        return [value >= self.about.threshold for value in self.probabilities(pairs)]

    def __call__(self, premise: str, hypothesis: str) -> bool:
        """Tell of one pair, as citation scores ask."""
        return self.entails([(premise, hypothesis)])[0]


class CrossEncoderEntailment(Entailment):
    """Any classifier of text pairs that has a label for entailment.

    A premise that is too long is cut into overlapping windows, and the best one counts: a claim is
    supported if one place of its source supports it, and a mean would punish long sources. What
    only two far places support together is missed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: HFTokenizer,
        about: Scorer,
        *,
        max_length: int = _MAX_LENGTH,
        batch: int = 16,
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch is {batch}; score at least 1 pair at a time.")
        reads = longest_input(model, tokenizer, _MAX_LENGTH)
        if not 32 <= max_length <= reads:
            raise OptionError(
                f"max_length is {max_length}. Allowed: 32 to {reads}, what {about.name!r} reads."
            )
        self._model, self._tokenizer, self._about = model, tokenizer, about
        self._max_length, self._batch = max_length, batch
        self.labels = [str(name).lower() for _, name in sorted(model.config.id2label.items())]
        self._entailment = _entailment_label(self.labels, about.name)

    @property
    def about(self) -> Scorer:
        """Who decides."""
        return self._about

    def probabilities(self, pairs: Sequence[Pair]) -> list[float]:
        """Return how likely each premise entails its hypothesis, in its best window."""
        found: list[float] = self.distributions(pairs)[:, self._entailment].tolist()
        return found

    @torch.inference_mode()
    def distributions(self, pairs: Sequence[Pair]) -> Tensor:
        """Return the probabilities of all labels in each pair's best window.

        Args:
            pairs: Premises and hypotheses, of any length.

        Returns:
            (n, labels), in the order of `labels`.
        """
        if not pairs:
            return torch.zeros(0, len(self.labels))
        windows, owners = self._windows(pairs)
        # Of one length, so that little is padding.
        order = sorted(range(len(owners)), key=lambda i: len(windows["input_ids"][i]))
        scored = torch.zeros(len(owners), len(self.labels))
        for begin in range(0, len(order), self._batch):
            rows = order[begin : begin + self._batch]
            inputs = {name: [values[row] for row in rows] for name, values in windows.items()}
            padded = self._tokenizer.pad(inputs, return_tensors="pt").to(self._model.device)
            scored[rows] = self._model(**padded).logits.float().softmax(-1).cpu()
        best: dict[int, int] = {}
        for row, owner in enumerate(owners):
            before = best.setdefault(owner, row)
            if scored[row, self._entailment] > scored[before, self._entailment]:
                best[owner] = row
        return scored[[best[number] for number in range(len(pairs))]]

    def _windows(self, pairs: Sequence[Pair]) -> tuple[dict[str, list[list[int]]], list[int]]:
        """Encode pairs; returns the windows, and which pair each belongs to."""
        encoded = self._tokenizer(
            [premise for premise, _ in pairs],
            # One that is too long must leave room for the premise.
            [shortened(self._tokenizer, own, self._max_length // 2) for _, own in pairs],
            truncation="only_first",
            max_length=self._max_length,
            # What lies on a border is whole in one of two windows.
            stride=self._max_length // 4,
            return_overflowing_tokens=True,
        )
        owners = encoded.pop("overflow_to_sample_mapping")
        return dict(encoded), owners


class TextToTextEntailment(Entailment):
    """A model that writes 1 for entailment and 0 for none, as TRUE's T5-XXL does.

    It is asked as ALCE asks it. Premises are not cut: T5 has no last position.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: HFTokenizer,
        about: Scorer,
        *,
        batch: int = 16,
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch is {batch}; score at least 1 pair at a time.")
        self._model, self._tokenizer, self._about, self._batch = model, tokenizer, about, batch
        yes, no = (tokenizer(answer)["input_ids"] for answer in _ANSWERS)
        # A tokenizer may begin every word with a token of its own: the answers differ after it.
        differ = [i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b]
        if not differ:
            raise ModelError(f"{about.name!r} cannot write 1 and 0. Give a model that answers so.")
        self._written, self._place = yes, differ[0]
        self._answers = [yes[differ[0]], no[differ[0]]]

    @property
    def about(self) -> Scorer:
        """Who decides."""
        return self._about

    @torch.inference_mode()
    def probabilities(self, pairs: Sequence[Pair]) -> list[float]:
        """Return how likely the model writes 1, given that it writes 1 or 0."""
        found: list[float] = []
        for begin in range(0, len(pairs), self._batch):
            asked = [f"premise: {p} hypothesis: {h}" for p, h in pairs[begin : begin + self._batch]]
            inputs = self._tokenizer(asked, padding=True, return_tensors="pt", verbose=False)
            # As labels: the model puts its own start token before them.
            output = self._model(
                input_ids=inputs["input_ids"].to(self._model.device),
                attention_mask=inputs["attention_mask"].to(self._model.device),
                labels=torch.tensor([self._written] * len(asked), device=self._model.device),
            )
            logits = output.logits[:, self._place, self._answers].float()
            found += logits.softmax(-1)[:, 0].tolist()
        return found


def load_entailment(
    name: str = DEFAULT_SCORER,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 16,
    offline: bool | None = None,
) -> Entailment:
    """Load a scorer.

    Args:
        name: The default, or a folder or Hub id: a classifier of text pairs that has a label for
            entailment, or a text-to-text model that writes 1 or 0 (google/t5_xxl_true_nli_mixture).
        device: Where to put it, as torch names devices.
        dtype: float32, bfloat16 or float16.
        batch: Pairs, or windows of them, that are scored at a time.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The scorer.

    Raises:
        ModelMissing: If it is not on this machine and may not or cannot be downloaded.
        ModelError: If it is no such model, or cannot be loaded safely.
        OptionError: If dtype is unknown.
    """
    weights = dtype_named(dtype)
    where = default_folder() if name == DEFAULT_SCORER else locate(name, offline)
    if isinstance(where, Path) and (where / CARD).is_file():
        model, tokenizer, card = read_cross_encoder(where)
        placed = model.to(device, weights)
        about, length = scorer_of(card), card.max_length
        return CrossEncoderEntailment(placed, tokenizer, about, max_length=length, batch=batch)
    what = "a sequence classifier, or a text-to-text model,"
    model, tokenizer = load_judge(where, _kind, what, dtype=weights, offline=offline)
    about = Scorer(short_name(name))
    if _writes_text(model.config):
        return TextToTextEntailment(model.to(device), tokenizer, about, batch=batch)
    length = longest_input(model, tokenizer, _MAX_LENGTH)
    return CrossEncoderEntailment(
        model.to(device), tokenizer, about, max_length=length, batch=batch
    )


def scorer_of(card: CrossEncoderCard) -> Scorer:
    """Say who a cross-encoder of univerb is."""
    return Scorer(card.name, card.threshold, dict(card.accuracies))


def default_folder() -> Path:
    """Return where the default scorer lies: in the package, or in the user's cache.

    Returns:
        The folder.

    Raises:
        ModelMissing: If it is in neither.
    """
    packaged = Path(__file__).parents[2] / "assets" / "entailment" / DEFAULT_SCORER
    for folder in (packaged, built_folder()):
        if (folder / CARD).is_file():
            return folder
    raise ModelMissing(
        f"the scorer {DEFAULT_SCORER!r} is not on this machine. Train it as "
        "recipes/nli/README.md says, or name a folder or Hub id of another NLI model."
    )


def built_folder() -> Path:
    """Return where a scorer that was trained on this machine is kept."""
    return cache_directory() / "entailment" / DEFAULT_SCORER


def _kind(config: Any) -> Any:  # noqa: ANN401  (any config and auto class of transformers)
    return AutoModelForSeq2SeqLM if _writes_text(config) else AutoModelForSequenceClassification


def _writes_text(config: Any) -> bool:  # noqa: ANN401  (any config of transformers)
    """Tell whether a model answers in text; BART has classifiers with a decoder, too."""
    names = config.architectures or []
    is_classifier = any("SequenceClassification" in name for name in names)
    return bool(config.is_encoder_decoder) and not is_classifier


def _entailment_label(labels: Sequence[str], name: str) -> int:
    found = [number for number, label in enumerate(labels) if label.startswith("entail")]
    if len(found) != 1:
        raise ModelError(
            f"{name!r} has the labels {', '.join(labels)}; which one is entailment? Name it so in "
            "id2label of its config.json."
        )
    return found[0]
