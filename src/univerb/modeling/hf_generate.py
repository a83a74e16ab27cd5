"""HF `generate()` over V' = V + P: beams, penalties, processors and all, phrase ids included.

The model that is returned shares every weight with the user's, which stays as it is: only the
modules on the way to the two embedding layers are shallow copies.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.table_tensors import TableTensors
from univerb.vocabulary import DynamicVocabulary

Current = Callable[[], TableTensors | None]
"""Returns the phrase table as it is now."""


class DynamicEmbedding(nn.Module):
    """Looks ids up in the LM's input matrix, or in the phrase table from |V| on."""

    def __init__(self, static: nn.Module, table: Current, static_size: int) -> None:
        super().__init__()
        self.static = static
        self.static_size = static_size
        self._table = table

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to vectors (B, T, d)."""
        is_phrase = ids >= self.static_size
        vectors: Tensor = self.static(ids.masked_fill(is_phrase, 0))
        table = self._table() if bool(is_phrase.any()) else None
        if table is not None:
            vectors[is_phrase] = table.inputs[ids[is_phrase] - self.static_size]
        return vectors


class DynamicHead(nn.Module):
    """Appends the phrases' logits to the LM's own.

    It sees states, no ids. So in the conditional form no overlap counts: nothing gains by being the
    rest of a phrase. `univerb.generate` knows the text and may choose otherwise.
    """

    def __init__(self, static: nn.Module, table: Current) -> None:
        super().__init__()
        self.static = static
        self._table = table

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (B, T, d) to logits (B, T, V + P)."""
        logits: Tensor = self.static(hidden)
        table = self._table()
        return logits if table is None else table.unit_logits(logits, hidden)


def for_generate(lm: DynamicLM, vocabulary: DynamicVocabulary) -> PreTrainedModel:
    """Return a model whose `generate()` may choose the vocabulary's phrases, which may grow.

    It shares its weights with `lm.model`. Turn its output into text with `expand`.
    """
    table = partial(lm.tensors, vocabulary)
    base_name = lm.model.base_model_prefix
    model = _shallow(lm.model)
    setattr(model, base_name, _shallow(lm.model.base_model))
    model.set_input_embeddings(DynamicEmbedding(lm.embeddings.input, table, lm.static_size))
    model.set_output_embeddings(DynamicHead(lm.embeddings.output, table))
    return model


def expand(ids: Iterable[int], vocabulary: DynamicVocabulary) -> list[int]:
    """Replace phrase ids by the tokens they stand for, ready for the tokenizer's decode."""
    tokens: list[int] = []
    for unit in ids:
        tokens += vocabulary.phrase(unit).ids if unit >= vocabulary.static_size else (unit,)
    return tokens


def _shallow(module: nn.Module) -> PreTrainedModel:
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return cast(PreTrainedModel, clone)
