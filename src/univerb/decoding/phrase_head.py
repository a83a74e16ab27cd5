"""The phrase head: the logits of the phrases that one sequence may choose.

The head never becomes one matrix with the LM's own. A choice rarely needs all of it: `unfold` can
only take a phrase whose first token the LM accepts, so only the rows of those tokens are
multiplied, and nothing is lost. `atomic` may take any phrase; for large vocabularies it, too, looks
only at the first tokens that the LM finds likeliest (the short-list), and the mass of all others is
dropped from the softmax. docs/speed.md says what that changes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.config import GenerationConfig
from univerb.decoding.repetition import RepeatedPhrases
from univerb.engines.base import Floats, Ints, PhraseWeights
from univerb.modeling.phrase_model import PhraseModel, check_highest
from univerb.modeling.phrase_table import TableView
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_RESCORED = 32
"""The best of approximate logits are computed again in single precision."""


class Place(NamedTuple):
    """Where a choice is made."""

    hidden: Floats
    """The LM's state after the last row (d,)."""
    logits: Floats
    """The LM's own logits (V,)."""
    ids: Sequence[int]
    """Base tokens of prompt and output."""
    max_length: int
    """Leave out phrases with more tokens than this."""


class TokenShare(NamedTuple):
    """A first token in the conditional form."""

    stop: float
    """Log-probability that none of its phrases is chosen, given the token."""
    greedy: int | None
    """The phrase that greedy decoding goes on to, as an index; None if it stops."""


class PhraseLogits(NamedTuple):
    """Phrases that may be chosen, with their logits."""

    indices: Ints
    """(S,), the id of each is |V| + index."""
    first_tokens: Ints
    """(S,)"""
    logits: Floats
    """(S,)"""
    shares: "Mapping[int, TokenShare]" = MappingProxyType({})
    """In the conditional form, what each first token keeps for itself, and its greedy phrase."""

    def where(self, mask: NDArray[numpy.bool_]) -> "PhraseLogits | None":
        """Keep those where the mask is True; None if none is left."""
        if not mask.any():
            return None
        columns = (self.indices[mask], self.first_tokens[mask], self.logits[mask])
        return PhraseLogits(*columns, self.shares)

    def left_to_tokens(self, logits: Floats) -> Floats:
        """Take from first tokens (V,) what their phrases have."""
        left = logits.copy()
        for token, share in self.shares.items():
            left[token] += numpy.float32(share.stop)
        return left

    def without(self, indices: Collection[int]) -> "PhraseLogits | None":
        """Leave some phrases out; None if none is left."""
        return self.where(~numpy.isin(self.indices, list(indices))) if indices else self


