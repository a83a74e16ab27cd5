"""A text as units copied from other documents: CoG's forward maximum matching (METHOD A.4.3)."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from univerb.errors import OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import PhraseSource
from univerb.phrases.tokenized import tokenize_lines
from univerb.tokenizer import Tokenizer

SELF = ""
"""The document name of a source that lies in the text itself."""

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class CogUnit:
    """A stretch of a text, and where else its words stand; `text[start:end]` of the whole."""

    text: str
    start: int
    end: int
    source: Span | None
    """The first place with the same words, up to space; None where nothing was matched."""


class _Word(NamedTuple):
    text: str
    start: int
    end: int

    @property
    def is_mark(self) -> bool:
        return not (self.text[0].isalnum() or self.text[0] == "_")


_Words = list[_Word]
_Places = dict[tuple[str, str], list[tuple[int, int]]]


def cog_units(
    text: str, support: Sequence[Document], sizes: tuple[int, int] = (2, 16), slide: bool = True
) -> list[CogUnit]:
    """Cut a text into the longest runs of words that stand elsewhere, and what is between them.

    Args:
        text: The text.
        support: Where to look, after the text before a run: the best document first.
        sizes: Shortest and longest run, in words; a run has no punctuation.
        slide: Go on one word after a place without a match. CoG passes over as many words as the
            shortest run has, and so misses runs that begin within them.

    Returns:
        Units that have every word of the text once. A source in the text itself is named `SELF`.
    """
    return _Support(support).units(text, _checked(sizes), slide)


def cog_phrases(
    support: Sequence[Document], sizes: tuple[int, int] = (2, 16), guards: Guards | None = None
) -> PhraseSource:
    """Make a source of the runs that a document shares with others, traced to those others.

    Args:
        support: Where to look, the best document first; the document itself is passed over.
        sizes: Shortest and longest run, in words.
        guards: What may be a phrase.

    Returns:
        A source that yields each distinct phrase once, with the places that its runs were found
        at: in the support, or before in the document.
    """
    low_high = _checked(sizes)
    index = _Support(support)
    rules = guards or Guards()

    def source(document: Document, tokenizer: Tokenizer) -> Iterator[Phrase]:
        units = index.units(document.text, low_high, slide=True, own=document.name)
        sources = {(unit.start, unit.end): unit.source for unit in units if unit.source}
        text = tokenize_lines(document, tokenizer, rules)
        found: dict[tuple[int, ...], list[Span]] = {}
        for first, last in text.aligned(sources):
            place = sources[int(text.visible[first]), int(text.end[last])]
            if place.document == SELF:
                place = replace(place, document=document.name)
            found.setdefault(tuple(text.ids[first : last + 1].tolist()), []).append(place)
        for key, places in found.items():
            spelled = tokenizer.decode(key)
            if rules.objection(key, spelled, tokenizer.special_ids) is None:
                yield Phrase(key, spelled, tuple(dict.fromkeys(places)))

    return source


class _Support:
    """Documents as words, and where each pair of words stands in them."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._names = [document.name for document in documents]
        self._words = [_words(document.text) for document in documents]
        self._places: _Places = defaultdict(list)
        for number, words in enumerate(self._words):
            for i in range(len(words) - 1):
                self._places[words[i].text, words[i + 1].text].append((number, i))

    def units(
        self, text: str, sizes: tuple[int, int], slide: bool, own: str | None = None
    ) -> list[CogUnit]:
        """Cut a text into units; documents called `own` do not count."""
        low, high = sizes
        words = _words(text)
        before: _Places = defaultdict(list)
        cuts: list[tuple[int, int, Span | None]] = []
        at = 0
        while at < len(words):
            limit = _until_mark(words, at, high)
            size, source = (
                self._longest(words, at, limit, before, own) if limit >= low else (0, None)
            )
            if size < low:
                size, source = (1 if slide else max(1, min(low, limit))), None
            if source is None and cuts and cuts[-1][2] is None:
                cuts[-1] = (cuts[-1][0], at + size, None)
            else:
                cuts.append((at, at + size, source))
            for i in range(max(at - 1, 0), at + size - 1):
                before[words[i].text, words[i + 1].text].append((-1, i))
            at += size
        edges = ((words[a].start, words[b - 1].end, source) for a, b, source in cuts)
        return [CogUnit(text[start:end], start, end, source) for start, end, source in edges]

    def _longest(
        self, words: _Words, at: int, limit: int, before: _Places, own: str | None
    ) -> tuple[int, Span | None]:
        """Return the longest run of at most `limit` words from `at` on, and its first place."""
        pair = (words[at].text, words[at + 1].text)
        best, source = 0, None
        for number, place in (*before.get(pair, ()), *self._places.get(pair, ())):
            other, name, stop = words, SELF, at
            if number >= 0:
                other, name = self._words[number], self._names[number]
                stop = len(other)
                if name == own:
                    continue
            size = _shared(words, at, other, place, min(limit, stop - place))
            if size > best:
                best, source = size, Span(name, other[place].start, other[place + size - 1].end)
            if best == limit:
                break
        return best, source


def _words(text: str) -> _Words:
    return [_Word(match.group(), *match.span()) for match in _WORD.finditer(text)]


def _until_mark(words: _Words, at: int, high: int) -> int:
    """Return how many words, at most `high`, stand from `at` on before the next mark."""
    run = words[at : at + high]
    return next((i for i, word in enumerate(run) if word.is_mark), len(run))


def _shared(words: _Words, at: int, other: _Words, place: int, limit: int) -> int:
    size = 0
    while size < limit and words[at + size].text == other[place + size].text:
        size += 1
    return size


def _checked(sizes: tuple[int, int]) -> tuple[int, int]:
    low, high = sizes if len(sizes) == 2 else (0, 0)
    if not 2 <= low <= high <= 64:
        raise OptionError(
            f"sizes is {sizes}; it must be (shortest, longest) with 2 <= a <= b <= 64, in words."
        )
    return low, high
