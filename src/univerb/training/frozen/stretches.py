"""A passage as stretches, each with the candidates that it would have at run time."""

from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_tree import MAX_OVERLAP
from univerb.phrases.hashing import Ints
from univerb.training.config import FrozenConfig
from univerb.training.frozen.pools import CandidateTree, Stretch, stretch
from univerb.training.frozen.states import PassageStates
from univerb.training.frozen.windows import Windows, windows

# Shorter rests of a passage are left out.
_MIN_TOKENS = 16


class PooledStretch(NamedTuple):
    """A stretch and its candidates."""

    pool: CandidateTree
    stretch: Stretch


def spans(passage: PassageStates, first: int) -> list[tuple[int, int]]:
    """Divide a passage: each stretch is as long as all the text before it.

    So its phrases come from a first part of any length, as at run time. The first `first` tokens
    are only read.
    """
    edges, end = [passage.begin + first], len(passage.ids)
    while edges[-1] < end:
        edges.append(min(2 * edges[-1] - passage.begin, end))
    pairs = zip(edges, edges[1:], strict=False)
    return [(begin, end) for begin, end in pairs if end - begin >= _MIN_TOKENS]


def stretches(
    passage: PassageStates, settings: FrozenConfig, generator: numpy.random.Generator
) -> list[PooledStretch]:
    """Return the stretches of a passage that have candidates."""
    retrieved = windows(passage.pool, settings.sizes)
    result = []
    for begin, end in spans(passage, settings.first):
        truth = windows(passage.text, settings.sizes, begin, end)
        own = windows(passage.text, settings.sizes, passage.begin, begin)
        # Also those that begin a little earlier: the text may be in the middle of one.
        near = passage.text.ids[max(begin - MAX_OVERLAP, 0) : begin]
        pool = CandidateTree.of(_beginning_as(numpy.append(truth.ids[:, 0], near), own, retrieved))
        if len(pool.keys):
            span, ids = (begin, end), passage.text.ids
            made = stretch(pool, ids, truth, span, settings.max_options, generator)
            result.append(PooledStretch(pool, made))
    return result


def _beginning_as(tokens: Ints, *parts: Windows) -> Windows:
    """Return the windows that begin with one of some tokens: others are never a choice."""
    some = Windows.joined(*parts)
    return some.take(numpy.isin(some.ids[:, 0], tokens) & some.is_phrase.any(1))


def option_vectors(lm: DynamicLM, parts: list[PooledStretch]) -> list[Tensor]:
    """Encode the options of stretches, each phrase once; returns (O, d) for each stretch."""
    used = [numpy.unique(part.stretch.option) for part in parts]
    keys, index = numpy.unique(
        numpy.concatenate([part.pool.keys[u] for part, u in zip(parts, used, strict=True)]),
        return_index=True,
    )
    ids = numpy.concatenate([part.pool.ids[u] for part, u in zip(parts, used, strict=True)])[index]
    length = numpy.concatenate([part.pool.length[u] for part, u in zip(parts, used, strict=True)])[
        index
    ]
    outputs = encode_outputs(lm, ids, length)
    places = [numpy.searchsorted(keys, part.pool.keys[part.stretch.option]) for part in parts]
    return [outputs[torch.from_numpy(place)] for place in places]


def encode_outputs(lm: DynamicLM, ids: Ints, length: Ints) -> Tensor:
    """Return the output vectors (K, d) of phrases: the first `length` of their ids (K, L)."""
    states, order = [], []
    for size in numpy.unique(length).tolist():
        some = numpy.flatnonzero(length == size)
        batch = torch.from_numpy(ids[some, :size])
        states.append(lm.encoder.hidden_states(batch, lm.embeddings)[:, -1])
        order.append(some)
    hidden = torch.cat(states)[torch.from_numpy(numpy.argsort(numpy.concatenate(order)))]
    rows = torch.from_numpy(ids)
    last = lm.embeddings.input(rows.gather(1, torch.from_numpy(length)[:, None] - 1)[:, 0])
    with torch.autocast(hidden.device.type, enabled=False):
        outputs: Tensor = lm.encoder.heads(
            hidden.float(), last, lm.embeddings.output_weight[rows[:, 0]]
        )[1]
    return outputs
