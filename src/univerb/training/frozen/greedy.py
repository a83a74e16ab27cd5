"""What greedy decoding would do along a text: where phrases fire, and how often they are right.

Only nodes that the text reaches are scored in training, so this looks at word starts whose first
token the LM expects. Elsewhere neither a phrase nor the LM's own next tokens can be right.
"""

from typing import NamedTuple

import numpy

from univerb.phrases.hashing import Ints
from univerb.training.frozen.pools import CandidateTree, Floats, Stretch
from univerb.training.frozen.states import PassageStates


class GreedyCounts(NamedTuple):
    """Counts over word starts after which the stretch is as long as the longest phrase."""

    starts: int
    """Those whose first token the LM expects, and some phrase begins with."""
    fired: int
    right: int
    """Phrases that the text goes on with, to their ends."""
    lm_right: int
    """The LM's own greedy tokens that are right there, over the same length."""


def greedy_counts(
    pool: CandidateTree, stretch: Stretch, go: Floats, stop: Floats, passage: PassageStates
) -> GreedyCounts:
    """Follow greedy decoding along a stretch.

    Args:
        pool: The candidates.
        stretch: The choices along it, with all options.
        go: (O,) log-probability of each option, given that its node is reached.
        stop: (C,) of stopping there.
        passage: The LM's states.

    Returns:
        The counts.
    """
    best = numpy.full(len(stretch.state), -1)
    order = numpy.argsort(go, kind="stable")
    best[stretch.choice[order]] = order
    agreeing = _agreeing(passage)
    counts = numpy.zeros(len(GreedyCounts._fields), dtype=numpy.int64)
    # The choices of a place are contiguous, the deeper node after the other.
    for choices in numpy.split(
        numpy.arange(len(stretch.state)), numpy.flatnonzero(numpy.diff(stretch.state)) + 1
    ):
        before = int(stretch.state[choices[0]]) if len(choices) else stretch.end
        if before + 1 + pool.ids.shape[1] > stretch.end or not agreeing[before]:
            continue
        counts[0] += 1
        key, is_right = _chosen(pool, stretch, best[choices], go, stop[choices], passage)
        if len(key):
            counts[1:] += (1, is_right, agreeing[before] >= len(key))
    return GreedyCounts(*counts.tolist())


def _chosen(
    pool: CandidateTree,
    stretch: Stretch,
    best: Ints,
    go: Floats,
    stop: Floats,
    passage: PassageStates,
) -> tuple[Ints, bool]:
    """Return the phrase that is chosen at a place, empty if none, and whether the text has it.

    Of a wrong one, as far as its node is known: what it would go on with is as wrong.
    """
    key: Ints = numpy.empty(0, numpy.int64)
    for option, stopping in zip(best.tolist(), stop.tolist(), strict=True):
        if not go[option] > stopping:
            break
        phrase = stretch.option[option]
        begin = int(stretch.state[stretch.choice[option]]) + 1
        key = pool.ids[phrase, : pool.length[phrase]]
        if (passage.text.ids[begin : begin + len(key)] != key).any():
            return key, False
    return key, True


def _agreeing(passage: PassageStates) -> Ints:
    """Return for each token how many of those that follow are the LM's own greedy ones."""
    is_right = passage.best[:-1].numpy() == passage.ids[1:].numpy()
    ends = numpy.append(numpy.flatnonzero(~is_right), len(is_right))
    at = numpy.arange(len(passage.ids))
    agreeing: Ints = ends[numpy.searchsorted(ends, at).clip(max=len(ends) - 1)] - at
    return agreeing
