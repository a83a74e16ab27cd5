"""A held-out document cut in the middle: what is given, and what really follows."""

from dataclasses import dataclass

import numpy

from univerb.phrase import Document
from univerb.phrases.tokenized import tokenize_text
from univerb.tokenizer import Tokenizer

_LEAST = 16
"""Tokens that each half must have."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A document, cut where a word begins."""

    name: str
    first: str
    """The whole first half."""
    context: list[int]
    """Its last tokens, as many as the LM is given."""
    truth: list[int]
    """The first tokens of the second half."""
    second: str
    """What they spell."""
    starts: list[int]
    """Places in the truth at which a phrase may begin: its word starts."""
    spans: list[tuple[int, int]]
    """Place and size of every stretch of the truth that could be a phrase."""


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
        context: Keep at most so many tokens of the first half: its last.
        truth: Keep at most so many tokens of the second half: its first.
        sizes: Shortest and longest phrase, in tokens.

    Returns:
        The halves, or None if the document is too short for two.
    """
    text = tokenize_text(document.text, tokenizer)
    may_start = text.may_start & ~text.is_masked
    middle = len(text.ids) // 2
    after = numpy.flatnonzero(may_start[middle:])
    if middle < _LEAST or not after.size:
        return None
    begin = middle + int(after[0])
    end = min(begin + truth, len(text.ids))
    if end - begin < min(_LEAST, truth):
        return None
    edge = int(text.end[begin - 1])
    spans = [
        (place - begin, size)
        for size in range(sizes[0], sizes[1] + 1)
        for place in text.windows(size).tolist()
        if begin <= place
        and place + size <= end
        # Bare numbers and punctuation alone are no phrases.
        and text.has_letter[place : place + size].any()
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
