"""The choice between an LM's tokens and phrases.

`atomic` and `unfold` choose by one softmax over V + P, to which the filters of sampling apply. In
the conditional form it is the same softmax over V, of which phrases take their first tokens' part;
greedily the LM's best token is chosen first, then how far to go on from it.
`unfold` first leaves out the phrases whose first token the LM would not accept, since that is known
before anything is computed. At tolerance 0 no phrase is chosen, which leaves the LM's distribution
as it is.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from univerb.decoding.phrase_head import PhraseLogits
from univerb.engines.base import Floats, Ints, Sampler


class Choice(NamedTuple):
    """What was chosen, and the scores it was chosen from."""

    unit: int
    """A token id, or |V| + index of a phrase."""
    logits: Floats
    """The LM's own (V,), unfiltered."""
    phrases: PhraseLogits | None = None
    """The phrases that took part."""

    @property
    def logprob(self) -> float:
        """The unit's log-probability among all that took part."""
        size, phrases = len(self.logits), self.phrases
        if phrases is None or self.unit < size:
            value = self.logits[self.unit]
        else:
            value = phrases.logits[numpy.flatnonzero(phrases.indices == self.unit - size)[0]]
        total = log_sum(self.logits)
        if phrases is not None:
            total = float(numpy.logaddexp(total, log_sum(phrases.logits)))
        return float(value) - total

    def best(self, count: int) -> list[tuple[int, float]]:
        """Return the likeliest units with their probabilities."""
        size, phrases = len(self.logits), self.phrases
        scores = self.logits
        if phrases is not None:
            scores = numpy.concatenate([self.logits, phrases.logits])
        top = numpy.argsort(-scores, kind="stable")[:count].tolist()
        total = log_sum(scores)
        units = [i if phrases is None else _unit(i, size, phrases) for i in top]
        probabilities = [math.exp(float(scores[i]) - total) for i in top]
        return list(zip(units, probabilities, strict=True))


def log_sum(scores: Floats) -> float:
    """Return the logarithm of the sum of exponentials."""
    highest = float(scores.max())
    if highest == -math.inf:
        return -math.inf
    shifted = scores - numpy.float32(highest)
    return highest + math.log(float(numpy.exp(shifted, out=shifted).sum()))


def choose(
    logits: Floats,
    allowed: Floats,
    phrases: PhraseLogits | None,
    sampler: Sampler,
    seen: Sequence[int],
    eagerness: float = 0.0,
) -> Choice:
    """Choose a unit by one softmax over V and some phrases.

    Args:
        logits: The LM's own (V,).
        allowed: The same, -inf for tokens that may not follow.
        phrases: Those that may be chosen, or None: in `unfold` as proposals.
        sampler: The sequence's.
        seen: Base tokens of prompt and output, and the ids of phrases that were written.
        eagerness: Nats by which a greedy choice prefers phrases; those of the conditional form
            have it already.

    Returns:
        The unit.
    """
    if phrases is None:
        return Choice(_picked_token(allowed, sampler, seen), logits)
    if phrases.shares:
        if sampler.is_greedy:
            token = _picked_token(allowed, sampler, seen)
            share = phrases.shares.get(token)
            index = share.greedy if share else None
            unit = token if index is None else len(logits) + index
            return Choice(unit, phrases.left_to_tokens(logits), phrases)
        logits, allowed = phrases.left_to_tokens(logits), phrases.left_to_tokens(allowed)
    extra = numpy.float32(eagerness if sampler.is_greedy else 0.0)
    both = numpy.concatenate([allowed, phrases.logits + extra])
    if sampler.filters:
        both = sampler.filtered(both, _columns(seen, len(logits), phrases))
    return Choice(_unit(sampler.pick(both), len(logits), phrases), logits, phrases)


def _picked_token(allowed: Floats, sampler: Sampler, seen: Sequence[int]) -> int:
    """Choose one of the tokens."""
    # Only filters ask what was seen, and it is long.
    tokens = [unit for unit in seen if unit < len(allowed)] if sampler.filters else []
    return sampler.pick(sampler.filtered(allowed, tokens))


def accepted_tokens(filtered: Floats, tolerance: float) -> Ints:
    """Return the tokens that the LM accepts: those as likely as the tolerance asks."""
    return numpy.flatnonzero(filtered >= filtered.max() + log_ratio(tolerance))


def accepts(filtered: Floats, token: int, tolerance: float, sampler: Sampler) -> bool:
    """Tell whether the LM accepts a token of a chosen phrase; under sampling, by a draw.

    With lenience l = 1 - tolerance, as in speculative decoding (Leviathan et al., 2023, A.5) with
    a draft that is sure of itself: greedily, if its probability is at least l times the best one's;
    under sampling, with probability min(1, p / l).
    """
    if tolerance == 1.0:
        return True
    if sampler.is_greedy:
        return bool(filtered[token] >= filtered.max() + log_ratio(tolerance))
    share = math.exp(float(filtered[token]) - log_sum(filtered)) / (1.0 - tolerance)
    if share >= 1.0:
        return True
    with numpy.errstate(divide="ignore"):
        return sampler.pick(numpy.log(numpy.array([share, 1.0 - share], numpy.float32))) == 0


def _unit(column: int, size: int, phrases: PhraseLogits) -> int:
    return column if column < size else size + int(phrases.indices[column - size])


def _columns(seen: Sequence[int], size: int, phrases: PhraseLogits) -> Sequence[int]:
    """Return where the ids seen stand among tokens and scored phrases."""
    indices = [unit - size for unit in seen if unit >= size]
    if not indices:
        return seen
    scored = numpy.flatnonzero(numpy.isin(phrases.indices, indices)) + size
    return [*(unit for unit in seen if unit < size), *scored.tolist()]


def log_ratio(tolerance: float) -> float:
    """Return how far below the best logit a token's may be that the LM accepts."""
    return -math.inf if tolerance == 1.0 else math.log1p(-tolerance)
