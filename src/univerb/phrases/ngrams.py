"""All n-grams of a document, over the LM's tokens or over words (paper, sections 2.3 and 3.1)."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy

from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.guards import Guards, is_unspaced
from univerb.phrases.hashing import Ints, Keys, RollingHash
from univerb.phrases.tokenized import CONTENT, TokenizedText, tokenize_lines
from univerb.tokenizer import Tokenizer

PhraseSource = Callable[[Document, Tokenizer], Iterator[Phrase]]
"""Yields the phrases of a document, each with all its spans in it."""


class UnspacedTextWarning(UserWarning):
    """A document is written in a script without spaces between words."""


def ngrams(sizes: tuple[int, int] = (2, 8), guards: Guards | None = None) -> PhraseSource:
    """Make a source of all n-grams of `sizes` (shortest, longest) over the LM's tokens."""
    low, high = checked_sizes(sizes)

    def spans(text: TokenizedText) -> Spans:
        windows = [text.windows(size) for size in range(low, high + 1)]
        first = numpy.concatenate(windows)
        last = first + numpy.repeat(numpy.arange(low - 1, high), [len(w) for w in windows])
        order = numpy.lexsort((last, first))
        return first[order], last[order]

    return SpanSource(spans, guards or Guards())


def word_spans(sizes: tuple[int, int]) -> Callable[[str], list[tuple[int, int]]]:
    """Make a function that finds all n-grams of `sizes` over a text's words, as character spans.

    Words are split as in the paper, by NLTK, none of whose data is needed.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError:
        raise MissingExtra("nltk", "nltk") from None
    low, high = checked_sizes(sizes)
    splitter = NLTKWordTokenizer()

    def find(text: str) -> list[tuple[int, int]]:
        words = list(splitter.span_tokenize(text))
        return [
            (start, end)
            for size in range(low, high + 1)
            for (start, _), (_, end) in zip(words, words[size - 1 :], strict=False)
        ]

    return find


def word_ngrams(sizes: tuple[int, int] = (2, 5), guards: Guards | None = None) -> PhraseSource:
    """Make a source of all n-grams of `sizes` over words, split as in the paper (NLTK).

    N-grams whose ends are not those of tokens are left out.
    """
    find = word_spans(sizes)

    return SpanSource(
        lambda text: as_arrays(text.aligned(text.line_spans(find))), guards or Guards()
    )


def warn_if_unspaced(document: Document) -> None:
    """Warn if word boundaries mean little because the document's script has no spaces."""
    sample = [character for character in document.text[:4096] if character.isalpha()]
    share = sum(map(is_unspaced, sample)) / max(len(sample), 1)
    if share > 0.3:
        warnings.warn(
            f"{share:.0%} of the letters of {document.name!r} belong to a script without spaces "
            "between words: its phrases begin and end at characters instead of words. Supply your "
            "own phrase list for better ones.",
            UnspacedTextWarning,
            stacklevel=2,
        )


Spans = tuple[Ints, Ints]
"""First and last token of each."""


class CandidateSpans(NamedTuple):
    """Spans of a document's tokens that may become phrases."""

    document: str
    """The document's name."""
    text: TokenizedText
    first: Ints
    last: Ints
    keys: Keys
    """Hash of each one's tokens."""


@dataclass(frozen=True)
class SpanSource:
    """A phrase source that finds spans first, in arrays, and makes phrases of some of them."""

    spans_of: Callable[[TokenizedText], Spans]
    guards: Guards = field(default_factory=Guards)

    def __call__(self, document: Document, tokenizer: Tokenizer) -> Iterator[Phrase]:
        """Yield each distinct phrase of a document once, with all its spans."""
        return self.phrases(self.candidates(document, tokenizer), tokenizer)

    def candidates(self, document: Document, tokenizer: Tokenizer) -> CandidateSpans:
        """Find the spans of a document that have the size and the words that the guards ask for."""
        if self.guards.word_boundaries:
            warn_if_unspaced(document)
        text = tokenize_lines(document, tokenizer, self.guards)
        first, last = self.spans_of(text)
        arrays, at = text.arrays(), text.positions
        begin, end = at[first], at[last] + 1
        is_allowed = (end - begin >= self.guards.min_tokens) & arrays.have(CONTENT, begin, end)
        if self.guards.no_digits:
            is_allowed &= ~arrays.are_numbers(begin, end)
        first, last = first[is_allowed], last[is_allowed]
        keys = RollingHash(text.ids).keys(first, last + 1)
        return CandidateSpans(document.name, text, first, last, keys)

    def phrases(
        self, candidates: CandidateSpans, tokenizer: Tokenizer, kept: Keys | None = None
    ) -> Iterator[Phrase]:
        """Yield the phrases of candidates, of those with the `kept` keys if they are given."""
        name, text, first, last, keys = candidates
        if kept is not None:
            is_kept = numpy.isin(keys, kept)
            first, last = first[is_kept], last[is_kept]
        ids, edges = text.ids.tolist(), (text.visible[first].tolist(), text.end[last].tolist())
        sources: dict[tuple[int, ...], list[Span]] = {}
        for begin, end, start, stop in zip(first.tolist(), last.tolist(), *edges, strict=True):
            sources.setdefault(tuple(ids[begin : end + 1]), []).append(Span(name, start, stop))
        for key, spans in sources.items():
            spelled = tokenizer.decode(key)
            if self.guards.objection(key, spelled, tokenizer.special_ids) is None:
                yield Phrase(key, spelled, tuple(spans))


def as_arrays(pairs: Iterable[tuple[int, int]]) -> Spans:
    """Return pairs of a first and a last token as two arrays."""
    flat = numpy.fromiter(chain.from_iterable(pairs), dtype=numpy.int64)
    return flat[::2], flat[1::2]


def checked_sizes(sizes: tuple[int, int]) -> tuple[int, int]:
    """Return the shortest and the longest size, if they are allowed."""
    low, high = sizes if len(sizes) == 2 else (0, 0)
    if not 1 <= low <= high <= 64:
        raise OptionError(
            f"sizes is {sizes}; it must be (shortest, longest) with 1 <= a <= b <= 64."
        )
    return low, high
