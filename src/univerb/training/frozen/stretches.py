"""A passage as stretches, each with the candidates that it would have at run time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.evidence import MAX_OVERLAP
from univerb.phrases.hashing import Ints
from univerb.training.config import FrozenConfig
from univerb.training.frozen.pools import CandidateTree, Stretch, stretch
from univerb.training.frozen.states import PassageStates
from univerb.training.frozen.stretch_loss import StretchLoss, stretch_loss, voted_logprobs
from univerb.training.frozen.votes import Ballot, ballot
from univerb.training.frozen.windows import Windows, windows

# Shorter rests of a passage are left out.
_MIN_TOKENS = 16


class PooledStretch(NamedTuple):
    """A stretch and its candidates."""

    pool: CandidateTree
    stretch: Stretch
    ballot: Ballot


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
        phrases = Windows.joined(own, retrieved)
        phrases = phrases.take(numpy.flatnonzero(phrases.is_phrase.any(1)))
        # Also those that begin a little earlier: the text may be in the middle of one.
        near = passage.text.ids[max(begin - MAX_OVERLAP, 0) : end]
        pool = CandidateTree.of(phrases.take(numpy.isin(phrases.ids[:, 0], near)))
        if len(pool.keys):
            span, ids, limit = (begin, end), passage.text.ids, settings.max_options
            made = stretch(pool, ids, truth, span, limit, generator)
            votes = ballot(phrases, ids, span, settings.max_votes, generator)
            result.append(PooledStretch(pool, made, votes))
    return result


class StretchVectors(NamedTuple):
    """The output vectors that a stretch needs."""

    options: Tensor
    """(O, d) of its options."""
    votes: Tensor
    """(F, d) of the tokens that are voted on."""


def stretch_vectors(lm: DynamicLM, parts: Sequence[PooledStretch]) -> list[StretchVectors]:
    """Encode what stretches need, each phrase and each token once."""
    used = [numpy.unique(part.stretch.option) for part in parts]
    tokens = numpy.unique(numpy.concatenate([part.ballot.tokens for part in parts]))
    width = parts[0].pool.ids.shape[1]
    alone = numpy.zeros((len(tokens), width), dtype=numpy.int64)
    alone[:, 0] = tokens
    each = list(zip(parts, used, strict=True))
    keys, index = numpy.unique(
        numpy.concatenate([part.pool.keys[some] for part, some in each]), return_index=True
    )
    ids = numpy.concatenate([part.pool.ids[some] for part, some in each])[index]
    length = numpy.concatenate([part.pool.length[some] for part, some in each])[index]
    outputs = encode_outputs(
        lm,
        numpy.concatenate([alone, ids]),
        numpy.concatenate([numpy.ones(len(tokens), numpy.int64), length]),
    )
    result = []
    for part in parts:
        voted = torch.from_numpy(numpy.searchsorted(tokens, part.ballot.tokens))
        place = numpy.searchsorted(keys, part.pool.keys[part.stretch.option]) + len(tokens)
        result.append(StretchVectors(outputs[torch.from_numpy(place)], outputs[voted]))
    return result


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
        base = lm.encoder.output_base(rows[:, 0], lm.embeddings)
        outputs: Tensor = lm.encoder.heads(hidden.float(), last, base)[1]
    return outputs


def loss_of(
    lm: DynamicLM,
    part: PooledStretch,
    vectors: StretchVectors,
    passage: PassageStates,
    unit_price: float,
) -> StretchLoss:
    """Compute the loss of a stretch of a passage, in single precision as when it is decoded."""
    head, made = lm.encoder.conditional, part.stretch
    assert head is not None
    before = slice(made.begin - 1, made.end - 1)
    with torch.autocast(passage.hidden.device.type, enabled=False):
        voted = voted_logprobs(
            head,
            part.ballot,
            vectors.votes,
            lm.embeddings.output_weight[torch.from_numpy(part.ballot.tokens)],
            passage.hidden[before],
            passage.logsumexp[before],
            passage.next_logprob[before],
        )
        text = passage.hidden, passage.next_logprob
        return stretch_loss(head, made, vectors.options, *text, voted, unit_price)
