"""One pass of the LM over a text, to which any number of side branches can be added.

A branch is what the LM would read if the text went on differently from some position on. All
branches are one further pass over the text's KV cache, each with a mask that shows it the text
before its position and its own rows. Gradients reach the rows of the branches, never the text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from univerb.modeling.dynamic import DynamicLM


class Branch(NamedTuple):
    """Rows that follow a beginning of the text."""

    position: int
    """Number of tokens of the text that come before it."""
    rows: Tensor
    """(R, d), input vectors."""
    skip: int = 0
    """Number of positions that it leaves out: a phrase may be at its last token's."""


class Branches:
    """A text read once, and rows that go on from any position of it."""

    @torch.no_grad()
    def __init__(self, lm: DynamicLM, ids: Sequence[int]) -> None:
        self._lm = lm
        self._size = len(ids)
        cache = DynamicCache()
        output = lm.model.base_model(
            input_ids=torch.tensor([list(ids)], device=lm.model.device),
            past_key_values=cache,
            use_cache=True,
        )
        self._key_values = [(layer.keys, layer.values) for layer in cache.layers]
        self.hidden: Tensor = output.last_hidden_state[0]
        """(N, d), the states after each token."""

    def read(self, branches: Sequence[Branch]) -> Tensor:
        """Return the states after the branches' rows, branch after branch: (sum of R, d)."""
        sizes = [len(branch.rows) for branch in branches]
        total, past, device = sum(sizes), self._size, self.hidden.device
        if not total:
            return self.hidden[:0]
        allowed = torch.zeros(total, past + total, dtype=torch.bool, device=device)
        positions = torch.empty(total, dtype=torch.long, device=device)
        begin = 0
        for branch, size in zip(branches, sizes, strict=True):
            end = begin + size
            rows = allowed[begin:end]
            rows[:, : branch.position] = True
            rows[:, past + begin : past + end] = torch.ones_like(rows[:, :size]).tril()
            positions[begin:end] = torch.arange(size, device=device) + branch.position + branch.skip
            begin = end
        lowest = torch.finfo(self.hidden.dtype).min
        # Numbers, not flags: every attention of transformers can add them.
        mask = torch.zeros(total, past + total, dtype=self.hidden.dtype, device=device)
        states: Tensor = self._lm.model.base_model(
            inputs_embeds=torch.cat([branch.rows for branch in branches])[None],
            # A cache of its own, so that later branches do not see these rows.
            past_key_values=DynamicCache(self._key_values),
            attention_mask=mask.masked_fill(~allowed, lowest)[None, None],
            position_ids=positions[None],
            use_cache=True,
        ).last_hidden_state[0]
        return states
