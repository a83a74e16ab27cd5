"""The phrases that one sequence may choose right now, and their scores: the phrase head.

The head never becomes one matrix with the LM's own. A choice rarely needs all of it: `unfold` can
only take a phrase whose first token the LM accepts, so only the rows of those tokens are
multiplied, and nothing is lost. `atomic` may take any phrase; for large vocabularies it, too, looks
only at the first tokens that the LM finds likeliest (the short-list), and the mass of all others is
dropped from the softmax. docs/speed.md says what that changes.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.engines.base import Floats, Ints, PhraseRows
from univerb.modeling.phrase_model import PhraseModel
from univerb.modeling.phrase_table import TableView
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_RESCORED = 32
"""The best of half-precision rows are multiplied again in single precision."""


class Scored(NamedTuple):
    """Phrases that may be chosen, with their logits."""

    numbers: Ints
    """(S,), the id of each is |V| + number."""
    first: Ints
    """(S,), each one's first token."""
    logits: Floats
    """(S,)"""

    def where(self, chosen: NDArray[numpy.bool_]) -> "Scored | None":
        """Keep some of them; None if none is left."""
        if not chosen.any():
            return None
        return Scored(self.numbers[chosen], self.first[chosen], self.logits[chosen])


class ActivePhrases:
    """A vocabulary as one sequence sees it."""

    def __init__(
        self,
        lm: PhraseModel,
        rows: PhraseRows,
        vocabulary: DynamicVocabulary,
        phrase_bias: float,
        ban: Sequence[str],
        ends: frozenset[int],
        exact: bool | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self._lm = lm
        self._rows = rows
        self._phrase_bias = numpy.float32(phrase_bias)
        self._ban = tuple(ban)
        self._ends = ends
        self._exact = exact
        self._banned = bytearray()
        self._view: TableView | None = None
        self._bias = numpy.empty(0, numpy.float32)
        self._longest = 0

    def refresh(self) -> None:
        """Follow the vocabulary: encode what is new, mask what is gone or banned."""
        view = self._lm.table(self.vocabulary)
        if view is not None and view is not self._view:
            self._rows.follow(view)
            self._bias = view.bias + self._phrase_bias
            self._longest = int(view.lengths.max())
            if self._ban or not self._ends.isdisjoint(view.tokens):
                fresh = self.vocabulary.snapshot(since=len(self._banned)).phrases
                self._banned.extend(map(self._is_banned, fresh))
                is_banned = numpy.frombuffer(self._banned, dtype=bool)[view.numbers]
                self._bias = numpy.where(is_banned, -numpy.inf, self._bias).astype(numpy.float32)
        self._view = view

    def _is_banned(self, phrase: Phrase) -> bool:
        # A text ends at its end token, so a phrase that goes on after one cannot be written.
        return not self._ends.isdisjoint(phrase.ids) or any(t in phrase.text for t in self._ban)

    @property
    def is_large(self) -> bool:
        """Whether a choice among all phrases looks only at a short-list."""
        if self._exact is not None:
            return not self._exact
        return self._view is not None and len(self._view.numbers) >= self._rows.short_list.start

    def scored(self, hidden: Floats, longest: int) -> Scored | None:
        """Score all phrases of at most so many tokens against a state (d,)."""
        if self._view is None:
            return None
        return self._scored(self._view, hidden, longest, [slice(0, len(self._view.numbers))])

    def beginning_with(
        self, tokens: Ints, hidden: Floats, longest: int, most: int | None = None
    ) -> Scored | None:
        """Score the phrases that begin with one of some tokens.

        Args:
            tokens: The tokens, each once.
            hidden: The LM's state after the last row (d,).
            longest: Leave out phrases with more tokens than this.
            most: At most so many per token.

        Returns:
            The phrases, or None if none of them may be chosen.
        """
        if self._view is None:
            return None
        stretches = self._view.groups.find(tokens)
        if most is not None:
            stretches = [_begin(rows, most) for rows in stretches]
        return self._scored(self._view, hidden, longest, stretches)

    def short_list(self, logits: Floats, hidden: Floats, longest: int) -> Scored | None:
        """Score the phrases whose first tokens are likeliest, a limited number of each."""
        _, count, per_token, gap = self._rows.short_list
        likeliest = numpy.flatnonzero(logits >= logits.max() - gap)
        if len(likeliest) > count:
            likeliest = likeliest[numpy.argpartition(logits[likeliest], -count)[-count:]]
        return self.beginning_with(likeliest, hidden, longest, per_token)

    def _scored(
        self, view: TableView, hidden: Floats, longest: int, stretches: Sequence[Ints | slice]
    ) -> Scored | None:
        if not stretches:
            return None
        logits = self._rows.products(hidden, stretches)
        logits += _joined(self._bias, stretches)
        numbers, first = (_joined(column, stretches) for column in (view.numbers, view.first))
        found = Scored(numbers, first, logits)
        if longest < self._longest:
            logits[_joined(view.lengths, stretches) > longest] = -numpy.inf
        if logits.max() == -numpy.inf:
            return None
        if self._rows.is_rough:
            self._rescore(view, hidden, found)
        return found

    def _rescore(self, view: TableView, hidden: Floats, found: Scored) -> None:
        """Put exact logits where they decide."""
        count = min(_RESCORED, len(found.logits))
        best = numpy.argpartition(found.logits, -count)[-count:]
        best = best[found.logits[best] > -numpy.inf]
        rows = view.places[found.numbers[best]]
        found.logits[best] = self._rows.exact(hidden, rows) + self._bias[rows]

    def is_barred(self, number: int) -> bool:
        """Whether a phrase may not be chosen any more."""
        # Others may have added it since this sequence looked.
        if self._view is None or number >= len(self._view.places):
            return True
        place = int(self._view.places[number])
        return place < 0 or bool(self._bias[place] == -math.inf)

    def input(self, number: int) -> Floats:
        """Return the vector that is fed for a phrase, (d,)."""
        assert self._view is not None
        return self._view.input(number)


def _begin(rows: Ints | slice, most: int) -> Ints | slice:
    return (
        slice(rows.start, min(rows.stop, rows.start + most))
        if isinstance(rows, slice)
        else rows[:most]
    )


def _joined(column: NDArray[Any], stretches: Sequence[Ints | slice]) -> NDArray[Any]:
    if len(stretches) == 1:
        return column[stretches[0]]
    return numpy.concatenate([column[rows] for rows in stretches])
