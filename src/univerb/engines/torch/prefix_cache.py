"""The KV cache of the last prompts: a request that begins alike does not read it again."""

from collections.abc import Sequence

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from univerb.engines.prefixes import PrefixStore
from univerb.modeling.parameters import parameter_version

_Layers = list[tuple[Tensor, Tensor]]
"""Keys and values."""


class PrefixCache:
    """Prompts that were read with the weights as they are.

    A cache grows by new tensors, never in place, so keeping one costs nothing but its memory.
    """

    def __init__(self) -> None:
        self._stores: dict[int, PrefixStore[_Layers]] = {}

    def find(self, model: PreTrainedModel, prompt: Sequence[int]) -> tuple[int, DynamicCache]:
        """Return the number of prompt tokens that are cached, and their KV cache.

        The last token never is: its output is what the caller wants.
        """
        count, layers = self._store(model).find(prompt)
        if layers is None:
            return 0, DynamicCache()
        return count, DynamicCache([(k[:, :, :count], v[:, :, :count]) for k, v in layers])

    def add(self, model: PreTrainedModel, prompt: Sequence[int], cache: Cache) -> None:
        """Add the KV cache of a prompt that was just read."""
        if all(hasattr(layer, "keys") for layer in cache.layers):
            layers = [(layer.keys, layer.values) for layer in cache.layers]
            size = sum(side.nbytes for pair in layers for side in pair)
            self._store(model).add(prompt, layers, size)

    def _store(self, model: PreTrainedModel) -> PrefixStore[_Layers]:
        """Return the entries of the weights as they are now; those of others are dropped."""
        version = parameter_version(model.parameters())
        if version not in self._stores:
            self._stores = {version: PrefixStore()}
        return self._stores[version]
