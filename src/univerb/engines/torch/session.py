"""The reference engine: the user's own HF model, on any device that torch has.

A batch shares one cache. Sequences that read fewer rows than others, or take rows back, leave
masked slots behind; slots that are masked for all are cropped, and when too many are masked for
some, each sequence's own are moved together. A single sequence never needs a mask, so its
computation is exactly that of the bare model.

Where there are phrases, two things make a difference of some last bits: passes over a few rows use
prepacked weights (`PrepackedModel`), and what the last prompts had in common with this one is not
read again (`PrefixCache`). Without phrases every bit is the bare model's; in a batch, that of the
bare model in a batch.
"""

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from univerb.config import GenerationConfig, KernelDtype, Positions
from univerb.engines.base import Floats, Output, PhraseRow, Row
from univerb.engines.row_costs import RowCosts
from univerb.engines.row_timing import row_costs
from univerb.engines.torch.phrase_weights import TorchPhraseWeights
from univerb.engines.torch.prefix_cache import PrefixCache
from univerb.engines.torch.prepacked import can_prepack, prepacked_model, skip_padding
from univerb.engines.torch.sampling import TorchSampler, make_sampler
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.parameters import has_adapter

_MAX_PREPACKED_ROWS = 64
"""Passes over more rows use the model itself."""
_MAX_SLOTS_PER_ROW = 1.25
"""Slots of a batch for each row of its longest sequence: attention reads them all."""
_prefix_caches: WeakKeyDictionary[DynamicLM, dict[KernelDtype, PrefixCache]] = WeakKeyDictionary()
"""Of each LM, by the weights that the prompts were read with."""


class TorchEngine:
    """Computes with torch for a `DynamicLM`."""

    def __init__(self, lm: DynamicLM) -> None:
        self._lm = lm

    @property
    def has_equal_rows(self) -> bool:
        """True of prepacked weights; on a GPU it is near enough."""
        return self._lm.model.device.type != "cpu" or can_prepack(self._lm.model)

    def row_costs(self, config: GenerationConfig) -> RowCosts:
        """Return what passes over several rows cost, with prepacked weights where there are any."""
        model = self._lm.model
        kernels = f"{config.dtype} prepacked" if can_prepack(model) else model.dtype
        name = Path(self._lm.name).name or type(model).__name__
        where = f"{model.device}, {torch.get_num_threads()} threads"
        label = f"torch {torch.__version__}, {name}, {kernels}, {where}"
        identity = (self._lm.name, model.num_parameters(), model.dtype)

        def begin() -> TorchSession:
            return TorchSession(self._lm, dtype=config.dtype, has_phrases=True)

        return row_costs(begin, self._lm.context_size, label, *identity)

    def session(
        self, config: GenerationConfig, *, has_phrases: bool, needs_states: bool = True
    ) -> "TorchSession":
        """Begin a batch of sequences; states are there whether phrases come or not."""
        return TorchSession(
            self._lm,
            config.positions,
            config.dtype,
            has_phrases=has_phrases,
            prefix_cache=config.prefix_cache,
        )

    def sampler(self, config: GenerationConfig) -> TorchSampler:
        """Make a sampler for one sequence."""
        return make_sampler(config, self._lm.model.device)

    def phrase_weights(self) -> TorchPhraseWeights:
        """Make what multiplies the rows of one sequence's phrases."""
        return TorchPhraseWeights(self._lm.model.device)


