"""A causal LM that scores texts: their perplexity, and, if asked to, their features for MAUVE.

By default it is the backbone; the published values are gpt2-large's. Values of two scorers do not
compare, so every table prints the name of its scorer, and whether it generated the texts itself.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, OptionError
from univerb.lab.metrics.mauve import MAX_TOKENS
from univerb.lab.metrics.perplexity import (
    WINDOW,
    per_sample_perplexity,
    stream_perplexity,
    stream_text,
    windows,
)
from univerb.lab.protocols.result_cache import weights_hash
from univerb.locations import DEFAULT_MODEL
from univerb.modeling.backbones import check_usable, load_backbone
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.hf_inputs import short_name
from univerb.tokenizer import Tokenizer

Progress = Callable[[int, int], object]
"""Called with the number of texts or windows that are done, and of all."""
R = TypeVar("R")

# Rows of the |V| matrix product at a time, so that memory stays flat.
_ROWS = 256
# Tokens of a pass, if it has more than one sequence: a CPU reads long windows faster one by one.
_TOKENS = 2048


class TextScorer:
    """Scores texts with one LM.

    Args:
        model: The LM, in evaluation mode; it is not changed.
        tokenizer: Its fast tokenizer.
        name: Printed in tables.
        batch: Maximum number of texts or windows in a pass.

    Raises:
        ModelError: If its logits are not those of its output layer.
    """

    pooling = "last state"

    def __init__(
        self, model: PreTrainedModel, tokenizer: HFTokenizer, name: str, *, batch: int = 8
    ) -> None:
        check_usable(model, tokenizer)
        self._model, self._batch = model, batch
        self._begin = _begin_token(tokenizer)
        self.tokenizer = Tokenizer(tokenizer.backend_tokenizer)
        self.precision = str(model.dtype).removeprefix("torch.")
        self.name = name if self.precision == "float32" else f"{name} ({self.precision})"
        """Printed in every table."""

    @classmethod
    def of(cls, lm: DynamicLM) -> Self:
        """Score with the backbone of a loaded LM, which is neither changed nor copied."""
        if lm.adapter:
            raise OptionError(
                f"{lm.name!r} was loaded with its adapter, so its backbone is not what its name "
                "says. Load the scorer by name: load_scorer()."
            )
        return cls(lm.model, lm.hf_tokenizer, short_name(lm.model.name_or_path))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that its values depend on: two models may have one name."""
        return f"{self.name} {self.weights} {self.tokenizer.fingerprint()}"

    @cached_property
    def weights(self) -> str:
        """A hash of the LM's weights."""
        return weights_hash(self._model)

    @property
    def context_size(self) -> int:
        """Number of positions that the LM can see."""
        config = self._model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    def stream_perplexity(self, texts: Sequence[str], progress: Progress | None = None) -> float:
        """Return the perplexity of texts (with prefixes) as one stream, cut into windows.

        That is the published value; NaN if there is no text.
        """
        # No begin token: only the first window would have it.
        ids = self.tokenizer.encode(stream_text(texts)).ids
        parts = windows(ids, min(WINDOW, self.context_size))
        return stream_perplexity(self._each(parts, self._log_probabilities, progress))

    def per_sample_perplexity(
        self, texts: Sequence[str], progress: Progress | None = None
    ) -> float:
        """Return the mean of the perplexities of texts (with prefixes), each after a begin token.

        That is the tokenizer's, or, where it has none, the token that ends a text. What is beyond
        the context is not read. NaN if there is no text.
        """
        if self._begin is None:
            raise ModelError(
                f"the tokenizer of {self.name!r} has no token that begins or ends a text. Use "
                "stream_perplexity, which needs none."
            )
        prompts = ([self._begin, *self.tokenizer.encode(text).ids] for text in texts)
        fitting = [ids[: self.context_size] for ids in prompts]
        return per_sample_perplexity(self._each(fitting, self._log_probabilities, progress))

    def features(
        self, texts: Sequence[str], progress: Progress | None = None
    ) -> NDArray[numpy.float32]:
        """Return the LM's last state, after the final norm, at the last token of each text.

        Texts are cut to the first 512 tokens, or to the context. The result is (N, d), in the order
        of the texts.
        """
        check_texts(texts)
        limit = min(MAX_TOKENS, self.context_size)
        cut = [self.tokenizer.encode_prompt(text)[:limit] for text in texts]
        rows = self._each(cut, lambda states, _: states[-1].float().cpu(), progress)
        return torch.stack(rows).numpy()

    @torch.inference_mode()
    def _each(
        self,
        sequences: Sequence[Sequence[int]],
        read: Callable[[Tensor, Tensor], R],
        progress: Progress | None,
    ) -> list[R]:
        """Run the LM over sequences of tokens, none of them empty, some at a time.

        Returns, in their order, what `read` makes of the states (T, d) and the tokens (T,) of each.
        """
        # Of one length, so that little is padding; the longest first, so that memory ends at once
        # if it does.
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        results: dict[int, R] = {}
        while len(results) < len(order):
            size = min(self._batch, max(_TOKENS // len(sequences[order[len(results)]]), 1))
            chosen = order[len(results) : len(results) + size]
            rows = [torch.tensor(sequences[i], device=self._model.device) for i in chosen]
            # On the right: no position of a causal LM sees what follows it.
            hidden = self._model.base_model(
                input_ids=pad_sequence(rows, batch_first=True),
                attention_mask=pad_sequence([torch.ones_like(row) for row in rows], True),
                use_cache=False,
            ).last_hidden_state
            for i, states, row in zip(chosen, hidden, rows, strict=True):
                results[i] = read(states[: len(row)], row)
            if progress:
                progress(len(results), len(sequences))
        return [results[i] for i in range(len(sequences))]

    def _log_probabilities(self, states: Tensor, ids: Tensor) -> list[float]:
        """Return the log-probabilities (nats) of all tokens but the first."""
        values: list[float] = []
        for begin in range(0, len(ids) - 1, _ROWS):
            following = ids[begin + 1 : begin + 1 + _ROWS, None]
            logits = self._model.get_output_embeddings()(
                states[begin : begin + len(following)]
            ).float()
            values += (logits.gather(1, following)[:, 0] - logits.logsumexp(-1)).tolist()
        return values


def load_scorer(
    name: str = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> TextScorer:
    """Load a scorer by a folder, the default model's name, or a Hub id such as gpt2-large."""
    model, tokenizer = load_backbone(name, device=device, dtype=dtype, offline=offline)
    return TextScorer(model, tokenizer, short_name(name))


def check_texts(texts: Sequence[str]) -> None:
    """Refuse an empty text: it has no features."""
    if "" in texts:
        raise OptionError(
            f"text {list(texts).index('')} is empty and has no features. Leave it out, on both "
            "sides where texts are compared in pairs."
        )


def _begin_token(tokenizer: HFTokenizer) -> int | None:
    begin: int | None = tokenizer.bos_token_id
    return tokenizer.eos_token_id if begin is None else begin
