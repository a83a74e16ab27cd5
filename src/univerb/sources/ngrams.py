"""All n-grams of a document, over the LM's tokens or over words (METHOD A.8.1 and A.4.1)."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.sources.guards import Guards, is_unspaced, is_word_boundary
from univerb.tokenizer import Tokenizer

PhraseSource = Callable[[Document, Tokenizer], Iterator[Phrase]]
"""Finds the phrases of a document, each with all its places in it."""

# A line that was wrapped by an editor: long, not ending a sentence, followed by more text.
_SOFT_BREAK = re.compile(r"(?m)^(.{40,}[^\s.!?:;])\n(?=[\w(\"'])")


class UnspacedTextWarning(UserWarning):
    """A document is written in a script without spaces between words."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A line of a document as tokens; offsets are relative to `text`."""

    text: str
    start: int
    """Where the line begins in the document."""
    ids: list[int]
    offsets: list[tuple[int, int]]

    def visible_start(self, token: int) -> int:
        """Return where the text from a token on begins, leading space left out."""
        start, _ = self.offsets[token]
        while start < len(self.text) and self.text[start].isspace():
            start += 1
        return start

    def is_space(self, token: int) -> bool:
        """Tell whether a token is nothing but space, be it the one put before the line."""
        start, end = self.offsets[token]
        return not self.text[start:end].strip()


def ngrams(sizes: tuple[int, int] = (2, 8), guards: Guards | None = None) -> PhraseSource:
    """Make a source of all n-grams over the LM's tokens.

    Args:
        sizes: Shortest and longest n-gram, in tokens.
        guards: What may be a phrase.

    Returns:
        A source that yields each distinct n-gram once, with every place it was found at.
    """
    low, high = _checked(sizes)
    rules = guards or Guards()

    def spans(segment: Segment) -> Iterator[tuple[int, int]]:
        n = len(segment.ids)
        starts = [_may_start(segment, i, rules) for i in range(n)]
        ends = [_may_end(segment, i, rules) for i in range(n)]
        for first in range(n):
            if starts[first]:
                for last in range(first + low - 1, min(first + high, n)):
                    if ends[last]:
                        yield first, last

    return lambda document, tokenizer: _collect(document, tokenizer, spans, rules)


def word_ngrams(sizes: tuple[int, int] = (2, 5), guards: Guards | None = None) -> PhraseSource:
    """Make a source of all n-grams over words, split as the paper does (NLTK).

    Args:
        sizes: Shortest and longest n-gram, in words.
        guards: What may be a phrase.

    Returns:
        A source that yields the n-grams whose ends fall on token borders.

    Raises:
        MissingExtra: If NLTK is not installed.
    """
    low, high = _checked(sizes)
    rules = guards or Guards()
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError:
        raise MissingExtra("nltk", "nltk") from None
    split = NLTKWordTokenizer().span_tokenize

    def spans(segment: Segment) -> Iterator[tuple[int, int]]:
        # The last token to begin at a word, but the space before it where that is a token.
        starts = {
            segment.visible_start(i): i
            for i in range(len(segment.ids))
            if _may_start(segment, i, rules) and not (i and segment.is_space(i - 1))
        }
        ends = {end: i for i, (_, end) in enumerate(segment.offsets) if _may_end(segment, i, rules)}
        words = list(split(segment.text))
        for first, (start, _) in enumerate(words):
            for _, end in words[first + low - 1 : first + high]:
                if start in starts and end in ends:
                    yield starts[start], ends[end]

    return lambda document, tokenizer: _collect(document, tokenizer, spans, rules)


def segments(document: Document, tokenizer: Tokenizer) -> Iterator[Segment]:
    """Cut a document into lines and tokenize each as if a word stood before it.

    Args:
        document: The document; lines wrapped by an editor count as one.
        tokenizer: The LM's.

    Yields:
        The lines that have text. A break that becomes a space keeps its length, so offsets hold.
    """
    text = _SOFT_BREAK.sub(r"\1 ", document.text)
    for match in re.finditer(r"[^\n\r]+", text):
        line = match.group().strip()
        if line:
            start = match.start() + match.group().index(line)
            ids, offsets = tokenizer.encode_inside(line)
            yield Segment(line, start, ids, offsets)


def warn_if_unspaced(document: Document) -> None:
    """Warn when word boundaries mean little because the document's script has no spaces."""
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


def _collect(
    document: Document,
    tokenizer: Tokenizer,
    spans_of: Callable[[Segment], Iterable[tuple[int, int]]],
    guards: Guards,
) -> Iterator[Phrase]:
    if guards.word_boundaries:
        warn_if_unspaced(document)
    found: dict[tuple[int, ...], list[Span]] = {}
    for segment in segments(document, tokenizer):
        for first, last in spans_of(segment):
            span = Span(
                document.name,
                segment.start + segment.visible_start(first),
                segment.start + segment.offsets[last][1],
            )
            found.setdefault(tuple(segment.ids[first : last + 1]), []).append(span)
    for ids, places in found.items():
        text = tokenizer.decode(ids)
        if guards.objection(ids, text, tokenizer.special_ids) is None:
            yield Phrase(ids, text, tuple(places))


def _may_start(segment: Segment, token: int, guards: Guards) -> bool:
    start, _ = segment.offsets[token]
    previous_end = segment.offsets[token - 1][1] if token else 0
    if guards.whole_characters and start < previous_end:
        return False
    if not guards.word_boundaries:
        return True
    # The space before a word belongs to the phrase, also where it is a token of its own.
    if token and segment.is_space(token - 1):
        return False
    return is_word_boundary(segment.text, segment.visible_start(token))


def _may_end(segment: Segment, token: int, guards: Guards) -> bool:
    _, end = segment.offsets[token]
    is_last = token + 1 == len(segment.offsets)
    if guards.whole_characters and not is_last and segment.offsets[token + 1][0] < end:
        return False
    if not guards.word_boundaries:
        return True
    return not segment.is_space(token) and is_word_boundary(segment.text, end)


def _checked(sizes: tuple[int, int]) -> tuple[int, int]:
    low, high = sizes
    if not 1 <= low <= high <= 64:
        raise OptionError(
            f"sizes is {sizes}; it must be (shortest, longest) with 1 <= a <= b <= 64."
        )
    return low, high
