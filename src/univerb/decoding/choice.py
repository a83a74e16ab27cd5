"""The phrases of one sequence, and the choice between them and the LM's tokens.

`atomic` and `unfold` choose by one softmax over V + P. `unfold` first masks the phrases whose
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

import torch
from torch import Tensor

from univerb.decoding.sampling import Sampler
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.table import TableView
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary


class Choice(NamedTuple):
    """What was chosen, and the scores it was chosen from."""

    unit: int
    """A token id, or |V| + index of a phrase."""
    scores: Tensor
    """Unfiltered logits over V, or over V + P where both took part."""
    phrases: Tensor | None = None
    """Those of all phrases, if they were computed."""


class ActivePhrases:
    """The phrases that a sequence may choose right now, as scores."""

    def __init__(
        self,
        lm: DynamicLM,
        vocabulary: DynamicVocabulary,
        phrase_bias: float,
        ban: Sequence[str],
        ends: frozenset[int],
    ) -> None:
        self.vocabulary = vocabulary
        self._lm = lm
        self._phrase_bias = phrase_bias
        self._ban = tuple(ban)
        self._ends = ends
        self._banned = bytearray()
        self._view: TableView | None = None
        self._bias: Tensor | None = None
        self._longest = 0

    def refresh(self) -> TableView | None:
        """Follow the vocabulary: encode what is new, mask what is gone or banned."""
        view = self._lm.rows(self.vocabulary)
        if view is not None and view is not self._view:
            self._bias = view.bias + self._phrase_bias
            self._longest = int(view.lengths.max())
            fresh = self.vocabulary.snapshot(since=len(self._banned)).phrases
            self._banned.extend(map(self._is_banned, fresh))
            if any(self._banned):
                is_banned = torch.frombuffer(bytearray(self._banned), dtype=torch.bool)
                is_banned = is_banned[: len(view.bias)].to(view.bias.device)
                self._bias = self._bias.masked_fill(is_banned, -math.inf)
        self._view = view
        return view

    def _is_banned(self, phrase: Phrase) -> bool:
        # A text ends at its end token, so a phrase that goes on after one cannot be written.
        return not self._ends.isdisjoint(phrase.ids) or any(t in phrase.text for t in self._ban)

    def scores(self, hidden: Tensor, longest: int) -> Tensor | None:
        """Score the phrases against a hidden state (d,).

        Args:
            hidden: The LM's state after the last row.
            longest: Mask phrases with more tokens than this.

        Returns:
            Logits (P,) in float32, or None if there is nothing to choose.
        """
        if self._view is None or self._bias is None:
            return None
        scores = torch.addmv(self._bias, self._view.outputs, hidden).float()
        if longest < self._longest:
            scores = scores.masked_fill(self._view.lengths > longest, -math.inf)
        return scores if _any_left(scores) else None

    def is_barred(self, number: int) -> bool:
        """Whether a phrase may not be chosen any more."""
        return self._bias is None or bool(self._bias[number] == -math.inf)

    @property
    def view(self) -> TableView:
        """The rows that the scores belong to."""
        assert self._view is not None
        return self._view


def choose_atomic(
    logits: Tensor, phrases: Tensor | None, sampler: Sampler, seen: Sequence[int]
) -> Choice:
    """Choose a unit by one softmax over V + P."""
    scores = logits if phrases is None else torch.cat([logits, phrases])
    return Choice(sampler.pick(sampler.filtered(scores, seen)), scores)


def choose_unfold(
    logits: Tensor,
    phrases: Tensor | None,
    first: Tensor | None,
    tolerance: float,
    sampler: Sampler,
    seen: Sequence[int],
) -> Choice:
    """Choose a unit whose first token the LM accepts.

    Args:
        logits: The LM's own (V,).
        phrases: The phrases' (P,), or None.
        first: Each phrase's first token (P,).
        tolerance: As in `accepts`.
        sampler: The sequence's.
        seen: The ids so far, for penalties.

    Returns:
        A token, or a phrase as a proposal.
    """
    filtered = sampler.filtered(logits, seen)
    if phrases is not None and first is not None and tolerance > 0.0:
        lowest = filtered.max() + _log_share(tolerance)
        allowed = phrases.masked_fill(filtered[first] < lowest, -math.inf)
        if _any_left(allowed):
            # Filters and penalties act on tokens; a phrase is a proposal that passes them by.
            both = torch.cat([filtered, allowed / sampler.temperature])
            return Choice(sampler.pick(both), torch.cat([logits, allowed]), phrases)
    return Choice(sampler.pick(filtered), logits, phrases)


def guess(token: int, logit: Tensor, phrases: Tensor, first: Tensor, draft: float) -> int | None:
    """Return the number of the phrase that is likeliest to go on from a chosen token.

    Args:
        token: The token.
        logit: Its own, a scalar.
        phrases: The phrases' (P,).
        first: Each phrase's first token (P,).
        draft: Guess only if this brings the phrase's logit above the token's.

    Returns:
        The phrase, or None if none is likely enough.
    """
    own = phrases.masked_fill(first != token, -math.inf)
    best = int(own.argmax())
    return best if bool(own[best] + draft > logit) else None


def choose_escape(
    size: int, phrases: Tensor, first: Tensor, ways: Collection[int], sampler: Sampler
) -> Choice | None:
    """Choose a phrase that begins with one of some tokens, whatever the LM thinks of it.

    Args:
        size: |V|.
        phrases: The phrases' logits (P,).
        first: Each phrase's first token (P,).
        ways: The tokens that lead out of a circle.
        sampler: The sequence's.

    Returns:
        A phrase, or None if none begins so.
    """
    leads = torch.isin(first, torch.tensor(sorted(ways), device=first.device, dtype=first.dtype))
    others = phrases.masked_fill(~leads, -math.inf)
    if not _any_left(others):
        return None
    unit = size + sampler.pick(others / sampler.temperature)
    # No token took part.
    return Choice(unit, torch.cat([others.new_full((size,), -math.inf), others]), phrases)


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


def accepts(filtered: Tensor, token: int, tolerance: float, sampler: Sampler) -> int:
    """Return the token that follows: the proposed one if it is accepted, else the LM's own.

    Args:
        filtered: Filtered logits (V,).
        token: The phrase's next token.
        tolerance: Accept while the probability is at least (1 - tolerance) of the best one's.
        sampler: The sequence's.

    Returns:
        `token`, or another one.
    """
    if bool(filtered[token] >= filtered.max() + _log_share(tolerance)):
        return token
    return sampler.pick(filtered)


def _any_left(scores: Tensor) -> bool:
    # Phrases that cannot be chosen must not even lengthen the draw: its random state would shift.
    return bool(scores.max() > -math.inf)


def _log_share(tolerance: float) -> float:
    return -math.inf if tolerance == 1.0 else math.log1p(-tolerance)
