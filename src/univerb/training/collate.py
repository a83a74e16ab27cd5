"""From samples to a batch: labels, the phrase pool, and what the two passes read (METHOD A.6.1)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from univerb.errors import OptionError
from univerb.modeling.encoder import plan
from univerb.phrases.tokenized import Flags
from univerb.training.batch import Key, MixedBatch, Pool, Sample
from univerb.training.config import Negatives
from univerb.training.negatives import (
    Generations,
    corpus_retrieval,
    generation,
    in_batch,
    prefixes,
    self_retrieval,
)
from univerb.training.suffixes import Suffixes


def collate(
    samples: Sequence[Sample],
    barred: Sequence[Flags],
    negatives: Negatives,
    static_size: int,
    generations: Generations | None = None,
    suffixes: Suffixes | None = None,
) -> MixedBatch:
    """Make a batch.

    Args:
        samples: Its passages.
        barred: For each passage, which of its tokens no phrase may contain.
        negatives: What to put into the pool beside the gold phrases.
        static_size: |V|; the first phrase of the pool has this id.
        generations: The original LM, if `generation` is among the kinds.
        suffixes: The training text, if `corpus-retrieval` is.

    Returns:
        The batch, on the CPU.

    Raises:
        OptionError: If a kind of negatives lacks what it is made from.
    """
    pool = _pool(samples, barred, negatives, generations, suffixes)
    index = {key: place for place, key in enumerate(pool.keys[: pool.golds])}

    def label(ids: list[int], begin: int, end: int) -> int:
        return ids[begin] if end - begin == 1 else static_size + index[tuple(ids[begin:end])]

    units = [[label(sample.ids, *unit) for unit in sample.units] for sample in samples]
    unit_ids, unit_mask = _padded(units)
    token_ids, token_mask = _padded([sample.ids for sample in samples])
    sigma, _ = _padded([[end - 1 for _, end in sample.units] for sample in samples])
    return MixedBatch(unit_ids, unit_mask, token_ids, token_mask, sigma, pool)


def true_continuations(
    batch: MixedBatch, earlier: Sequence[Key] = ()
) -> list[tuple[int, int, int]]:
    """Find where a token is the label although the text goes on with a phrase of the pool.

    At a gold phrase its prefixes and extensions go on with the text too; there they are the
    negatives that the paper wants, and are not returned (METHOD A.5).

    Args:
        batch: The batch.
        earlier: Phrases of batches before that are scored behind the pool's.

    Returns:
        Row b, unit i and place k in the pool: what follows unit i begins with the tokens of
        phrase k, but unit i + 1 is a token.
    """
    index = {key: place for place, key in enumerate((*batch.pool.keys, *earlier))}
    sizes: dict[Key, set[int]] = defaultdict(set)
    for key in index:
        sizes[key[:2]].add(len(key))
    longest = max(map(len, index), default=0)
    found: list[tuple[int, int, int]] = []
    for row in range(len(batch.unit_ids)):
        ids = batch.token_ids[row, batch.token_mask[row]].tolist()
        lasts = batch.sigma[row, batch.unit_mask[row]].tolist()
        for unit, (last, following) in enumerate(zip(lasts, lasts[1:], strict=False)):
            upcoming = tuple(ids[last + 1 : last + 1 + longest]) if following == last + 1 else ()
            fitting = (size for size in sizes.get(upcoming[:2], ()) if size <= len(upcoming))
            keys = (upcoming[:size] for size in sorted(fitting))
            found += [(row, unit, index[key]) for key in keys if key in index]
    return found


def _pool(
    samples: Sequence[Sample],
    barred: Sequence[Flags],
    negatives: Negatives,
    generations: Generations | None,
    suffixes: Suffixes | None,
) -> Pool:
    golds = in_batch(samples)
    keys = dict.fromkeys(golds)
    if "prefixes" in negatives.kinds:
        keys.update(dict.fromkeys(prefixes(golds)))
    extensions = _extensions(golds, samples, barred, negatives, generations, suffixes)
    keys.update((key, None) for key in extensions if len(key) <= negatives.max_row)
    # One row serves a phrase, its prefixes and its extensions: the encoder is causal.
    layout = plan(list(keys))
    return Pool(layout.windows, layout.row, layout.column, list(keys), len(golds))


def _extensions(
    golds: list[Key],
    samples: Sequence[Sample],
    barred: Sequence[Flags],
    negatives: Negatives,
    generations: Generations | None,
    suffixes: Suffixes | None,
) -> Iterator[Key]:
    if "self-retrieval" in negatives.kinds:
        yield from self_retrieval(samples, barred, negatives.extensions)
    if "generation" in negatives.kinds:
        if generations is None:
            raise OptionError("negatives.kinds has generation; give collate the LM's generations.")
        yield from generation(golds, generations)
    if "corpus-retrieval" in negatives.kinds:
        if suffixes is None:
            raise OptionError("negatives.kinds has corpus-retrieval; give collate the suffixes.")
        yield from corpus_retrieval(golds, suffixes, negatives.extensions)


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return rows padded on the right with 0, and where they are not."""
    ids = pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True)
    sizes = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < sizes[:, None]
