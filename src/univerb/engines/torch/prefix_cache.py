"""The KV cache of the last prompts: a request that begins alike does not read it again."""

from collections.abc import Sequence
from os.path import commonprefix
from threading import Lock
from typing import NamedTuple

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from univerb.modeling.parameters import parameter_version

MIN_TOKENS = 64
"""Shorter prefixes are read again: it takes no time, and the bits stay those of one pass."""
MAX_BYTES = 512 << 20
"""Of all entries together."""


class _Entry(NamedTuple):
    version: int
    ids: tuple[int, ...]
    layers: list[tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        return sum(side.nbytes for pair in self.layers for side in pair)


class PrefixCache:
    """Prompts that were read, newest last.

    A cache grows by new tensors, never in place, so keeping one costs nothing but its memory.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = Lock()

    def find(self, model: PreTrainedModel, prompt: Sequence[int]) -> tuple[int, DynamicCache]:
        """Return the number of prompt tokens that are cached, and their KV cache.

        The last token never is: its output is what the caller wants.
        """
        with self._lock:
            now = parameter_version(model.parameters())
            self._entries = [entry for entry in self._entries if entry.version == now]
            wanted = tuple(prompt[:-1])
            shared = [(len(commonprefix([entry.ids, wanted])), entry) for entry in self._entries]
        count, entry = max(shared, key=lambda pair: pair[0], default=(0, None))
        if entry is None or count < MIN_TOKENS:
            return 0, DynamicCache()
        return count, DynamicCache([(k[:, :, :count], v[:, :, :count]) for k, v in entry.layers])

    def add(self, model: PreTrainedModel, prompt: Sequence[int], cache: Cache) -> None:
        """Add the KV cache of a prompt that was just read, and drop the oldest entries."""
        if len(prompt) <= MIN_TOKENS or any(not hasattr(layer, "keys") for layer in cache.layers):
            return
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        new = _Entry(parameter_version(model.parameters()), tuple(prompt), layers)
        if new.nbytes > MAX_BYTES:
            return
        with self._lock:
            # What a longer prompt begins with is found there.
            others = [e for e in self._entries if commonprefix([e.ids, new.ids]) != e.ids]
            self._entries = [*others, new]
            while sum(entry.nbytes for entry in self._entries) > MAX_BYTES:
                self._entries.pop(0)
