"""A text as units copied from other documents: forward maximum matching as CoG does it.

See docs/method.md, Training samples.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from univerb.errors import OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import PhraseSource, guarded_phrases
from univerb.phrases.tokenized import tokenize_lines
from univerb.tokenizer import Tokenizer

SELF = ""
"""Document name of a source in the text itself."""

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class CogUnit:
    """A span of a text, `text[start:end]`, and the source that it could be copied from."""

    text: str
    start: int
    end: int
    source: Span | None
    """First span with the same words, up to space; None if there is no match."""


class _Word(NamedTuple):
    text: str
    start: int
    end: int

    @property
    def is_mark(self) -> bool:
        return not (self.text[0].isalnum() or self.text[0] == "_")


_Words = list[_Word]
_PairIndex = dict[tuple[str, str], list[tuple[int, int]]]


def cog_units(
    text: str, support: Sequence[Document], sizes: tuple[int, int] = (2, 16), slide: bool = True
) -> list[CogUnit]:
    """Segment a text into the longest runs of words that occur elsewhere, and what is between.

    Args:
        text: The text.
        support: Documents to search, best first, after the text before a run.
        sizes: Shortest and longest run, in words; a run has no punctuation.
        slide: Continue one word after a word without a match. CoG skips as many words as the
            shortest run has, and so misses runs that begin within them.

    Returns:
        Units that have every word of the text once. A source in the text itself is named `SELF`.
    """
    return _Support(support).units(text, _checked(sizes), slide)


def cog_phrases(
    support: Sequence[Document], sizes: tuple[int, int] = (2, 16), guards: Guards | None = None
) -> PhraseSource:
    """Make a source of the runs that a document shares with `support`, the best document first.

    A phrase's sources are spans of the support, or of the document before the run; the document
    itself is not searched as part of the support.
    """
    checked = _checked(sizes)
    index = _Support(support)
    rules = guards or Guards()

    def source(document: Document, tokenizer: Tokenizer) -> Iterator[Phrase]:
        units = index.units(document.text, checked, slide=True, excluded=document.name)
        copied = {(unit.start, unit.end): unit.source for unit in units if unit.source}
        text = tokenize_lines(document, tokenizer, rules)
        sources: dict[tuple[int, ...], dict[Span, None]] = defaultdict(dict)
        for first, last in text.aligned(copied):
            span = copied[int(text.visible[first]), int(text.end[last])]
            if span.document == SELF:
                span = replace(span, document=document.name)
            sources[tuple(text.ids[first : last + 1].tolist())][span] = None
        return guarded_phrases(sources, tokenizer, rules)

    return source


class _Support:
    """Documents as words, indexed by pairs of adjacent words."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._names = [document.name for document in documents]
        self._words = [_words(document.text) for document in documents]
        self._pairs: _PairIndex = defaultdict(list)
        for number, words in enumerate(self._words):
            for i in range(len(words) - 1):
                self._pairs[words[i].text, words[i + 1].text].append((number, i))

    def units(
        self, text: str, sizes: tuple[int, int], slide: bool, excluded: str | None = None
    ) -> list[CogUnit]:
        """Segment a text into units; documents called `excluded` are not searched."""
        low, high = sizes
        words = _words(text)
        before: _PairIndex = defaultdict(list)
        cuts: list[tuple[int, int, Span | None]] = []
        at = 0
        while at < len(words):
            limit = _until_mark(words, at, high)
            size, source = (
                self._longest(words, at, limit, before, excluded) if limit >= low else (0, None)
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
        self, words: _Words, at: int, limit: int, before: _PairIndex, excluded: str | None
    ) -> tuple[int, Span | None]:
        """Return the longest run of at most `limit` words from `at` on, and its first source."""
        pair = (words[at].text, words[at + 1].text)
        best, source = 0, None
        for number, begin in (*before.get(pair, ()), *self._pairs.get(pair, ())):
            other, name, stop = words, SELF, at
            if number >= 0:
                other, name = self._words[number], self._names[number]
                stop = len(other)
                if name == excluded:
                    continue
            size = _shared(words, at, other, begin, min(limit, stop - begin))
            if size > best:
                best, source = size, Span(name, other[begin].start, other[begin + size - 1].end)
            if best == limit:
                break
        return best, source


def _words(text: str) -> _Words:
    return [_Word(match.group(), *match.span()) for match in _WORD.finditer(text)]


def _until_mark(words: _Words, at: int, high: int) -> int:
    """Return the number of words, at most `high`, from `at` on before the next mark."""
    window = words[at : at + high]
    return next((i for i, word in enumerate(window) if word.is_mark), len(window))


def _shared(words: _Words, at: int, other: _Words, begin: int, limit: int) -> int:
    size = 0
    while size < limit and words[at + size].text == other[begin + size].text:
        size += 1
    return size


def _checked(sizes: tuple[int, int]) -> tuple[int, int]:
    low, high = sizes if len(sizes) == 2 else (0, 0)
    if not 2 <= low <= high <= 64:
        raise OptionError(
            f"sizes is {sizes}; it must be (shortest, longest) with 2 <= a <= b <= 64, in words."
        )
    return low, high
