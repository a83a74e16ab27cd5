"""Whether a premise entails a hypothesis (docs/method.md, Metrics: citations).

A scorer carries its name and its accuracies, so that no score is printed without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
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

from univerb.entailment.cross_encoder import CARD, read_cross_encoder
from univerb.entailment.pair_windows import outputs, pair_windows
from univerb.entailment.premises import decided, windows
from univerb.errors import ModelError
from univerb.locations import locate
from univerb.modeling.hf_inputs import longest_input, short_name, shortened
from univerb.modeling.pretrained import SAFE_FORM, dtype_named, load_pretrained

DEFAULT_SCORER = "minilm-l6-nli"
"""The cross-encoder that ships with univerb; `recipes/nli` trains it."""
NliPair = tuple[str, str]
"""A premise and a hypothesis."""

_ASSETS = Path(__file__).parents[1] / "assets" / "entailment"
_MAX_LENGTH = 512
_ANSWERS = ("1", "0")
_BATCH = 16
_AT_ONCE = 1024
_REMEMBERED = 100_000
"""Pairs; precision asks about passages that recall has asked about."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scorer's name and quality, to be printed beside every score that it gives."""

    name: str
    threshold: float = 0.5
    """Entailed from this probability on."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """In percent, by test set; empty if nobody measured."""

    def __str__(self) -> str:
        known = ", ".join(f"{name} {value:.1f} %" for name, value in self.accuracies.items())
        return f"NLI {self.name} ({known or 'accuracy not measured'})"


class Entailment(Protocol):
    """Decides whether premises entail hypotheses."""

    about: Scorer
    """Its name and quality."""

    def probabilities(self, pairs: Sequence[NliPair]) -> list[float]:
        """Return the probability that each premise entails its hypothesis."""
        ...

    def entails(self, pairs: Sequence[NliPair]) -> list[bool]:
        """Return whether each premise entails its hypothesis."""
        return [value >= self.about.threshold for value in self.probabilities(pairs)]

    def __call__(self, passages: Sequence[str], claim: str) -> bool:
        """Decide whether passages support a claim, as citation scores ask: as one premise."""
        return self.entails([("\n".join(passages), claim)])[0]


class CrossEncoderEntailment(Entailment):
    """Any classifier of text pairs that has a label for entailment.

    A premise is read in windows of sentences, and the best one counts: a claim is supported if one
    part of its source supports it. What needs no model, such as a copied sentence, is not read.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: HFTokenizer,
        about: Scorer,
        max_length: int = _MAX_LENGTH,
    ) -> None:
        self._model, self._tokenizer, self.about = model, tokenizer, about
        self._max_length = longest_input(model, tokenizer, max_length)
        self._known: dict[NliPair, float] = {}
        self.labels = [str(name).lower() for _, name in sorted(model.config.id2label.items())]
        self._entailment = _entailment_label(self.labels, about.name)

    def probabilities(self, pairs: Sequence[NliPair]) -> list[float]:
        """Return the probability that each premise entails its hypothesis, in its best window."""
        certain = {pair: decided(*pair) for pair in pairs}
        unread = [pair for pair, verdict in certain.items() if verdict is None]
        best = {pair: score for pair, (_, score) in zip(unread, self._best(unread), strict=True)}
        return [best[pair] if pair in best else float(bool(certain[pair])) for pair in pairs]

    def __call__(self, passages: Sequence[str], claim: str) -> bool:
        """Decide whether passages support a claim: one of them, or their best windows together."""
        pairs = [(passage, claim) for passage in passages]
        if any(decided(*pair) for pair in pairs) or any(self.entails(pairs)):
            return True
        if len(pairs) < 2 or decided("\n".join(passages), claim) is False:
            return False
        together = "\n".join(window for window, _ in self._best(pairs))
        return self._scores([(together, claim)])[0] >= self.about.threshold

    def _best(self, pairs: Sequence[NliPair]) -> list[tuple[str, float]]:
        """Return the window of each premise that says most for its hypothesis, and how much."""
        asked = [[(window, pair[1]) for window in windows(*pair)] for pair in pairs]
        flat = [pair for own in asked for pair in own]
        scores = dict(zip(flat, self._scores(flat), strict=True))
        return [max(((pair[0], scores[pair]) for pair in own), key=itemgetter(1)) for own in asked]

    def _scores(self, pairs: Sequence[NliPair]) -> list[float]:
        """Return the probability of entailment of pairs as they are, each pair read once."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._known]
        for begin in range(0, len(new), _AT_ONCE):
            part = new[begin : begin + _AT_ONCE]
            entailed = self.distributions(part)[:, self._entailment]
            self._known.update(zip(part, entailed.tolist(), strict=True))
        return [self._known[pair] for pair in pairs]

    @torch.inference_mode()
    def distributions(self, pairs: Sequence[NliPair]) -> Tensor:
        """Return the probabilities of all labels, (n, labels), premises unsplit.

        Of one that is too long for the model the best window of tokens counts.
        """
        if not pairs:
            return torch.zeros(0, len(self.labels))
        length = self._max_length
        # A hypothesis that is too long must leave room for the premise, and what lies on a border
        # is whole in one of two windows.
        cut = [(first, shortened(self._tokenizer, second, length // 2)) for first, second in pairs]
        parts = pair_windows(self._tokenizer, cut, "only_first", length, length // 4)
        scored = torch.zeros(len(parts.owners), len(self.labels))
        for rows, output in outputs(self._model, self._tokenizer, parts):
            scored[rows] = output.logits.float().softmax(-1).cpu()
        entailed = scored[:, self._entailment]
        return scored[[max(rows, key=entailed.__getitem__) for rows in parts.by_pair()]]


class TextToTextEntailment(Entailment):
    """A model that writes 1 for entailment and 0 for none, as TRUE's T5-XXL does.

    It is asked as ALCE asks it. Premises are not cut: T5 has no last position.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: HFTokenizer, about: Scorer) -> None:
        self._model, self._tokenizer, self.about = model, tokenizer, about
        yes, no = (tokenizer(answer)["input_ids"] for answer in _ANSWERS)
        # A tokenizer may begin every word with a token of its own: the answers differ after it.
        differ = [i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b]
        if not differ:
            raise ModelError(f"{about.name!r} cannot write 1 and 0. Give a model that answers so.")
        self._target, self._position = yes, differ[0]
        self._answers = [yes[differ[0]], no[differ[0]]]

    @torch.inference_mode()
    def probabilities(self, pairs: Sequence[NliPair]) -> list[float]:
        """Return the probability that the model writes 1, given that it writes 1 or 0."""
        device = self._model.device
        probabilities: list[float] = []
        for begin in range(0, len(pairs), _BATCH):
            asked = [f"premise: {p} hypothesis: {h}" for p, h in pairs[begin : begin + _BATCH]]
            inputs = self._tokenizer(asked, padding=True, return_tensors="pt", verbose=False)
            # As labels: the model puts its own start token before them.
            output = self._model(
                input_ids=inputs["input_ids"].to(device),
                attention_mask=inputs["attention_mask"].to(device),
                labels=torch.tensor([self._target] * len(asked), device=device),
            )
            logits = output.logits[:, self._position, self._answers].float()
            probabilities += logits.softmax(-1)[:, 0].tolist()
        return probabilities


