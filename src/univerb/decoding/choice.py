"""The choice between an LM's tokens and phrases.

`atomic` and `unfold` choose by one softmax over V + P. `unfold` first leaves out the phrases whose
first token the LM would not accept, since that is known before anything is computed. At
tolerance 0 no phrase is chosen, which leaves the LM's distribution as it is (DESIGN 3).

Where a token is chosen, a phrase that begins with it may still `guess` how the text goes on. What
is then kept is what would have been chosen anyway: a guess saves passes and changes no text.

Greedy text of a small LM runs in circles that no phrase can break by its score, since the LM is
sure of itself there. There the likeliest phrase that leads elsewhere may break it (`escape`).
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy

from univerb.decoding.phrase_head import Scored
from univerb.engines.base import Floats, Ints, Sampler

CIRCLES = ((1, 2), (2, 1))
"""When a text goes in circles: after so many times `escape` tokens it went on the same way so
often before. Names come again, but a circle comes a third time, and nothing long a second."""
RECENT = 256
"""Tokens in which that is counted: in a long text a turn of phrase may come back now and then."""


class Choice(NamedTuple):
    """What was chosen, and the scores it was chosen from."""

    unit: int
    """A token id, or |V| + number of a phrase."""
    logits: Floats
    """The LM's own (V,), unfiltered; -inf if no token took part."""
    phrases: Scored | None = None
    """The phrases that took part."""

    @property
    def logprob(self) -> float:
        """The unit's log-probability among all that took part."""
        size, own = len(self.logits), self.phrases
        if own is None or self.unit < size:
            value = self.logits[self.unit]
        else:
            value = own.logits[numpy.flatnonzero(own.numbers == self.unit - size)[0]]
        total = log_sum(self.logits)
        if own is not None:
            total = float(numpy.logaddexp(total, log_sum(own.logits)))
        return float(value) - total

    def best(self, count: int) -> list[tuple[int, float]]:
        """Return the likeliest units with their probabilities."""
        size, own = len(self.logits), self.phrases
        scores = self.logits if own is None else numpy.concatenate([self.logits, own.logits])
        top = numpy.argsort(-scores, kind="stable")[:count].tolist()
        total = log_sum(scores)
        units = [
            at if own is None or at < size else size + int(own.numbers[at - size]) for at in top
        ]
        shares = [math.exp(float(scores[at]) - total) for at in top]
        return list(zip(units, shares, strict=True))


def log_sum(scores: Floats) -> float:
    """Return the logarithm of the sum of exponentials."""
    highest = float(scores.max())
    if highest == -math.inf:
        return -math.inf
    shares = scores - numpy.float32(highest)
    return highest + math.log(float(numpy.exp(shares, out=shares).sum()))


def choose_atomic(
    logits: Floats, phrases: Scored | None, sampler: Sampler, seen: Sequence[int]
) -> Choice:
    """Choose a unit by one softmax over V + P."""
    if phrases is None:
        tokens = [unit for unit in seen if unit < len(logits)]
        return Choice(sampler.pick(sampler.filtered(logits, tokens)), logits)
    both = numpy.concatenate([logits, phrases.logits])
    if sampler.has_filters:
        both = sampler.filtered(both, _places(seen, len(logits), phrases))
    picked = sampler.pick(both)
    return Choice(_unit(picked, len(logits), phrases), logits, phrases)


def accepted_tokens(filtered: Floats, tolerance: float) -> Ints:
    """Return the tokens that the LM accepts: those as likely as the tolerance asks."""
    return numpy.flatnonzero(filtered >= filtered.max() + _log_share(tolerance))


