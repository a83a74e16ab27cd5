"""The conditional form of the choice: how far to go on from a token that the LM has chosen.

Phrases that begin with the same token form a tree: a phrase hangs under the longest other phrase
that it begins with, or under the token itself. At each node one softmax chooses between "stop here"
and the phrases under it. So P(phrase) = P_LM(first token) x P(go on to it | first token), and

* no probability is lost: a token keeps what none of its phrases takes;
* phrases that begin with other tokens change nothing;
* longer and shorter phrases with the same beginning share their mass instead of competing for it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.floating[Any]]
Ints = NDArray[numpy.int64]
Key = tuple[int, ...]


class TreeLogProbs(NamedTuple):
    """Log-probabilities given the first token; leading axes are those of the scores."""

    phrases: Floats
    """(..., P), of each phrase."""
    stops: Floats
    """(..., F), of no phrase, for each first token."""


class PhraseTree:
    """The phrases of a table as trees, one under each first token.

    Args:
        keys: The phrases' tokens, none twice.
        counts: (P,) how often each stands in the documents; once if not given.
    """

    def __init__(self, keys: Sequence[Key], counts: Ints | None = None) -> None:
        parent, level = _parents(keys)
        first = numpy.array([key[0] for key in keys], dtype=numpy.int64)
        # Siblings are contiguous, and parents come before their children.
        self.order: Ints = numpy.lexsort((numpy.where(parent < 0, first, parent), level))
        place = numpy.argsort(self.order)
        level, parent, first = level[self.order], parent[self.order], first[self.order]
        parent = numpy.where(parent < 0, -1, place[parent])
        is_new = numpy.diff(numpy.where(parent < 0, -1 - first, parent), prepend=-(1 << 62)) != 0
        self.begin: Ints = numpy.flatnonzero(is_new)
        """Of each node that has phrases under it, the first of them."""
        self.node_of: Ints = numpy.cumsum(is_new) - 1
        """(P,), the node that each phrase hangs under."""
        self.parent: Ints = parent[self.begin]
        """The phrase that each node is; -1 for a first token."""
        occurrences = numpy.ones(len(keys), numpy.int64) if counts is None else counts[self.order]
        self.totals: Ints = numpy.add.reduceat(occurrences, self.begin)
        """Occurrences of the phrases directly under each node."""
        self.first_tokens: Ints = first[self.begin[self.parent < 0]]
        edges = numpy.flatnonzero(numpy.diff(level, prepend=-1, append=-1)).tolist()
        self._levels = list(pairwise(edges))

    def log_probs(self, scores: Floats, stops: Floats) -> TreeLogProbs:
        """Turn the scores of phrases (..., P) and of stopping at nodes (..., N) into a choice."""
        go, stop = self._normalised(scores, stops)
        for begin, end in self._levels[1:]:
            go[..., begin:end] += go[..., self.parent[self.node_of[begin:end]]]
        roots = len(self.first_tokens)
        go[..., self.parent[roots:]] += stop[..., roots:]
        phrases = numpy.empty_like(go)
        phrases[..., self.order] = go
        return TreeLogProbs(phrases, stop[..., :roots])

    def greedy(self, scores: Floats, stops: Floats) -> int | None:
        """Take the likeliest option at each node, from a first token on.

        Args:
            scores: (P,) of the phrases, all of which begin with one token.
            stops: (N,) of stopping at the nodes.

        Returns:
            The phrase at which it stops, or None if that is the first token.
        """
        values = scores[self.order]
        ends = numpy.append(self.begin[1:], len(values))
        node_at = dict(zip(self.parent.tolist(), range(len(self.parent)), strict=True))
        phrase, node = -1, 0
        while True:
            best = int(self.begin[node] + values[self.begin[node] : ends[node]].argmax())
            if not values[best] > stops[node]:
                break
            phrase = best
            if phrase not in node_at:
                break
            node = node_at[phrase]
        return None if phrase < 0 else int(self.order[phrase])

    def _normalised(self, scores: Floats, stops: Floats) -> tuple[Floats, Floats]:
        """Return log-probabilities of each phrase and of stopping, given that its node is reached.

        In the tree's own order.
        """
        values = scores[..., self.order].astype(numpy.float64)
        highest = numpy.maximum(numpy.maximum.reduceat(values, self.begin, axis=-1), stops)
        shares = numpy.exp(values - highest[..., self.node_of])
        total = numpy.add.reduceat(shares, self.begin, axis=-1) + numpy.exp(stops - highest)
        total = highest + numpy.log(total)
        return values - total[..., self.node_of], stops - total


def _parents(keys: Sequence[Key]) -> tuple[Ints, Ints]:
    """Return, for each key, the longest other key that it begins with, or -1, and its level."""
    parent = numpy.full(len(keys), -1, dtype=numpy.int64)
    level = numpy.zeros(len(keys), dtype=numpy.int64)
    open_keys: list[int] = []
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        key = keys[index]
        while open_keys and key[: len(keys[open_keys[-1]])] != keys[open_keys[-1]]:
            open_keys.pop()
        if open_keys:
            parent[index] = open_keys[-1]
            level[index] = len(open_keys)
        open_keys.append(index)
    return parent, level
