"""The documents' vote on the next token: which first token of a phrase the text may go on with."""

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.phrases.hashing import Ints
from univerb.training.frozen.pools import Floats, find
from univerb.training.frozen.windows import Windows, hashes


class Ballot(NamedTuple):
    """The first tokens that are voted on along a stretch of T tokens."""

    tokens: Ints
    """(F,)"""
    log_weight: Floats
    """(F,) how many tokens each stands for, where others were left out."""
    evidence: Evidence
    """(T, F), `count` being the same everywhere: (F,)"""
    longest: Ints
    """(T,) the longest overlap of any token that phrases begin with, be it voted on or not."""
    truth: Ints
    """(T,) the index of the token that follows in the text, or -1."""


def ballot(
    phrases: Windows,
    ids: NDArray[numpy.int32],
    span: tuple[int, int],
    max_votes: int | None,
    generator: numpy.random.Generator,
) -> Ballot:
    """Collect the first tokens of phrases.

    Args:
        phrases: Windows with the candidates.
        ids: The text's tokens, with breaks where no phrase may be.
        span: First token and end of the stretch.
        max_votes: Tokens that are voted on beside the true ones: so many of the most frequent, and
            a sample of as many of the rest. None for all.
        generator: Draws the sample.

    Returns:
        The ballot.
    """
    begin, end = span
    known, number = numpy.unique(phrases.ids[:, 0], return_inverse=True)
    counts = numpy.bincount(number, phrases.is_phrase.sum(1), len(known)).astype(numpy.int64)
    true = numpy.intersect1d(known, ids[begin:end])
    others = known[numpy.argsort(-counts, kind="stable")]
    others = others[~numpy.isin(others, true)]
    # The LM's own mass is on frequent tokens: a sample of them all would miss most of it.
    often, rest = others[:max_votes], others[len(others) if max_votes is None else max_votes :]
    some = rest if max_votes is None else generator.permutation(rest)[:max_votes]
    weight = numpy.zeros(len(true) + len(often) + len(some))
    weight[len(true) + len(often) :] = numpy.log(max(len(rest), 1) / max(len(some), 1))
    tokens = numpy.concatenate([true, often, some])
    place = numpy.full(int(max(tokens.max(initial=0), ids.max())) + 2, -1)
    place[true] = numpy.arange(len(true))
    count = counts[numpy.searchsorted(known, tokens)]
    evidence = Evidence(count, *_overlaps(phrases, ids, span, tokens))
    longest = _longest_overlap(phrases, ids, span, known)
    # A break is -1: the last place, which no token has.
    return Ballot(tokens, weight, evidence, longest, place[ids[begin:end]])


def _overlaps(
    phrases: Windows, ids: NDArray[numpy.int32], span: tuple[int, int], tokens: Ints
) -> tuple[Ints, Ints]:
    """Count the tokens before places that are, together with a token, the beginning of a phrase.

    Returns also how often phrases that begin so stand in the candidates' texts.
    """
    begin, end = span
    # Of each beginning, the phrases that go on from it, the beginning itself included.
    going_on = phrases.is_phrase[:, ::-1].cumsum(1)[:, ::-1]
    beginnings, number = numpy.unique(phrases.keys[going_on > 0], return_inverse=True)
    counts = numpy.bincount(number, going_on[going_on > 0], len(beginnings)).astype(numpy.int64)
    overlap = numpy.zeros((end - begin, len(tokens)), dtype=numpy.int64)
    count = numpy.ones_like(overlap)
    start = numpy.arange(begin, end)
    for size in range(1, min(MAX_OVERLAP, begin) + 1):
        before = ids[start[:, None] - numpy.arange(size, 0, -1)].astype(numpy.int64)
        # Most places have nothing before them that begins a phrase.
        rows = numpy.flatnonzero(find(beginnings, hashes(before)[:, -1])[1])
        joined = numpy.concatenate(
            [
                numpy.repeat(before[rows], len(tokens), axis=0),
                numpy.tile(tokens, len(rows))[:, None],
            ],
            axis=1,
        )
        found, is_known = find(beginnings, hashes(joined)[:, -1].reshape(len(rows), len(tokens)))
        overlap[rows] = numpy.where(is_known, size, overlap[rows])
        if len(beginnings):
            count[rows] = numpy.where(is_known, counts[found], count[rows])
    return overlap, count


def _longest_overlap(
    phrases: Windows, ids: NDArray[numpy.int32], span: tuple[int, int], known: Ints
) -> Ints:
    """Count the tokens before places that are, with some token of `known`, such a beginning."""
    begin, end = span
    goes_on = phrases.is_phrase[:, ::-1].cumsum(1)[:, ::-1] > 0
    start = numpy.arange(begin, end)
    longest = numpy.zeros(end - begin, dtype=numpy.int64)
    for size in range(1, min(MAX_OVERLAP, begin, goes_on.shape[1] - 1) + 1):
        is_vote = goes_on[:, size] & numpy.isin(phrases.ids[:, size], known)
        before = ids[start[:, None] - numpy.arange(size, 0, -1)].astype(numpy.int64)
        found = find(numpy.unique(phrases.keys[is_vote, size - 1]), hashes(before)[:, -1])[1]
        longest[found] = size
    return longest