def choose_unfold(
    logits: Floats, filtered: Floats, phrases: Scored | None, sampler: Sampler
) -> Choice:
    """Choose a token, or a phrase as a proposal.

    Args:
        logits: The LM's own (V,).
        filtered: The same after the sampler's filters.
        phrases: Those whose first token the LM accepts, or None.
        sampler: The sequence's.

    Returns:
        The unit.
    """
    if phrases is None:
        return Choice(sampler.pick(filtered), logits)
    # Filters and penalties act on tokens; a phrase is a proposal that passes them by.
    scaled = (phrases.logits / sampler.temperature).astype(numpy.float32)
    picked = sampler.pick(numpy.concatenate([filtered, scaled]))
    return Choice(_unit(picked, len(logits), phrases), logits, phrases)


def guess(logit: float, phrases: Scored, draft: float) -> int | None:
    """Return the number of the phrase that is likeliest to go on from a chosen token.

    Args:
        logit: The token's own.
        phrases: Those that begin with it.
        draft: Guess only if this brings the phrase's logit above the token's.

    Returns:
        The phrase, or None if none is likely enough.
    """
    best = int(phrases.logits.argmax())
    return int(phrases.numbers[best]) if phrases.logits[best] + draft > logit else None


def choose_escape(
    size: int, phrases: Scored, ways: Collection[int], sampler: Sampler
) -> Choice | None:
    """Choose a phrase that begins with one of some tokens, whatever the LM thinks of it.

    Args:
        size: |V|.
        phrases: All that there are.
        ways: The tokens that lead out of a circle.
        sampler: The sequence's.

    Returns:
        A phrase, or None if none begins so.
    """
    leads = numpy.isin(phrases.first, list(ways)) & (phrases.logits > -math.inf)
    others = phrases.where(leads)
    if others is None:
        return None
    picked = sampler.pick((others.logits / sampler.temperature).astype(numpy.float32))
    no_token = numpy.full(size, -numpy.inf, numpy.float32)
    return Choice(size + int(others.numbers[picked]), no_token, others)


def ways_back(written: Sequence[int], token: int, escape: int) -> set[int]:
    """Return the tokens that lead round a circle, if this token would go on with it.

    Args:
        written: Base tokens so far.
        token: What would come next.
        escape: The profile's.

    Returns:
        What followed the text's last tokens before; nothing if there is no circle.
    """
    recent, back = written[-RECENT:], set[int]()
    for times, often in CIRCLES:
        followed = followers(recent, times * escape)
        back |= followed.keys() if followed[token] >= often else set()
    return back


def followers(ids: Sequence[int], size: int) -> Counter[int]:
    """Count what came after the last `size` ids where they stood before."""
    found: Counter[int] = Counter()
    end, last = len(ids) - 1, ids[-size:]
    at = ids.index(last[-1], size - 1) if len(ids) > size else end
    while at < end:
        if ids[at - size + 1 : at + 1] == last:
            found[ids[at + 1]] += 1
        at = ids.index(last[-1], at + 1)
    return found


def accepts(filtered: Floats, token: int, tolerance: float, sampler: Sampler) -> int:
    """Return the token that follows: the proposed one if it is accepted, else the LM's own.

    Args:
        filtered: Filtered logits (V,).
        token: The phrase's next token.
        tolerance: Accept while the probability is at least (1 - tolerance) of the best one's.
        sampler: The sequence's.

    Returns:
        `token`, or another one.
    """
    if filtered[token] >= filtered.max() + _log_share(tolerance):
        return token
    return sampler.pick(filtered)


def _unit(picked: int, size: int, phrases: Scored) -> int:
    return picked if picked < size else size + int(phrases.numbers[picked - size])


def _places(seen: Sequence[int], size: int, phrases: Scored) -> Sequence[int]:
    """Return where the ids seen stand among tokens and scored phrases."""
    numbers = [unit - size for unit in seen if unit >= size]
    if not numbers:
        return seen
    scored = numpy.flatnonzero(numpy.isin(phrases.numbers, numbers)) + size
    return [*(unit for unit in seen if unit < size), *scored.tolist()]


def _log_share(tolerance: float) -> float:
    return -math.inf if tolerance == 1.0 else math.log1p(-tolerance)
