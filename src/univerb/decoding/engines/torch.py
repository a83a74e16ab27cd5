"""The reference engine: the user's own HF model, on any device that torch has.

A batch shares one cache. Sequences that read fewer rows than others, or take rows back, leave
masked slots behind; slots that are masked for all are cropped. A single sequence never needs a
mask, so its computation is exactly that of the bare model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from univerb.config import Positions
from univerb.decoding.engines.base import Output, PhraseRow, Row
from univerb.modeling.dynamic import DynamicLM


class TorchSession:
    """A batch of sequences over one KV cache."""

    def __init__(self, lm: DynamicLM, positions: Positions = "unit") -> None:
        self._lm = lm
        self._by_token = positions == "token"
        self._cache = DynamicCache()
        self._mask = torch.zeros(0, 0, dtype=torch.bool)
        """(B, slots): which slots of the cache hold a row that counts."""
        self._next: list[int] = []
        """The position of each sequence's next row."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Read the prompts; returns the last row of each."""
        longest = max(map(len, prompts))
        device = self._lm.model.device
        ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
        self._mask = torch.zeros(len(prompts), longest, dtype=torch.bool, device=device)
        for row, prompt in enumerate(prompts):
            # Padded on the left, so that the last column is the last token of all.
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            self._mask[row, longest - len(prompt) :] = True
        self._next = [len(prompt) for prompt in prompts]
        positions = (self._mask.long().cumsum(dim=1) - 1).clamp_min(0)
        hidden = self._forward(self._lm.embeddings.input(ids), positions)[:, -1:]
        logits = self._lm.embeddings.output(hidden).float()
        return [Output(h, z) for h, z in zip(hidden, logits, strict=True)]

    def step(self, rows: Sequence[Sequence[Row]]) -> list[Output]:
        """Read further rows of every sequence in one pass."""
        width = max(map(len, rows))
        device = self._lm.model.device
        positions = torch.zeros(len(rows), width, dtype=torch.long, device=device)
        fresh = torch.zeros(len(rows), width, dtype=torch.bool, device=device)
        for index, own in enumerate(rows):
            fresh[index, : len(own)] = True
            for column, row in enumerate(own):
                at = self._next[index]
                if self._by_token and isinstance(row, PhraseRow):
                    at += row.length - 1
                positions[index, column] = at
                self._next[index] = at + 1
        self._mask = torch.cat([self._mask, fresh], dim=1)
        hidden = self._forward(self._embed(rows, width), positions)
        logits = self._lm.embeddings.output(hidden).float()
        return [Output(hidden[i, : len(r)], logits[i, : len(r)]) for i, r in enumerate(rows)]

    def rewind(self, counts: Sequence[int]) -> None:
        """Forget the last rows of each sequence."""
        for index, count in enumerate(counts):
            if count:
                used = self._mask[index].nonzero()[-count:, 0]
                self._mask[index, used] = False
                self._next[index] -= count
        empty = self._mask.flip(1).any(dim=0).long().cumsum(dim=0).eq(0).sum()
        if spare := int(empty):
            self._mask = self._mask[:, :-spare]
            forget(self._cache, spare)

    def select(self, indices: Sequence[int]) -> None:
        """Keep these sequences in this order; naming one twice forks it."""
        chosen = torch.tensor(indices, device=self._mask.device)
        self._cache.batch_select_indices(chosen)
        self._mask = self._mask[chosen]
        self._next = [self._next[index] for index in indices]

    def _embed(self, rows: Sequence[Sequence[Row]], width: int) -> Tensor:
        """Return the rows as vectors, (B, width, d)."""
        ids = [
            [row if isinstance(row, int) else 0 for row in own] + [0] * (width - len(own))
            for own in rows
        ]
        vectors: Tensor = self._lm.embeddings.input(torch.tensor(ids, device=self._lm.model.device))
        for index, own in enumerate(rows):
            for column, row in enumerate(own):
                if isinstance(row, PhraseRow):
                    vectors[index, column] = row.vector
        return vectors

    def _forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        mask = None if bool(self._mask.all()) else self._mask.long()
        hidden: Tensor = self._lm.model.base_model(
            inputs_embeds=vectors,
            past_key_values=self._cache,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
        ).last_hidden_state
        return hidden


def forget(cache: Cache, count: int) -> None:
    """Remove the newest slots of a KV cache.

    `Cache.crop` has meant the length to keep and the number to remove in different releases; a
    negative number has always meant this. No other place calls it, and a test pins it.
    """
    cache.crop(-count)
