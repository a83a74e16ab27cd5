"""A causal LM that scores texts: their perplexity (METHOD C.3), and their features for MAUVE (C.1).

By default it is the default backbone; the published figures are gpt2-large's. What two scorers say
does not compare, so every table prints the name of its own.
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
from univerb.lab.protocols.cache import weights_hash
from univerb.lab.protocols.hf_models import short_name
from univerb.locations import DEFAULT_MODEL
from univerb.modeling.backbones import check_usable, load_backbone
from univerb.modeling.dynamic import DynamicLM
from univerb.tokenizer import Tokenizer

Progress = Callable[[int, int], object]
"""Is told how many texts or windows are done, and of how many."""
R = TypeVar("R")

# Rows of the |V| matrix product at a time, so that memory stays flat.
_ROWS = 256
# Tokens of a pass, if it has more than one sequence: a CPU reads long windows faster one by one.
_TOKENS = 2048


class TextScorer:
    """Scores texts with one LM.

    Args:
        model: The LM, in evaluation mode; it stays as it is.
        tokenizer: Its fast tokenizer.
        name: What tables call it.
        batch: Texts or windows that are read at a time, at most.

    Raises:
        ModelError: If its logits are not those of its output layer.
        OptionError: If batch is not positive.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: HFTokenizer, name: str, *, batch: int = 8
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch is {batch}; read at least 1 text at a time.")
        check_usable(model, tokenizer)
        self._model, self._batch = model, batch
        self._begin = _begin_token(tokenizer)
        self.tokenizer = Tokenizer(tokenizer.backend_tokenizer)
        """Makes the tokens that `features` takes."""
        precision = str(model.dtype).removeprefix("torch.")
        self.name = name if precision == "float32" else f"{name} ({precision})"
        """Printed in every table."""

    @classmethod
    def of(cls, lm: DynamicLM, *, batch: int = 8) -> Self:
        """Score with the backbone of a loaded LM, without phrases.

        Args:
            lm: The LM; it is neither changed nor copied.
            batch: Texts or windows that are read at a time.

        Returns:
            The scorer.

        Raises:
            OptionError: If an adapter was added to the backbone.
        """
        if lm.adapter:
            raise OptionError(
                f"{lm.name!r} was loaded with its adapter, so its backbone is not what its name "
                "says. Load the scorer by name: load_scorer()."
            )
        return cls(lm.model, lm.hf_tokenizer, short_name(lm.model.name_or_path), batch=batch)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that its figures depend on: two models may have one name."""
        return f"{self.name} {weights_hash(self._model)} {self.tokenizer.fingerprint()}"

    @property
    def context_size(self) -> int:
        """How many positions the LM can see."""
        config = self._model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    def stream_perplexity(self, texts: Sequence[str], progress: Progress | None = None) -> float:
        """Return the perplexity of texts as one stream, cut into windows: the published figure.

        Args:
            texts: Each with its prefix.
            progress: Is told how many windows are done.

        Returns:
            The perplexity; NaN if there is no text.
        """
        # No begin token: only the first window would have it.
        ids = self.tokenizer.encode(stream_text(texts)).ids
        own = windows(ids, min(WINDOW, self.context_size))
        return stream_perplexity(self._each(own, self._log_probabilities, progress))

    def per_sample_perplexity(
        self, texts: Sequence[str], progress: Progress | None = None
    ) -> float:
        """Return the mean of the perplexities of texts, each after a begin token.

        That is the tokenizer's own, or, where it has none, the token that ends a text.

        Args:
            texts: Each with its prefix; what is beyond the context is not read.
            progress: Is told how many texts are done.

        Returns:
            The mean; NaN if there is no text.

        Raises:
            ModelError: If the tokenizer has neither token.
        """
        if self._begin is None:
            raise ModelError(
                f"the tokenizer of {self.name!r} has no token that begins or ends a text. Use "
                "stream_perplexity, which needs none."
            )
        own = [[self._begin, *self.tokenizer.encode(text).ids] for text in texts]
        fitting = [ids[: self.context_size] for ids in own]
        return per_sample_perplexity(self._each(fitting, self._log_probabilities, progress))

    def features(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        *,
        max_tokens: int = MAX_TOKENS,
        progress: Progress | None = None,
    ) -> NDArray[numpy.float32]:
        """Return the LM's last state, after the final norm, at the last token of each text.

        Args:
            texts: Texts, or tokens of this scorer's tokenizer.
            max_tokens: Read so many tokens of each at most, and never more than the context.
            progress: Is told how many texts are done.

        Returns:
            (N, d), in the order of the texts.

        Raises:
            OptionError: If a text has no token, or max_tokens is not positive.
        """
        if max_tokens < 1:
            raise OptionError(f"max_tokens is {max_tokens}; read at least 1 token of each text.")
        size = min(max_tokens, self.context_size)
        own = [self._ids(text)[:size] for text in texts]
        if [] in own:
            raise OptionError(
                f"text {own.index([])} is empty and has no features. Leave it out, on both sides "
                "where texts are compared in pairs."
            )
        found = self._each(own, lambda states, _: states[-1].float().cpu(), progress)
        width = self._model.get_output_embeddings().weight.shape[1]
        rows = torch.stack(found) if found else torch.zeros(0, width)
        return rows.numpy()

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return list(text)
        # As it would be prompted: with the special tokens that the tokenizer adds by itself.
        return self.tokenizer.encode_prompt(text) if text else []

    @torch.inference_mode()
    def _each(
        self,
        sequences: Sequence[Sequence[int]],
        read: Callable[[Tensor, Tensor], R],
        progress: Progress | None,
    ) -> list[R]:
        """Run the LM over sequences, some at a time.

        Args:
            sequences: Tokens, none of them empty.
            read: Makes something of the states (T, d) and the tokens (T,) of one sequence.
            progress: Is told how many are done.

        Returns:
            What was made of each, in the order given.
        """
        # Of one length, so that little is padding; the longest first, so that memory ends at once
        # if it does.
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        found: dict[int, R] = {}
        while len(found) < len(order):
            most = min(self._batch, max(_TOKENS // len(sequences[order[len(found)]]), 1))
            own = order[len(found) : len(found) + most]
            rows = [torch.tensor(sequences[i], device=self._model.device) for i in own]
            # On the right: no position of a causal LM sees what follows it.
            hidden = self._model.base_model(
                input_ids=pad_sequence(rows, batch_first=True),
                attention_mask=pad_sequence([torch.ones_like(row) for row in rows], True),
                use_cache=False,
            ).last_hidden_state
            for i, states, row in zip(own, hidden, rows, strict=True):
                found[i] = read(states[: len(row)], row)
            if progress:
                progress(len(found), len(sequences))
        return [found[i] for i in range(len(sequences))]

    def _log_probabilities(self, states: Tensor, ids: Tensor) -> list[float]:
        """Return the log-probabilities (nats) of all tokens but the first."""
        found: list[float] = []
        for begin in range(0, len(ids) - 1, _ROWS):
            following = ids[begin + 1 : begin + 1 + _ROWS, None]
            logits = self._model.get_output_embeddings()(
                states[begin : begin + len(following)]
            ).float()
            found += (logits.gather(1, following)[:, 0] - logits.logsumexp(-1)).tolist()
        return found


def load_scorer(
    name: str = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 8,
    offline: bool | None = None,
) -> TextScorer:
    """Load a scorer.

    Args:
        name: A folder, the default model's name, or a Hub id such as gpt2-large.
        device: Where to put it, as torch names devices.
        dtype: float32, bfloat16 or float16.
        batch: Texts or windows that are read at a time.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The scorer.
    """
    model, tokenizer = load_backbone(name, device=device, dtype=dtype, offline=offline)
    return TextScorer(model, tokenizer, short_name(name), batch=batch)


def _begin_token(tokenizer: HFTokenizer) -> int | None:
    found: int | None = tokenizer.bos_token_id
    return tokenizer.eos_token_id if found is None else found
