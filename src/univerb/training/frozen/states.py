"""States of the frozen LM over the training text, computed once and cached on disk.

With a frozen backbone and phrases that unfold into tokens, the hidden states over plain text do
not depend on the phrase vectors. One pass over the text therefore serves every step, every epoch
and every experiment; after it no step needs the backbone or a matrix product with |V|.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from univerb.errors import DocumentError
from univerb.files import atomic_path
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.tokenized import TokenizedText
from univerb.training.snapshots import digest, write_errors
from univerb.training.training_passages import Passages

GROUP = 16
"""Passages in one file: half a minute of work to lose when a run is killed."""
# Rows of the |V| matrix product at a time, so that memory stays flat.
_ROWS = 256


@dataclass(frozen=True, slots=True)
class TokenizedPassages:
    """Passages, one after the other, token by token, and where phrases may be."""

    ids: Tensor
    """(N,) the tokens."""
    passage: Tensor
    """(N,) the passage that each belongs to."""
    may_start: Tensor
    may_end: Tensor
    is_masked: Tensor

    @classmethod
    def of(cls, text: TokenizedText) -> "TokenizedPassages":
        """Return one passage."""
        return TokenizedPassages(
            torch.from_numpy(text.ids.astype("int32")),
            torch.zeros(len(text.ids), dtype=torch.int32),
            torch.from_numpy(text.may_start.copy()),
            torch.from_numpy(text.may_end.copy()),
            torch.from_numpy(text.is_masked.copy()),
        )


@dataclass(frozen=True, slots=True)
class States(TokenizedPassages):
    """The same, with what the LM computes after each token."""

    hidden: Tensor
    """(N, d) its state, in half precision."""
    logsumexp: Tensor
    """(N,) of its logits over V."""
    max_logit: Tensor
    """(N,) the largest of them."""
    next_logprob: Tensor
    """(N,) the log-probability of the token that follows in the text; 0 where none does."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the states of single passages."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        columns["passage"] = [part.passage + number for number, part in enumerate(parts)]
        return cls(**{name: torch.cat(column) for name, column in columns.items()})


@torch.inference_mode()
def read_states(lm: DynamicLM, text: TokenizedText) -> States:
    """Run the frozen LM over a passage."""
    plain = TokenizedPassages.of(text)
    ids = plain.ids[None].long().to(lm.model.device)
    hidden = lm.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    following = torch.cat([ids[0, 1:], ids[0, :1]])
    logsumexp, max_logit, next_logprob = [], [], []
    for begin in range(0, len(plain.ids), _ROWS):
        logits = lm.embeddings.output(hidden[begin : begin + _ROWS]).float()
        logsumexp.append(logits.logsumexp(-1))
        max_logit.append(logits.amax(-1))
        truth = following[begin : begin + _ROWS, None]
        next_logprob.append(logits.gather(1, truth)[:, 0] - logsumexp[-1])
    next_logprob[-1][-1] = 0.0
    return States(
        **{field.name: getattr(plain, field.name) for field in fields(plain)},
        hidden=hidden.half().cpu(),
        logsumexp=torch.cat(logsumexp).cpu(),
        max_logit=torch.cat(max_logit).cpu(),
        next_logprob=torch.cat(next_logprob).cpu(),
    )


class StateCache:
    """The states of a run's passages, in the run's order, computed where they are missing."""

    def __init__(self, folder: Path, lm: DynamicLM, passages: Passages, seed: int) -> None:
        backbone = digest(lm.tokenizer.fingerprint(), lm.model.state_dict())[:16]
        self._folder = folder / f"{backbone}-{passages.fingerprint()}-{seed}"
        self._lm = lm
        self._passages = passages
        self._seed = seed

    def group(self, number: int) -> States:
        """Return the states of the `GROUP` passages with this number, from disk if possible."""
        path = self._folder / f"{number:06d}.safetensors"
        if path.is_file():
            try:
                return States(**load_file(path))
            except (SafetensorError, TypeError):
                # Damaged by a crash of the machine: what was computed can be computed again.
                path.unlink()
        indices = range(number * GROUP, (number + 1) * GROUP)
        texts = [self._passages.tokens(self._seed, index) for index in indices]
        if not any(len(text.ids) for text in texts):
            raise DocumentError("the text has no tokens. Name files with text in data.documents.")
        states = States.joined([read_states(self._lm, text) for text in texts if len(text.ids)])
        with write_errors(path, "Make room, or name a folder that can be written in frozen.cache."):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as draft:
                columns = {f.name: getattr(states, f.name).contiguous() for f in fields(States)}
                save_file(columns, draft)
        return states

    def passage(self, index: int) -> TokenizedPassages:
        """Return a passage of the run's text, without states."""
        return TokenizedPassages.of(self._passages.tokens(self._seed, index))
