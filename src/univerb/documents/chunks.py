"""Documents cut into chunks of whole sentences (docs/method.md, Protocols: WikiText-103)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from univerb.documents.sentences import Splitter, split_sentences
from univerb.errors import OptionError
from univerb.phrase import Document

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a document: `document.text[start:end] == text`."""

    document: str
    """The document's name."""
    start: int
    text: str

    @property
    def end(self) -> int:
        """End of the chunk in its document."""
        return self.start + len(self.text)


class _Piece(NamedTuple):
    start: int
    end: int
    words: int


def chunked(
    document: Document,
    max_words: int = 128,
    overlap: int = 0,
    splitter: Splitter | None = None,
) -> list[Chunk]:
    """Cut a document into chunks of whole sentences.

    Args:
        document: The document.
        max_words: Maximum number of words (split at space) per chunk, summed over its sentences,
            so that text in scripts without spaces is cut, too. A longer sentence is cut.
        overlap: Number of sentences of a chunk that the next one repeats, as far as they fit.
        splitter: Finds the sentences; `split_sentences` by default.

    Returns:
        The chunks in order. Without overlap they have every visible character exactly once.

    Raises:
        OptionError: If a number is out of its range.
    """
    if max_words < 1:
        raise OptionError(f"max_words is {max_words}; a chunk needs at least 1 word.")
    if overlap < 0:
        raise OptionError(f"overlap is {overlap}; give 0 or the number of sentences to repeat.")
    pieces = list(_pieces(document.text, splitter or split_sentences, max_words))
    chunks: list[Chunk] = []
    for first, last in _packed([piece.words for piece in pieces], max_words, overlap):
        start = pieces[first].start
        chunks.append(Chunk(document.name, start, document.text[start : pieces[last].end]))
    return chunks


def _packed(words: list[int], max_words: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last sentence of each chunk from the sentences' word counts."""
    first, total = 0, 0
    for i, count in enumerate(words):
        if total + count > max_words:
            yield first, i - 1
            first = max(first, i - overlap)
            total = sum(words[first:i])
            while total + count > max_words:
                total -= words[first]
                first += 1
        total += count
    if words:
        yield first, len(words) - 1


def _pieces(text: str, splitter: Splitter, max_words: int) -> Iterator[_Piece]:
    """Yield sentences of at most `max_words`, which cover all of the text but space.

    A sentence extends to the beginning of the next, so that nothing is lost or read twice,
    whatever the splitter leaves out.
    """
    starts = {start for start, _ in splitter(text) if 0 < start < len(text)}
    cuts = [0, *sorted(starts), len(text)]
    for start, end in zip(cuts, cuts[1:], strict=False):
        sentence = text[start:end]
        begin = start + len(sentence) - len(sentence.lstrip())
        count = len(sentence.split())
        if count > max_words:
            words = [match.span() for match in _WORD.finditer(text, start, end)]
            for i in range(0, count, max_words):
                part = words[i : i + max_words]
                yield _Piece(part[0][0], part[-1][1], len(part))
        elif count:
            yield _Piece(begin, begin + len(sentence.strip()), count)