class TorchSession:
    """A batch of sequences over one KV cache."""

    def __init__(
        self,
        lm: DynamicLM,
        positions: Positions = "unit",
        dtype: KernelDtype = "float32",
        *,
        has_phrases: bool = False,
        prefix_cache: bool = False,
    ) -> None:
        self._lm = lm
        self._prepacked = prepacked_model(lm, dtype) if has_phrases else None
        self._prefixes: PrefixCache | None = None
        if has_phrases and prefix_cache and not lm.has_window and not has_adapter(lm.model):
            caches = _prefix_caches.setdefault(lm, {})
            self._prefixes = caches.setdefault(dtype, PrefixCache())
        self._by_token = positions == "token"
        self._cache = DynamicCache()
        self._mask = numpy.zeros((0, 0), dtype=bool)
        """(B, slots): which slots of the cache hold a row that is not masked."""
        self._next: list[int] = []
        """The position of each sequence's next row."""

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Read the prompts; returns the last row of each."""
        cached = 0
        if len(prompts) == 1 and self._prefixes is not None:
            cached, self._cache = self._prefixes.find(self._lm.model, prompts[0])
        longest = max(map(len, prompts))
        ids = numpy.zeros((len(prompts), longest), dtype=numpy.int64)
        self._mask = numpy.zeros((len(prompts), longest), dtype=bool)
        for row, prompt in enumerate(prompts):
            # Padded on the left, so that the last column is the last token of all.
            ids[row, longest - len(prompt) :] = prompt
            self._mask[row, longest - len(prompt) :] = True
        self._next = [len(prompt) for prompt in prompts]
        positions = (self._mask.cumsum(axis=1) - 1).clip(min=0)
        vectors = self._lm.embeddings.input(self._to_device(ids[:, cached:]))
        row_mask = self._mask[:, cached:]
        outputs = self._forward(vectors, positions[:, cached:], row_mask, only_last=True)
        if len(prompts) == 1 and self._prefixes is not None:
            self._prefixes.add(self._lm.model, prompts[0], self._cache)
        return [Output(hidden, logits) for hidden, logits in zip(*outputs, strict=True)]

    @torch.inference_mode()
    def step(self, rows: Sequence[Sequence[Row]]) -> list[Output]:
        """Read further rows of every sequence in one pass."""
        width = max(map(len, rows))
        positions = numpy.zeros((len(rows), width), dtype=numpy.int64)
        row_mask = numpy.zeros((len(rows), width), dtype=bool)
        for index, sequence_rows in enumerate(rows):
            row_mask[index, : len(sequence_rows)] = True
            for column, row in enumerate(sequence_rows):
                position = self._next[index]
                if self._by_token and isinstance(row, PhraseRow):
                    position += row.length - 1
                positions[index, column] = position
                self._next[index] = position + 1
        self._mask = numpy.concatenate([self._mask, row_mask], axis=1)
        hidden, logits = self._forward(self._embed(rows, width), positions, row_mask)
        return [Output(hidden[i, : len(r)], logits[i, : len(r)]) for i, r in enumerate(rows)]

    def rewind(self, counts: Sequence[int]) -> None:
        """Drop the last rows of each sequence."""
        for index, count in enumerate(counts):
            if count:
                used = numpy.flatnonzero(self._mask[index])[-count:]
                self._mask[index, used] = False
                self._next[index] -= count
        used = numpy.flatnonzero(self._mask.any(axis=0))
        if spare := self._mask.shape[1] - (int(used[-1]) + 1 if used.size else 0):
            self._mask = self._mask[:, :-spare]
            crop(self._cache, spare)
        longest = int(self._mask.sum(axis=1).max())
        if self._mask.shape[1] > _MAX_SLOTS_PER_ROW * longest:
            self._compact(longest)

    def _compact(self, longest: int) -> None:
        """Drop masked slots: attention depends on a row's position, not on its slot."""
        # Stable: masked slots first, then the others in their order.
        slots = numpy.argsort(self._mask, axis=1, kind="stable")[:, -longest:]
        self._mask = numpy.take_along_axis(self._mask, slots, axis=1)
        index = self._to_device(slots)[:, None, :, None]
        for layer in self._cache.layers:
            if not layer.is_initialized:
                continue
            keys, values = layer.keys, layer.values
            layer.keys = keys.gather(2, index.expand(-1, keys.shape[1], -1, keys.shape[3]))
            layer.values = values.gather(2, index.expand(-1, values.shape[1], -1, values.shape[3]))

    def select(self, indices: Sequence[int]) -> None:
        """Keep these sequences in this order; naming one twice forks it."""
        self._cache.batch_select_indices(self._to_device(numpy.array(indices)))
        self._mask = self._mask[list(indices)]
        self._next = [self._next[index] for index in indices]

    def _to_device(self, numbers: numpy.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._lm.model.device)

    def _embed(self, rows: Sequence[Sequence[Row]], width: int) -> Tensor:
        """Return the rows as vectors, (B, width, d)."""
        ids = numpy.zeros((len(rows), width), dtype=numpy.int64)
        for index, sequence_rows in enumerate(rows):
            tokens = [row if isinstance(row, int) else 0 for row in sequence_rows]
            ids[index, : len(tokens)] = tokens
        vectors: Tensor = self._lm.embeddings.input(self._to_device(ids))
        for index, sequence_rows in enumerate(rows):
            for column, row in enumerate(sequence_rows):
                if isinstance(row, PhraseRow):
                    vectors[index, column] = torch.from_numpy(row.vector).to(vectors)
        return vectors

    def _forward(
        self,
        vectors: Tensor,
        positions: numpy.ndarray,
        row_mask: numpy.ndarray,
        *,
        only_last: bool = False,
    ) -> tuple[Floats, Floats]:
        """Read vectors (B, T, d); returns states and logits of all rows, or of the last ones.

        Those of padding rows, where `row_mask` is False, mean nothing.
        """
        packed = self._prepacked
        if packed and not packed.min_rows <= int(row_mask.sum()) <= _MAX_PREPACKED_ROWS:
            packed = None
        body = packed.body if packed else self._lm.model.base_model
        output = packed.output if packed else self._lm.embeddings.output
        mask = None if self._mask.all() else self._to_device(self._mask.astype(int))
        with skip_padding(None if row_mask.all() else self._to_device(row_mask)):
            hidden: Tensor = body(
                inputs_embeds=vectors,
                past_key_values=self._cache,
                attention_mask=mask,
                position_ids=self._to_device(positions),
                use_cache=True,
            ).last_hidden_state[:, -1 if only_last else 0 :]
            logits = output(hidden)
        return hidden.float().cpu().numpy(), logits.float().cpu().numpy()


def crop(cache: Cache, count: int) -> None:
    """Remove the newest slots of a KV cache.

    `Cache.crop` has meant the length to keep and the number to remove in different releases; a
    negative number has always meant this. No other place calls it, and a test pins it.
    """
    cache.crop(-count)
