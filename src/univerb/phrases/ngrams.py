"""All n-grams of a document, over the LM's tokens or over words (paper, sections 2.3 and 3.1)."""

import warnings
from collections.abc import Callable, Iterable, Iterator

from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.guards import Guards, is_unspaced
from univerb.phrases.tokenized import TokenizedText, tokenize_lines
from univerb.tokenizer import Tokenizer

PhraseSource = Callable[[Document, Tokenizer], Iterator[Phrase]]
"""Yields the phrases of a document, each with all its spans in it."""


class UnspacedTextWarning(UserWarning):
    """A document is written in a script without spaces between words."""


def ngrams(sizes: tuple[int, int] = (2, 8), guards: Guards | None = None) -> PhraseSource:
    """Make a source of all n-grams of `sizes` (shortest, longest) over the LM's tokens."""
    low, high = checked_sizes(sizes)

    def spans(text: TokenizedText) -> Iterator[tuple[int, int]]:
        sizes = range(low, high + 1)
        return iter(
            sorted((int(a), int(a) + size - 1) for size in sizes for a in text.windows(size))
        )

    return lambda document, tokenizer: collect(document, tokenizer, spans, guards)


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

    def spans(text: TokenizedText) -> Iterator[tuple[int, int]]:
        return text.aligned(text.line_spans(find))

    return lambda document, tokenizer: collect(document, tokenizer, spans, guards)


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


def collect(
    document: Document,
    tokenizer: Tokenizer,
    spans_of: Callable[[TokenizedText], Iterable[tuple[int, int]]],
    guards: Guards | None = None,
) -> Iterator[Phrase]:
    """Yield each distinct phrase of a document once, with all its spans.

    `spans_of` finds candidates in the document's tokens: pairs of first and last token.
    """
    rules = guards or Guards()
    if rules.word_boundaries:
        warn_if_unspaced(document)
    text = tokenize_lines(document, tokenizer, rules)
    ids, begin, end = text.ids.tolist(), text.visible.tolist(), text.end.tolist()
    sources: dict[tuple[int, ...], list[Span]] = {}
    for first, last in spans_of(text):
        span = Span(document.name, begin[first], end[last])
        sources.setdefault(tuple(ids[first : last + 1]), []).append(span)
    for key, spans in sources.items():
        spelled = tokenizer.decode(key)
        if rules.objection(key, spelled, tokenizer.special_ids) is None:
            yield Phrase(key, spelled, tuple(spans))


def checked_sizes(sizes: tuple[int, int]) -> tuple[int, int]:
    """Return the shortest and the longest size, if they are allowed."""
    low, high = sizes if len(sizes) == 2 else (0, 0)
    if not 1 <= low <= high <= 64:
        raise OptionError(
            f"sizes is {sizes}; it must be (shortest, longest) with 1 <= a <= b <= 64."
        )
    return low, high
