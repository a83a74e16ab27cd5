"""Drafts: tokens that a pass reads beyond a chosen unit, before it is known whether they stand.

They are how the documents go on, or prompt and output, where the text's last tokens stood there
before. A draft changes no text: what is kept of it is what would have been chosen token by token.
So it need not be likely, only worth its rows (`acceptance`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from univerb.decoding.acceptance import AcceptanceRates, DraftSource, best_length
from univerb.decoding.choice import Choice
from univerb.decoding.repetition import WrittenNGrams
from univerb.decoding.results import Candidate
from univerb.decoding.suffixes import DEPTH, DocumentSuffixes, Match, TextSuffixes
from univerb.engines.row_costs import MAX_ROWS, RowCosts
from univerb.vocabulary import DynamicVocabulary

_MAX_TOKENS = 1 << 20
"""Of larger documents only the first tokens are looked up."""


class Draft(NamedTuple):
    """Tokens that are read after a chosen unit."""

    ids: list[int]
    source: DraftSource
    match: int
    """Number of tokens that agreed before it."""


class UnreadPass(NamedTuple):
    """Rows of a pass that was asked for."""

    ids: Sequence[int]
    choice: Choice
    """What was chosen: its tokens come first, a draft may follow."""
    candidates: tuple[Candidate, ...]
    draft: Draft | None


_sorted: WeakKeyDictionary[DynamicVocabulary, tuple[int, DocumentSuffixes]] = WeakKeyDictionary()
"""Of each vocabulary, how many texts it had, and those: sequences share them."""


class Documents:
    """How a text goes on in a vocabulary's documents; follows the vocabulary."""

    def __init__(self, vocabulary: DynamicVocabulary) -> None:
        self._vocabulary = vocabulary

    def find(self, ids: Sequence[int], count: int = MAX_ROWS) -> Match:
        """Return how a text goes on in the documents, at most `count` tokens."""
        return self._suffixes().find(ids, count)

    def _suffixes(self) -> DocumentSuffixes:
        count = self._vocabulary.text_count
        known, suffixes = _sorted.get(self._vocabulary, (-1, None))
        if suffixes is None or known != count:
            suffixes = DocumentSuffixes(list(_beginnings(self._vocabulary.texts)))
            _sorted[self._vocabulary] = count, suffixes
        return suffixes


def _beginnings(texts: Iterable[Sequence[int]]) -> Iterator[Sequence[int]]:
    left = _MAX_TOKENS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


class Drafter:
    """What one sequence drafts.

    Args:
        documents: Where its vocabulary comes from.
        costs: What passes cost.
        no_repeat_ngram_size: Draft no token that would complete such an n-gram again; 0 is any.
        repeat_from: Where the text begins whose n-grams count.
    """

    def __init__(
        self,
        documents: Documents,
        costs: RowCosts,
        no_repeat_ngram_size: int = 0,
        repeat_from: int = 0,
    ) -> None:
        self._documents = documents
        self._costs = costs
        self._ngrams = WrittenNGrams(no_repeat_ngram_size) if no_repeat_ngram_size else None
        self._repeat_from = repeat_from
        self._text = TextSuffixes()
        self._rates = AcceptanceRates()

    def draft(
        self, ids: Sequence[int], unit: Sequence[int], room: int, batch_size: int
    ) -> Draft | None:
        """Return how a text may go on after a chosen unit, if that is worth its rows.

        Args:
            ids: The text so far: it only grows between two calls.
            unit: The tokens of what was chosen; of a phrase it is not known yet whether they stand.
            room: Tokens that there is room for, the unit included.
            batch_size: Number of sequences that share a pass.

        Returns:
            The draft.
        """
        longest = min(room, MAX_ROWS // batch_size) - len(unit)
        if longest < 1:
            return None
        matches: tuple[tuple[DraftSource, Match], ...] = (
            ("documents", self._documents.find([*ids[-DEPTH:], *unit], longest)),
            ("text", self._text_after(ids, unit, longest)),
        )
        best, best_value = None, 0.0
        for source, match in matches:
            limit = self._allowed(ids, unit, match.ids)
            rates = self._rates.expected(source, match.length) if limit else ()
            count, value = best_length(rates, limit, self._costs, len(unit), batch_size)
            if count and value > best_value:
                best, best_value = Draft(match.ids[:count], source, match.length), value
        return best

    def _allowed(self, ids: Sequence[int], unit: Sequence[int], drafted: Sequence[int]) -> int:
        """Return how many drafted tokens may follow a unit: none that repeats an n-gram."""
        if self._ngrams is None:
            return len(drafted)
        self._ngrams.update(ids[self._repeat_from :])
        return max(self._ngrams.count_new([*unit, *drafted]) - len(unit), 0)

    def _text_after(self, ids: Sequence[int], unit: Sequence[int], count: int) -> Match:
        """Return how the text went on where it stood before; a unit's first token is sure."""
        self._text.extend(ids[len(self._text) :])
        self._text.extend(unit[:1])
        rest = len(unit) - 1
        match = self._text.find(rest + count)
        if match.ids[:rest] != list(unit[1:]):
            return Match([], 0)
        return Match(match.ids[rest:], match.length + rest)

    def update(self, draft: Draft, accepted: int) -> None:
        """Learn how many tokens of a draft were accepted; below 0 it was never reached."""
        if accepted < 0:
            return
        self._rates.update(draft.source, draft.match, len(draft.ids), accepted)
