"""The documents' vote on the next token: which first token of a phrase the text may go on with."""

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.modeling.phrase_tree import MAX_OVERLAP
from univerb.phrases.hashing import Ints
from univerb.training.frozen.pools import Floats
from univerb.training.frozen.windows import Windows, hashes


class Ballot(NamedTuple):
    """The first tokens that are voted on along a stretch of T tokens."""

    tokens: Ints
    """(F,)"""
    log_weight: Floats
    """(F,) how many tokens each stands for, where others were left out."""
    overlap: Ints
    """(T, F) tokens before each place that are, together with a token, the beginning of a phrase"""
    truth: Ints
    """(T,) the index of the token that follows in the text, or -1."""


def ballot(
    phrases: Windows,
    ids: NDArray[numpy.int32],
    span: tuple[int, int],
    max_options: int | None,
    generator: numpy.random.Generator,
) -> Ballot:
    """Collect the first tokens of phrases.

    Args:
        phrases: Windows with the candidates.
        ids: The text's tokens, with breaks where no phrase may be.
        span: First token and end of the stretch.
        max_options: Tokens that are voted on beside the true ones; more are sampled. None for all.
        generator: Draws the sample.

    Returns:
        The ballot.
    """
    begin, end = span
    known = numpy.unique(phrases.ids[:, 0])
    true = numpy.intersect1d(known, ids[begin:end])
    others = numpy.setdiff1d(known, true)
    count = len(others)
    if max_options is not None and count > max_options:
        others = generator.choice(others, max_options, replace=False)
    weight = numpy.zeros(len(true) + len(others))
    weight[len(true) :] = numpy.log(max(count, 1) / max(len(others), 1))
    tokens = numpy.concatenate([true, others])
    place = numpy.full(int(max(tokens.max(initial=0), ids.max())) + 2, -1)
    place[true] = numpy.arange(len(true))
    # A break is -1: the last place, which no token has.
    return Ballot(tokens, weight, _overlaps(phrases, ids, span, tokens), place[ids[begin:end]])


def _overlaps(
    phrases: Windows, ids: NDArray[numpy.int32], span: tuple[int, int], tokens: Ints
) -> Ints:
    """Count the tokens before places that are, together with a token, the beginning of a phrase."""
    begin, end = span
    columns = numpy.arange(phrases.ids.shape[1])
    last = numpy.where(phrases.is_phrase, columns, -1).max(1, initial=-1)
    beginnings = numpy.unique(phrases.keys[columns <= last[:, None]])
    overlap = numpy.zeros((end - begin, len(tokens)), dtype=numpy.int64)
    start = numpy.arange(begin, end)
    for size in range(1, min(MAX_OVERLAP, begin) + 1):
        before = ids[start[:, None] - numpy.arange(size, 0, -1)].astype(numpy.int64)
        # Most places have nothing before them that begins a phrase.
        rows = numpy.flatnonzero(numpy.isin(hashes(before)[:, -1], beginnings))
        joined = numpy.concatenate(
            [
                numpy.repeat(before[rows], len(tokens), axis=0),
                numpy.tile(tokens, len(rows))[:, None],
            ],
            axis=1,
        )
        is_known = numpy.isin(hashes(joined)[:, -1], beginnings).reshape(len(rows), len(tokens))
        overlap[rows] = numpy.where(is_known, size, overlap[rows])
    return overlap
