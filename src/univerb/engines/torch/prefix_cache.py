"""The KV cache of the last prompts: a request that begins alike does not read it again."""

from collections.abc import Sequence
from os.path import commonprefix
from threading import Lock
from typing import NamedTuple

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from univerb.engines.torch.prepacked import stamp

LEAST = 64
"""Shorter beginnings are read again: it takes no time, and the bits stay those of one pass."""
MOST_BYTES = 512 << 20
"""What is kept in all."""


class _Kept(NamedTuple):
    stamp: int
    ids: tuple[int, ...]
    layers: list[tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        return sum(side.nbytes for pair in self.layers for side in pair)


class Prefixes:
    """Prompts that were read, newest last.

    A cache grows by new tensors, never in place, so keeping one costs nothing but its memory.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._lock = Lock()

    def find(self, model: PreTrainedModel, prompt: Sequence[int]) -> tuple[int, DynamicCache]:
        """Return how much of a prompt is known, and the cache of it; the last token never is."""
        with self._lock:
            now = stamp(model.parameters())
            self._kept = [kept for kept in self._kept if kept.stamp == now]
            wanted = tuple(prompt[:-1])
            found = [(len(commonprefix([kept.ids, wanted])), kept) for kept in self._kept]
        count, kept = max(found, key=lambda one: one[0], default=(0, None))
        if kept is None or count < LEAST:
            return 0, DynamicCache()
        return count, DynamicCache([(k[:, :, :count], v[:, :, :count]) for k, v in kept.layers])

    def keep(self, model: PreTrainedModel, prompt: Sequence[int], cache: Cache) -> None:
        """Keep the cache of a prompt that was just read, and drop the oldest ones."""
        if len(prompt) <= LEAST or any(not hasattr(layer, "keys") for layer in cache.layers):
            return
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        own = _Kept(stamp(model.parameters()), tuple(prompt), layers)
        if own.nbytes > MOST_BYTES:
            return
        with self._lock:
            # What a longer prompt begins with is found there.
            others = [kept for kept in self._kept if commonprefix([kept.ids, own.ids]) != kept.ids]
            self._kept = [*others, own]
            while sum(kept.nbytes for kept in self._kept) > MOST_BYTES:
                self._kept.pop(0)
