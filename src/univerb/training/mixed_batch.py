"""From samples to a batch: labels, the phrase pool, and what both passes of the LM read.

docs/method.md, Losses.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from univerb.modeling.encoder_plan import Plan, plan
from univerb.phrases.tokenized import Flags
from univerb.training.config import NegativeConfig
from univerb.training.negatives import (
    Continuations,
    corpus_retrieval,
    generation,
    in_batch,
    prefixes,
    self_retrieval,
)
from univerb.training.samples import Key, Sample
from univerb.training.suffix_array import SuffixArray

PoolEntry = tuple[int, int, int]
"""A passage, a unit in it, and a phrase of the pool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The phrases of a batch."""

    plan: Plan
    """Windows to encode: one serves a phrase, its prefixes and its extensions."""
    keys: list[Key]
    """For each phrase its tokens; no key twice."""
    golds: int
    """Number of phrases that are gold somewhere in the batch: the first ones."""


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """What the losses need. B passages, at most M units and N tokens each, padded on the right."""

    unit_ids: Tensor
    """(B, M) a token, or |V| + its index in the pool."""
    unit_mask: Tensor
    """(B, M) False where padded."""
    token_ids: Tensor
    """(B, N)"""
    token_mask: Tensor
    """(B, N)"""
    sigma: Tensor
    """(B, M) the last token that each unit covers."""
    pool: Pool


def collate(
    samples: Sequence[Sample],
    forbidden: Sequence[Flags],
    negatives: NegativeConfig,
    static_size: int,
    lm: Continuations | None = None,
    corpus: SuffixArray | None = None,
) -> MixedBatch:
    """Make a batch.

    Args:
        samples: Its passages.
        forbidden: For each passage, which of its tokens no phrase may contain.
        negatives: What to put into the pool beside the gold phrases.
        static_size: |V|; the first phrase of the pool has this id.
        lm: The LM that writes negatives, needed for `generation`.
        corpus: The training text, needed for `corpus-retrieval`.

    Returns:
        The batch, on the CPU.
    """
    golds, kinds = in_batch(samples), negatives.kinds
    keys = dict.fromkeys(golds)
    if "prefixes" in kinds:
        keys.update(dict.fromkeys(prefixes(golds)))
    extensions: list[Iterable[Key]] = []
    if "self-retrieval" in kinds:
        extensions.append(self_retrieval(samples, forbidden, negatives.extensions))
    if "generation" in kinds and lm is not None:
        extensions.append(generation(golds, lm))
    if "corpus-retrieval" in kinds and corpus is not None:
        extensions.append(corpus_retrieval(golds, corpus, negatives.extensions))
    keys.update((key, None) for key in chain(*extensions) if len(key) <= negatives.max_row)
    pool = Pool(plan(list(keys)), list(keys), len(golds))
    ids = {key: static_size + index for index, key in enumerate(golds)}

    def label(sample: Sample, begin: int, end: int) -> int:
        return sample.ids[begin] if end - begin == 1 else ids[tuple(sample.ids[begin:end])]

    unit_ids, unit_mask = _padded([[label(s, *unit) for unit in s.units] for s in samples])
    token_ids, token_mask = _padded([sample.ids for sample in samples])
    sigma, _ = _padded([[end - 1 for _, end in sample.units] for sample in samples])
    return MixedBatch(unit_ids, unit_mask, token_ids, token_mask, sigma, pool)


def true_continuations(batch: MixedBatch, earlier: Sequence[Key] = ()) -> list[PoolEntry]:
    """Find where a token is the label although the text continues with a phrase of the pool.

    At a gold phrase its prefixes and extensions continue the text too; there they are the
    negatives that the paper wants, and are not returned.

    Args:
        batch: The batch.
        earlier: Phrases of earlier batches that are scored behind the pool's.

    Returns:
        Row b, unit i and index k in the pool: what follows unit i begins with the tokens of
        phrase k, but unit i + 1 is a token.
    """
    by_start: dict[Key, list[tuple[int, Key]]] = defaultdict(list)
    for k, key in enumerate((*batch.pool.keys, *earlier)):
        by_start[key[:2]].append((k, key))
    entries: list[PoolEntry] = []
    for row in range(len(batch.unit_ids)):
        ids = tuple(batch.token_ids[row, batch.token_mask[row]].tolist())
        lasts = batch.sigma[row, batch.unit_mask[row]].tolist()
        for unit, (last, following) in enumerate(pairwise(lasts)):
            begin = last + 1
            phrases = by_start.get(ids[begin : begin + 2], ()) if following == begin else ()
            matches = (k for k, key in phrases if ids[begin : begin + len(key)] == key)
            entries += [(row, unit, k) for k in matches]
    return entries


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return rows padded on the right with 0, and where they are not."""
    ids = pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True)
    sizes = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < sizes[:, None]
