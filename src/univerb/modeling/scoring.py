"""How phrases are scored against an LM's states when a text is written: numpy, for any engine.

`flat` is the paper's form: one softmax over V + P, in which a phrase's logit is the product of its
vector and the state. In the `conditional` form a phrase takes its share of what the LM gives its
first token (`phrase_tree`, `conditional`).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.modeling.evidence import Evidence
from univerb.modeling.phrase_tree import PhraseTree

Floats = NDArray[numpy.float32]


class Votes(NamedTuple):
    """What documents say about the next token."""

    tokens: NDArray[numpy.int64]
    """(F,) the tokens that phrases begin with."""
    scores: Floats
    """(F,) of each as a phrase of one token."""
    evidence: Evidence
    """(F,)"""


class Scoring:
    """The parts of an encoder that a choice needs at every step.

    Args:
        parts: The weights of its `ConditionalHead` by name; none in the flat form.
    """

    def __init__(self, parts: Mapping[str, NDArray[Any]]) -> None:
        self._parts = {n: numpy.ascontiguousarray(p, numpy.float32) for n, p in parts.items()}

    @property
    def is_conditional(self) -> bool:
        """Whether phrases share the probability of their first tokens."""
        return bool(self._parts)

    def state(self, hidden: Floats) -> Floats:
        """Return states (..., d) in the coordinates that everything else takes them in."""
        state: Floats = hidden @ self._parts["whiten"]
        return state

    def scaled(self, state: Floats) -> Floats:
        """Make a state of length one, not of size one in each direction: a score is a sum."""
        return state * numpy.float32(state.shape[-1] ** -0.5)

    def stops(self, tree: PhraseTree, state: Floats, products: Floats) -> Floats:
        """Return the scores (..., N) of stopping at the nodes of a tree.

        Args:
            tree: The phrases.
            state: (..., d)
            products: (..., P) of the state and the phrases' vectors, biases included.

        Returns:
            The scores.
        """
        parts, is_phrase = self._parts, tree.parent >= 0
        kind = is_phrase.astype(int)
        gates = state @ parts["stop_gate"].T + parts["stop_bias"]
        scores: Floats = gates[..., kind] + parts["stop_count"][kind] * numpy.log(tree.totals)
        # To stop at a phrase is that phrase itself: what its extensions share decides nothing.
        scores[..., is_phrase] += products[..., tree.order[tree.parent[is_phrase]]]
        return scores

    def voted(self, state: Floats, logits: Floats, votes: Votes) -> Floats:
        """Let the documents vote on the next token.

        Args:
            state: (d,)
            logits: (V,) the LM's.
            votes: What the documents say.

        Returns:
            (V,) logits with both parts of the choice; their logsumexp is that of the LM's.
        """
        parts = self._parts
        total = _log_sum(logits)
        own = logits[votes.tokens] - total
        bonus = votes.evidence.bonus(parts["vote_overlap"], parts["vote_counts"])
        scores = own + votes.scores + bonus
        chosen = scores - _log_sum(scores)
        gate = float(state @ parts["vote_gate"])
        part = float(parts["vote_bias"][votes.evidence.overlaps.max()]) + gate + _log_sum(own)
        result = logits - numpy.float32(numpy.logaddexp(0.0, part))
        by_documents = total - float(numpy.logaddexp(0.0, -part)) + chosen
        result[votes.tokens] = numpy.logaddexp(result[votes.tokens], by_documents)
        return result

    def bonus(self, evidence: Evidence) -> Floats:
        """Return what the documents' counts add to the scores of phrases."""
        return evidence.bonus(self._parts["overlap"], self._parts["counts"])


def _log_sum(values: Floats) -> float:
    highest = float(values.max())
    return highest + math.log(float(numpy.exp(values - numpy.float32(highest)).sum()))
