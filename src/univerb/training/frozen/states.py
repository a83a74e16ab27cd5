"""States of the frozen LM over the training text: computed once, used while they are young.

With a frozen backbone and phrases that unfold into tokens, the hidden states over plain text do
not depend on the phrase vectors. One pass over the text therefore serves a run and its resumption;
after it no step needs the backbone or a matrix product with |V|.
"""

from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from univerb.errors import DocumentError
from univerb.files import atomic_path
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.tokenized import TokenArrays
from univerb.training.frozen.retrieved import RetrievedPassages, RetrievedText
from univerb.training.snapshots import digest, write_errors

GROUP = 16
"""Passages in one file: half a minute of work to lose when a run is killed."""
# Rows of the |V| matrix product at a time, so that memory stays flat.
_ROWS = 256


@dataclass(frozen=True, slots=True)
class PassageStates:
    """A passage, its candidates, and what the LM computes after each of its tokens."""

    ids: Tensor
    """(N,) all tokens."""
    text: TokenArrays
    """The same, with a break for tokens that no phrase may contain, and at the end."""
    begin: int
    """The first token of the passage itself; before it there may be retrieved chunks."""
    pool: TokenArrays
    hidden: Tensor
    """(N, d) the LM's state, in half precision."""
    logsumexp: Tensor
    """(N,) of its logits over V."""
    best: Tensor
    """(N,) its likeliest next token."""
    next_logprob: Tensor
    """(N,) the log-probability of the token that follows in the text; 0 where none does."""

    def to_tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors by name."""
        arrays = {"text": self.text, "pool": self.pool}
        tensors = {
            f"{name}.{part}": torch.from_numpy(numpy.ascontiguousarray(getattr(array, part)))
            for name, array in arrays.items()
            for part in TokenArrays._fields
        }
        tensors |= {f.name: getattr(self, f.name) for f in fields(self) if f.type is Tensor}
        return tensors | {"begin": torch.tensor([self.begin])}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "PassageStates":
        """Read what `to_tensors` returned."""
        values: dict[str, Any] = {n: t for n, t in tensors.items() if "." not in n}
        for name in ("text", "pool"):
            parts = (tensors[f"{name}.{part}"].numpy() for part in TokenArrays._fields)
            values[name] = TokenArrays(*parts)
        return cls(**values | {"begin": int(tensors["begin"][0])})


@torch.inference_mode()
def read_states(lm: DynamicLM, passage: RetrievedText) -> PassageStates:
    """Run the frozen LM over a passage."""
    ids = torch.from_numpy(passage.ids.astype(numpy.int64))[None].to(lm.model.device)
    if not ids.numel():
        nothing = torch.empty(0)
        states = torch.empty(0, lm.width, dtype=torch.float16)
        return PassageStates(ids[0].int(), *passage[1:], states, nothing, nothing.int(), nothing)
    hidden = lm.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    following = torch.cat([ids[0, 1:], ids[0, :1]])
    logsumexp, best, next_logprob = [], [], []
    for begin in range(0, len(hidden), _ROWS):
        logits = lm.embeddings.output(hidden[begin : begin + _ROWS]).float()
        logsumexp.append(logits.logsumexp(-1))
        best.append(logits.argmax(-1))
        truth = following[begin : begin + _ROWS, None]
        next_logprob.append(logits.gather(1, truth)[:, 0] - logsumexp[-1])
    next_logprob[-1][-1] = 0.0
    return PassageStates(
        ids[0].int().cpu(),
        *passage[1:],
        hidden=hidden.half().cpu(),
        logsumexp=torch.cat(logsumexp).cpu(),
        best=torch.cat(best).int().cpu(),
        next_logprob=torch.cat(next_logprob).cpu(),
    )


class StateCache:
    """The states of a run's passages, in the run's order, computed where they are missing.

    Args:
        folder: Where files are kept.
        reader: The LM that reads; maybe in half the precision of the one that is trained for.
        passages: The text.
        name: What the states depend on, but for the LM.
        keep: Groups that stay on the disk behind the one in use; None for all.
    """

    def __init__(
        self,
        folder: Path,
        reader: DynamicLM,
        passages: RetrievedPassages,
        name: str,
        keep: int | None = None,
    ) -> None:
        backbone = digest(reader.tokenizer.fingerprint(), reader.model.state_dict())[:16]
        self._folder = folder / f"{backbone}-{name}"
        self._reader = reader
        self._passages = passages
        self._keep = keep
        self._group: tuple[int, list[PassageStates]] | None = None

    def passage(self, index: int) -> PassageStates:
        """Return passage `index` of the run."""
        number, place = divmod(index, GROUP)
        if self._group is None or self._group[0] != number:
            self._group = number, self._load(number)
        return self._group[1][place]

    def _load(self, number: int) -> list[PassageStates]:
        path = self._path(number)
        # What is missing, or damaged by a crash of the machine, can be computed again.
        with suppress(FileNotFoundError, SafetensorError, KeyError, TypeError):
            return _unpacked(load_file(path))
        texts = (self._passages.text(number * GROUP + place) for place in range(GROUP))
        states = [read_states(self._reader, text) for text in texts]
        if not any(len(each.hidden) for each in states):
            raise DocumentError("the text has no tokens. Name files with text in data.documents.")
        with write_errors(path, "Make room, or name a folder that can be written in frozen.cache."):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as draft:
                save_file(_packed(states), draft)
            if self._keep is not None:
                self._drop_before(number - self._keep)
        return states

    def _drop_before(self, number: int) -> None:
        for path in self._folder.glob("*.safetensors"):
            if path.name < self._path(number).name:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.safetensors"


def _packed(states: list[PassageStates]) -> dict[str, Tensor]:
    return {
        f"{place}/{name}": tensor.contiguous()
        for place, each in enumerate(states)
        for name, tensor in each.to_tensors().items()
    }


def _unpacked(tensors: dict[str, Tensor]) -> list[PassageStates]:
    parts: list[dict[str, Tensor]] = [{} for _ in range(GROUP)]
    for key, tensor in tensors.items():
        place, name = key.split("/")
        parts[int(place)][name] = tensor
    return [PassageStates.from_tensors(part) for part in parts]
