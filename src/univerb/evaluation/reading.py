"""One pass of the bare LM over a text, to which any number of side branches can be added.

A branch is what the LM would read if the text went on differently from some place on. All branches
are one further pass over the same KV cache, each with a mask that shows it the text before its
place and its own rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from univerb.decoding.engines.torch import forget
from univerb.modeling.dynamic import DynamicLM


class Branch(NamedTuple):
    """Rows that follow the text up to a place."""

    place: int
    """How many tokens of the truth come before it."""
    rows: Tensor
    """(R, d), input vectors."""
    skip: int = 0
    """How many positions it leaves out: a phrase may sit at its last token's."""


class Reading:
    """What the LM says along the truth, given its context."""

    @torch.inference_mode()
    def __init__(self, lm: DynamicLM, context: Sequence[int], truth: Sequence[int]) -> None:
        self._lm = lm
        self._before = len(context)
        self._cache = DynamicCache()
        self.truth = list(truth)
        ids = torch.tensor([[*context, *truth]], device=lm.model.device)
        hidden = lm.model.base_model(
            input_ids=ids, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        self.states: Tensor = hidden[0, self._before - 1 :]
        """(T + 1, d): row t is the state that predicts token t of the truth, or what follows."""
        self.logits: Tensor = lm.embeddings.output(self.states).float()
        """(T + 1, V)."""

    @torch.inference_mode()
    def follow(self, branches: Sequence[Branch]) -> list[Tensor]:
        """Read branches.

        Args:
            branches: What to read.

        Returns:
            For each branch the logits after each of its rows, (R, V).
        """
        sizes = [len(branch.rows) for branch in branches]
        total, past = sum(sizes), self._cache.get_seq_length()
        if not total:
            return [self.logits[:0] for _ in branches]
        device = self.states.device
        allowed = torch.zeros(total, past + total, dtype=torch.bool, device=device)
        positions = torch.empty(total, dtype=torch.long, device=device)
        at = 0
        for branch, size in zip(branches, sizes, strict=True):
            own, start = slice(at, at + size), self._before + branch.place
            allowed[own, :start] = True
            allowed[own, past + at : past + at + size] = torch.ones_like(allowed[own, :size]).tril()
            positions[own] = torch.arange(size, device=device) + start + branch.skip
            at += size
        lowest = torch.finfo(self.states.dtype).min
        # Numbers, not flags: every attention of transformers can add them.
        mask = torch.zeros(total, past + total, dtype=self.states.dtype, device=device)
        hidden = self._lm.model.base_model(
            inputs_embeds=torch.cat([branch.rows for branch in branches])[None],
            past_key_values=self._cache,
            attention_mask=mask.masked_fill(~allowed, lowest)[None, None],
            position_ids=positions[None],
            use_cache=True,
        ).last_hidden_state[0]
        forget(self._cache, total)
        return list(self._lm.embeddings.output(hidden).float().split(sizes))

    def rows(self, ids: Sequence[int]) -> Tensor:
        """Return the input vectors of tokens, (N, d)."""
        given = torch.tensor(list(ids), dtype=torch.long, device=self.states.device)
        vectors: Tensor = self._lm.embeddings.input(given)
        return vectors

    def right_runs(self) -> list[int]:
        """Return how many tokens the LM's greedy continuation gets right from each place on.

        As long as it is right it has read the truth itself, so the one pass tells.
        """
        best = self.logits[:-1].argmax(-1).tolist()
        runs = [0] * (len(self.truth) + 1)
        for place in range(len(self.truth) - 1, -1, -1):
            runs[place] = runs[place + 1] + 1 if best[place] == self.truth[place] else 0
        return runs