class PhraseHead:
    """A vocabulary as one sequence scores it."""

    def __init__(
        self,
        lm: PhraseModel,
        weights: PhraseWeights,
        vocabulary: DynamicVocabulary,
        config: GenerationConfig,
        eos_ids: frozenset[int],
    ) -> None:
        self.vocabulary = vocabulary
        self._lm = lm
        self._weights = weights
        self._phrase_bias = numpy.float32(config.phrase_bias)
        self._eagerness = config.eagerness
        self._ban = config.ban
        self._eos_ids = eos_ids
        self._exact = config.exact
        self._is_banned = bytearray()
        self.encode_seconds = 0.0
        """Time that was spent on vectors besides `update`."""
        self._view: TableView | None = None
        self._bias = numpy.empty(0, numpy.float32)
        self._max_length = 0
        # A phrase that is fed as its tokens is cut before the token that would repeat.
        size = config.no_repeat_ngram_size if config.mode == "atomic" else 0
        self._repeated = RepeatedPhrases(vocabulary, size) if size else None
        self._repeat_from = config.repeat_from

    def update(self) -> None:
        """Follow the vocabulary: encode what is new, mask what is gone or banned."""
        view = self._lm.encode(self.vocabulary)
        if view is not None and view is not self._view:
            self._weights.update(view)
            self._bias = view.bias + self._phrase_bias
            self._max_length = int(view.lengths.max())
            if self._ban or not self._eos_ids.isdisjoint(view.tokens):
                is_banned = self._banned()[view.phrase_indices]
                self._bias = numpy.where(is_banned, -numpy.inf, self._bias).astype(numpy.float32)
        self._view = view

    def _banned(self) -> NDArray[numpy.bool_]:
        """Return which phrases of the vocabulary may never be written (P,)."""
        new = self.vocabulary.snapshot(since=len(self._is_banned)).phrases
        self._is_banned.extend(map(self._bans, new))
        return numpy.array(self._is_banned, dtype=bool)

    def _bans(self, phrase: Phrase) -> bool:
        # A text ends at its end token, so a phrase that goes on after one cannot be written.
        has_eos = not self._eos_ids.isdisjoint(phrase.ids)
        return has_eos or any(text in phrase.text for text in self._ban)

    def logits(self, place: Place, ranked: Floats | None = None) -> PhraseLogits | None:
        """Score all phrases, or the short-list of a large vocabulary.

        Args:
            place: Where the choice is.
            ranked: (V,) what first tokens of a short-list are chosen by, if not the LM's logits.

        Returns:
            The phrases, None if none of them may be chosen.
        """
        if self._view is None:
            return None
        if not self._uses_short_list(self._view):
            return self._score(place, [slice(0, len(self._view.phrase_indices))])
        _, count, per_token, max_gap = self._weights.short_list
        tokens = self._likeliest(place.logits if ranked is None else ranked, count, max_gap)
        return self.logits_by_first_token(tokens, place, per_token)

    def _likeliest(self, logits: Floats, count: int, max_gap: float) -> Ints:
        """Return at most `count` tokens whose logits are near the best one's."""
        tokens = numpy.flatnonzero(logits >= logits.max() - max_gap)
        if len(tokens) > count:
            tokens = tokens[numpy.argpartition(logits[tokens], -count)[-count:]]
        return tokens

    def _uses_short_list(self, view: TableView) -> bool:
        if self._exact is not None:
            return not self._exact
        return len(view.phrase_indices) >= self._weights.short_list.min_phrases

    def logits_by_first_token(
        self, tokens: Ints, place: Place, per_token: int | None = None
    ) -> PhraseLogits | None:
        """Score the phrases that begin with one of some tokens, `per_token` of each at most."""
        if self._view is None:
            return None
        spans = self._view.groups.find(tokens)
        if per_token is not None:
            spans = [_truncated(rows, per_token) for rows in spans]
        return self._score(place, spans)

    def _score(self, place: Place, spans: Sequence[Ints | slice]) -> PhraseLogits | None:
        view = self._view
        if view is None or not spans:
            return None
        logits = self._weights.logits(place.hidden, spans)
        logits += _joined(self._bias, spans)
        indices, first_tokens = (
            _joined(column, spans) for column in (view.phrase_indices, view.first_tokens)
        )
        scored = PhraseLogits(indices, first_tokens, logits)
        if place.max_length < self._max_length:
            logits[_joined(view.lengths, spans) > place.max_length] = -numpy.inf
        highest = float(logits.max())
        if highest == -math.inf:
            return None
        check_highest(highest, self._lm.name)
        if self._weights.is_approximate:
            self._rescore(view, place.hidden, scored)
        return scored.without(self._repeated_indices(place.ids))

    def _rescore(self, view: TableView, hidden: Floats, scored: PhraseLogits) -> None:
        """Put exact logits where they decide."""
        count = min(_RESCORED, len(scored.logits))
        best = numpy.argpartition(scored.logits, -count)[-count:]
        best = best[scored.logits[best] > -numpy.inf]
        rows = view.rows[scored.indices[best]]
        scored.logits[best] = self._weights.exact_logits(hidden, rows) + self._bias[rows]

    def _repeated_indices(self, ids: Sequence[int]) -> set[int]:
        """Return the phrases that would repeat an n-gram after some base tokens."""
        counted = ids[self._repeat_from :]
        return self._repeated.update(counted) if self._repeated and counted else set()

    def is_masked(self, index: int) -> bool:
        """Whether a phrase may not be chosen any more."""
        # Others may have added it since this sequence looked.
        if self._view is None or index >= len(self._view.rows):
            return True
        row = int(self._view.rows[index])
        return row < 0 or bool(self._bias[row] == -math.inf)

    def input(self, index: int) -> Floats:
        """Return the vector that is fed for a phrase, (d,)."""
        assert self._view is not None
        return self._view.input(index)


def _truncated(rows: Ints | slice, count: int) -> Ints | slice:
    if isinstance(rows, slice):
        return slice(rows.start, min(rows.stop, rows.start + count))
    return rows[:count]


def _joined(column: NDArray[Any], spans: Sequence[Ints | slice]) -> NDArray[Any]:
    if len(spans) == 1:
        return column[spans[0]]
    return numpy.concatenate([column[rows] for rows in spans])
