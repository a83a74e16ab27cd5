"""How one sequence chooses: repetition control, filters, and what the LM accepts of a phrase."""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple, Self

import numpy
from numpy.typing import NDArray

from univerb.config import GenerationConfig
from univerb.decoding.choice import Choice, accepted_tokens, accepts, choose
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.phrase_head import PhraseHead, PhraseLogits, Place
from univerb.decoding.repetition import repeated_tokens
from univerb.engines.base import Floats, Output, Sampler


class State(NamedTuple):
    """The LM after the last row."""

    hidden: Floats
    """(d,)"""
    logits: Floats
    """(V,)"""

    @classmethod
    def after(cls, output: Output, row: int) -> Self:
        """Return the state after a row of a pass."""
        return cls(output.hidden[row], output.logits[row])


class Chooser:
    """Chooses the units of one sequence.

    Args:
        config: The options of the generation.
        sampler: Holds the sequence's random state.
        head: Scores its phrases; None without a vocabulary.
    """

    def __init__(self, config: GenerationConfig, sampler: Sampler, head: PhraseHead | None) -> None:
        self._sampler = sampler
        self._head = head
        self._is_atomic = config.mode == "atomic"
        self._tolerance = config.tolerance
        self._eagerness = config.eagerness
        # In the conditional form documents vote on the token, and phrases go on from it.
        self._voting = head if isinstance(head, ConditionalPhraseHead) else None
        if not self._is_atomic and config.tolerance == 0.0:
            self._voting = None
        self._needs_no_shares = sampler.is_greedy and not (self._is_atomic or config.explain)
        """Whether nobody asks how likely other choices were."""
        self._counted_seconds = 0.0
        self._no_repeat = config.no_repeat_ngram_size
        self._repeat_from = config.repeat_from
        self.masked_tokens: frozenset[int] = frozenset()
        """Tokens that may not follow for now."""

    def choose(self, state: State, ids: list[int], units: Sequence[int], max_length: int) -> Choice:
        """Choose the unit that follows some base tokens.

        Args:
            state: The LM's, after the tokens.
            ids: Base tokens of prompt and output.
            units: The ids of phrases that were written as one vector.
            max_length: Leave out phrases with more tokens than this.

        Returns:
            The choice.
        """
        allowed, masked = self._allowed(state.logits, ids)
        place = Place(*state, ids, max_length)
        if self._voting is not None and self._needs_no_shares:
            return self._choose_one(place, allowed, masked, self._voting)
        if self._voting is not None:
            place = place._replace(logits=self._voting.voted(place))
            allowed = numpy.where(self._accepted(allowed, ids), place.logits, -numpy.inf)
        phrases = self._phrases(place, allowed)
        if phrases is not None and masked:
            phrases = phrases.where(~numpy.isin(phrases.first_tokens, list(masked)))
        seen = [*ids[self._repeat_from :], *units]
        return choose(place.logits, allowed, phrases, self._sampler, seen, self._eagerness)

    def _choose_one(
        self, place: Place, allowed: Floats, masked: Set[int], head: ConditionalPhraseHead
    ) -> Choice:
        """Choose greedily as `choose` does, and compute only what decides."""
        is_accepted = self._accepted(allowed, place.ids)
        tokens = numpy.flatnonzero(is_accepted)
        if len(tokens) == 1:
            # Documents cannot vote for another one.
            token = int(tokens[0])
        else:
            allowed = numpy.where(is_accepted, head.voted(place), -numpy.inf)
            token = self._sampler.pick(self._filtered(allowed, place.ids))
        phrase = None if token in masked else head.greedy(token, place)
        return Choice(token if phrase is None else len(allowed) + phrase, place.logits)

    def _accepted(self, allowed: Floats, ids: Sequence[int]) -> NDArray[numpy.bool_]:
        """Return which tokens documents may vote for: greedily in `unfold`, those it accepts."""
        if self._is_atomic or not self._sampler.is_greedy or self._tolerance == 1.0:
            return allowed > -numpy.inf
        filtered = self._filtered(allowed, ids)
        is_accepted = numpy.zeros(len(allowed), dtype=bool)
        is_accepted[accepted_tokens(filtered, self._tolerance)] = True
        return is_accepted & (allowed > -numpy.inf)

    def new_encode_seconds(self) -> float:
        """Return how long choices have been encoding since the last call."""
        total = self._head.encode_seconds if self._head is not None else 0.0
        new, self._counted_seconds = total - self._counted_seconds, total
        return new

    def may_choose(self, token: int, logits: Floats, ids: list[int]) -> bool:
        """Tell at no cost whether a token may be chosen: a greedy choice has only one."""
        if self._voting is not None or not self._sampler.is_greedy:
            return True
        allowed, _ = self._allowed(logits, ids)
        return int(self._filtered(allowed, ids).argmax()) == token

    def accepted(
        self, phrase: Sequence[int], before: list[int], logits: Floats
    ) -> tuple[int, int | None]:
        """Count the tokens of a chosen phrase that the LM accepts.

        Args:
            phrase: The phrase's tokens; the first was accepted before the choice.
            before: Base tokens of prompt and output before them.
            logits: The LM's after each of them (n, V).

        Returns:
            The number, and the LM's own token that follows where the phrase is cut.
        """
        for count in range(1, len(phrase)):
            token, written = phrase[count], [*before, *phrase[:count]]
            allowed, masked = self._allowed(logits[count - 1], written)
            filtered = self._filtered(allowed, written)
            if token in masked or not accepts(filtered, token, self._tolerance, self._sampler):
                others = filtered.copy()
                others[token] = -numpy.inf
                return count, self._sampler.pick(others)
        return len(phrase), None

    def _allowed(self, logits: Floats, ids: list[int]) -> tuple[Floats, Set[int]]:
        """Mask the tokens that would repeat an n-gram and others; returns them, too."""
        masked: Set[int] = self.masked_tokens
        if self._no_repeat:
            masked = masked | repeated_tokens(ids[self._repeat_from :], self._no_repeat)
        if masked:
            logits = logits.copy()
            logits[list(masked)] = -numpy.inf
        return logits, masked

    def _filtered(self, logits: Floats, ids: Sequence[int]) -> Floats:
        return self._sampler.filtered(logits, ids[self._repeat_from :])

    def _phrases(self, place: Place, allowed: Floats) -> PhraseLogits | None:
        """Score the phrases that may be chosen; in `unfold` those whose first token is accepted."""
        if self._head is None or (self._tolerance == 0.0 and not self._is_atomic):
            return None
        takes_best = self._voting is not None and self._sampler.is_greedy
        if self._is_atomic and not takes_best:
            return self._head.logits(place)
        filtered = self._filtered(allowed, place.ids)
        if takes_best:
            best = numpy.array([filtered.argmax()])
            return self._head.logits_by_first_token(best, place)
        if self._tolerance == 1.0:
            return self._head.logits(place, filtered)
        tokens = accepted_tokens(filtered, self._tolerance)
        phrases = self._head.logits_by_first_token(tokens, place)
        # Phrases that cannot be chosen must not even lengthen the draw.
        return phrases and phrases.where(phrases.logits > -math.inf)