def load_entailment(
    name: str = DEFAULT_SCORER,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> Entailment:
    """Load a scorer: the default, or a folder or Hub id.

    A classifier of text pairs that has a label for entailment, or a text-to-text model that writes
    1 or 0 (google/t5_xxl_true_nli_mixture). Raises ModelMissing if it is not on this machine and
    may not or cannot be downloaded, ModelError if it is no such model or cannot be loaded safely.
    """
    weights = dtype_named(dtype)
    where = _ASSETS / name if name == DEFAULT_SCORER else locate(name, offline)
    if isinstance(where, Path) and (where / CARD).is_file():
        model, tokenizer, card = read_cross_encoder(where)
        about = Scorer(card.name, card.threshold, dict(card.accuracies))
        return CrossEncoderEntailment(model.to(device, weights), tokenizer, about, card.max_length)
    advice = f"Give a sequence classifier, or a text-to-text model, {SAFE_FORM}"
    model, tokenizer = load_pretrained(where, _auto_class, advice, dtype=weights, offline=offline)
    kind = TextToTextEntailment if _writes_text(model.config) else CrossEncoderEntailment
    return kind(model.to(device), tokenizer, Scorer(short_name(name)))


def _auto_class(config: Any) -> Any:  # noqa: ANN401  (any config and auto class of transformers)
    return AutoModelForSeq2SeqLM if _writes_text(config) else AutoModelForSequenceClassification


def _writes_text(config: Any) -> bool:  # noqa: ANN401  (any config of transformers)
    """Tell whether a model answers in text; BART has classifiers with a decoder, too."""
    names = config.architectures or []
    is_classifier = any("SequenceClassification" in name for name in names)
    return bool(config.is_encoder_decoder) and not is_classifier


def _entailment_label(labels: Sequence[str], name: str) -> int:
    candidates = [number for number, label in enumerate(labels) if label.startswith("entail")]
    if len(candidates) != 1:
        raise ModelError(
            f"{name!r} has the labels {', '.join(labels)}; which one is entailment? Name it so in "
            "id2label of its config.json."
        )
    return candidates[0]
