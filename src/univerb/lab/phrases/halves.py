"""A held-out document cut in the middle: the prompt, and the text that really follows."""

from dataclasses import dataclass

import numpy

from univerb.phrase import Document
from univerb.phrases.tokenized import tokenize_text
from univerb.tokenizer import Tokenizer

_MIN_TOKENS = 16
"""Of each half."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A document, cut where a word begins."""

    name: str
    first: str
    """The whole first half."""
    context: list[int]
    """Its last tokens, as many as the LM reads."""
    truth: list[int]
    """The first tokens of the second half."""
    second: str
    """The text of the truth."""
    starts: list[int]
    """Positions in the truth at which a phrase may begin: its word starts."""
    spans: list[tuple[int, int]]
    """Position and size of every stretch of the truth that could be a phrase."""


def cut(
    document: Document,
    tokenizer: Tokenizer,
    context: int = 512,
    truth: int = 256,
    sizes: tuple[int, int] = (2, 8),
) -> Halves | None:
    """Cut a document in the middle of its tokens.

    Args:
        document: The document.
        tokenizer: The LM's.
        context: Maximum tokens of the first half: its last.
        truth: Maximum tokens of the second half: its first.
        sizes: Shortest and longest phrase, in tokens.

    Returns:
        The halves, or None if the document is too short for two.
    """
    text = tokenize_text(document.text, tokenizer)
    may_start = text.may_start & ~text.is_masked
    middle = len(text.ids) // 2
    after = numpy.flatnonzero(may_start[middle:])
    if middle < _MIN_TOKENS or not after.size:
        return None
    begin = middle + int(after[0])
    end = min(begin + truth, len(text.ids))
    if end - begin < min(_MIN_TOKENS, truth):
        return None
    edge = int(text.end[begin - 1])
    spans = [
        (start - begin, size)
        for size in range(sizes[0], sizes[1] + 1)
        for start in text.windows(size).tolist()
        if begin <= start
        and start + size <= end
        # Bare numbers and punctuation alone are no phrases.
        and text.has_letter[start : start + size].any()
    ]
    return Halves(
        document.name,
        text.text[:edge],
        text.ids[max(begin - context, 0) : begin].tolist(),
        text.ids[begin:end].tolist(),
        text.text[edge : int(text.end[end - 1])],
        numpy.flatnonzero(may_start[begin:end]).tolist(),
        spans,
    )
