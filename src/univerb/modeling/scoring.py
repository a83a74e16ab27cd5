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

from univerb.modeling.phrase_tree import PhraseTree

Floats = NDArray[numpy.float32]


class Votes(NamedTuple):
    """What documents say about the next token."""

    tokens: NDArray[numpy.int64]
    """(F,) the tokens that phrases begin with."""
    scores: Floats
    """(F,) of each as a phrase of one token."""
    overlap: NDArray[numpy.int64]
    """(F,) the last tokens that are, together with each, the beginning of a phrase."""


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

    def query(self, hidden: Floats) -> Floats:
        """Return what phrases are scored against, for states (..., d)."""
        if not self.is_conditional:
            return hidden
        parts = self._parts
        state = hidden @ parts["whiten"]
        if "down.weight" in parts:
            inner = state @ parts["down.weight"].T + parts["down.bias"]
            inner = inner / (1.0 + numpy.exp(-inner))
            state = state + inner @ parts["up.weight"].T + parts["up.bias"]
        scale = numpy.float32(hidden.shape[-1] ** -0.5)
        result: Floats = state * scale
        return result

    def stops(self, tree: PhraseTree, hidden: Floats) -> Floats:
        """Return the scores (..., N) of stopping at the nodes of a tree, for states (..., d)."""
        parts = self._parts
        kind = (tree.parent >= 0).astype(int)
        gates = hidden @ parts["whiten"] @ parts["stop_gate"].T + parts["stop_bias"]
        scores: Floats = gates[..., kind] + parts["stop_count"][kind] * numpy.log(tree.sizes)
        return scores

    def voted(self, hidden: Floats, logits: Floats, votes: Votes) -> Floats:
        """Let the documents vote on the next token.

        Args:
            hidden: (d,) the LM's state.
            logits: (V,) its logits.
            votes: What the documents say.

        Returns:
            (V,) logits with both parts of the choice; their logsumexp is that of the LM's.
        """
        parts = self._parts
        total = _log_sum(logits)
        own = logits[votes.tokens] - total
        bonus = numpy.append(numpy.float32(0.0), parts["vote_overlap"])[votes.overlap]
        scores = own + votes.scores + bonus
        chosen = scores - _log_sum(scores)
        gate = float(hidden @ parts["whiten"] @ parts["vote_gate"])
        part = float(parts["vote_bias"][votes.overlap.max()]) + gate + _log_sum(own)
        result = logits - numpy.float32(numpy.logaddexp(0.0, part))
        by_documents = total - float(numpy.logaddexp(0.0, -part)) + chosen
        result[votes.tokens] = numpy.logaddexp(result[votes.tokens], by_documents)
        return result

    def bonus(self, overlap: NDArray[numpy.int64]) -> Floats:
        """Return what is added to the scores of phrases by the tokens that lead to them."""
        return numpy.append(numpy.float32(0.0), self._parts["overlap"])[overlap]


def _log_sum(values: Floats) -> float:
    highest = float(values.max())
    return highest + math.log(float(numpy.exp(values - numpy.float32(highest)).sum()))
