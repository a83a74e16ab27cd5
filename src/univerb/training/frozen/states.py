"""What a frozen LM thinks of the training text, computed once and kept on disk (DESIGN 5).

With a frozen backbone and phrases that unfold into tokens, the hidden states over plain text do
not depend on the phrase vectors. One pass over the text therefore serves every step, every epoch
and every experiment; after it no step needs the backbone or a matrix product with |V|.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from univerb.errors import CheckpointError, DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.tokenized import TokenizedText
from univerb.training.texts import Texts

GROUP = 16
"""Passages in one file: half a minute of work to lose when a run is killed."""
# Rows of the |V| matrix product at a time, so that memory stays flat.
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Marked:
    """Some passages, one after the other, token by token, and where phrases may be."""

    ids: Tensor
    """(N,) the tokens."""
    passage: Tensor
    """(N,) which of the passages each belongs to."""
    may_start: Tensor
    may_end: Tensor
    is_barred: Tensor


@dataclass(frozen=True, slots=True)
class States(Marked):
    """The same, with what the LM thinks after each token."""

    hidden: Tensor
    """(N, d) the LM's state after the token, in half precision."""
    total: Tensor
    """(N,) the logsumexp of its logits over V."""
    best: Tensor
    """(N,) the largest of them."""
    own: Tensor
    """(N,) the log-probability of the token that really follows; 0 where none does."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put states one after the other, passages numbered anew."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        passages, base = [], 0
        for column in columns["passage"]:
            passages.append(column + base)
            base += int(column[-1]) + 1 if len(column) else 0
        columns["passage"] = passages
        return cls(**{name: torch.cat(column) for name, column in columns.items()})


def marked(text: TokenizedText) -> Marked:
    """Return a passage without the LM's states."""
    return Marked(
        torch.from_numpy(text.ids.astype("int32")),
        torch.zeros(len(text.ids), dtype=torch.int32),
        torch.from_numpy(text.may_start.copy()),
        torch.from_numpy(text.may_end.copy()),
        torch.from_numpy(text.is_masked.copy()),
    )


@torch.inference_mode()
def read_states(lm: DynamicLM, text: TokenizedText) -> States:
    """Run the LM over a passage.

    Args:
        lm: The frozen LM.
        text: The passage.

    Returns:
        Its states.
    """
    plain = marked(text)
    ids = plain.ids
    given = ids[None].long().to(lm.model.device)
    hidden = lm.model.base_model(input_ids=given, use_cache=False).last_hidden_state[0]
    following = torch.cat([given[0, 1:], given[0, :1]])
    total, best, own = [], [], []
    for begin in range(0, len(ids), _ROWS):
        logits = lm.embeddings.output(hidden[begin : begin + _ROWS]).float()
        total.append(logits.logsumexp(-1))
        best.append(logits.amax(-1))
        truth = following[begin : begin + _ROWS, None]
        own.append(logits.gather(1, truth)[:, 0] - total[-1])
    own[-1][-1] = 0.0
    return States(
        plain.ids,
        plain.passage,
        plain.may_start,
        plain.may_end,
        plain.is_barred,
        hidden.half().cpu(),
        torch.cat(total).cpu(),
        torch.cat(best).cpu(),
        torch.cat(own).cpu(),
    )


class StateCache:
    """The states of a run's passages, in the run's order, computed where they are missing."""

    def __init__(self, folder: Path, lm: DynamicLM, texts: Texts, seed: int) -> None:
        self._folder = folder / f"{fingerprint(lm)}-{texts.fingerprint()}-{seed}"
        self._lm = lm
        self._texts = texts
        self._seed = seed

    def group(self, number: int) -> States:
        """Return the states of `GROUP` passages.

        Args:
            number: Which group, from 0 on.

        Returns:
            Their states, from disk if they are there.

        Raises:
            DocumentError: If there is no text in them.
        """
        path = self._folder / f"{number:06d}.safetensors"
        if path.is_file():
            try:
                return States(**load_file(path))
            except (SafetensorError, TypeError):
                # Cut short by a crash of the machine: what is computed can be computed again.
                path.unlink()
        indices = range(number * GROUP, (number + 1) * GROUP)
        passages = [self._texts.passage(self._seed, index) for index in indices]
        if not any(len(text.ids) for text in passages):
            raise DocumentError("the text has no tokens. Name files with text in data.documents.")
        states = States.joined([read_states(self._lm, text) for text in passages if len(text.ids)])
        self._keep(path, states)
        return states

    def passage(self, index: int) -> Marked:
        """Return a passage of the run's text, whether its states are kept or not."""
        return marked(self._texts.passage(self._seed, index))

    def _keep(self, path: Path, states: States) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({f.name: getattr(states, f.name).contiguous() for f in fields(States)}, draft)
            os.replace(draft, path)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise CheckpointError(
                f"cannot write the states of the text to {str(path)!r}: {error}. Make room, or "
                "name a folder that can be written in frozen.cache."
            ) from error


def fingerprint(lm: DynamicLM) -> str:
    """Return a hash of the backbone's weights."""
    content = hashlib.sha256(lm.tokenizer.fingerprint().encode())
    for name, tensor in sorted(lm.model.state_dict().items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        content.update(plain.view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]
