"""The phrases of a few chunks that a store holds, found in milliseconds.

The chunks are tokenized together and all their n-grams looked up at once; only what the store
holds becomes a Python object.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from univerb.corpus.phrase_index import StoredPhrases
from univerb.corpus.shards import GAP
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.hashing import Ints, KeyIndex, Keys, RollingHash
from univerb.phrases.tokenized import TokenizedText, tokenize_lines
from univerb.retrieval.base import Hit
from univerb.tokenizer import Tokenizer


class Selection(NamedTuple):
    """The phrases of some chunks."""

    hits: list[Hit]
    phrases: list[Phrase]
    """Those that save the most tokens first."""
    stored: int
    """How many of the phrases have a vector in the store; the others must be encoded."""


class _Found(NamedTuple):
    """Places of n-grams in the tokens of all chunks."""

    number: Ints
    """Of the phrase: in the store, or beyond its end."""
    first: Ints
    size: Ints


def select_phrases(
    hits: Sequence[Hit],
    tokenizer: Tokenizer,
    stored: StoredPhrases,
    sizes: tuple[int, int],
    max_phrases: int | None = None,
    others: bool = False,
) -> Selection:
    """Find the phrases of chunks.

    Args:
        hits: The chunks.
        tokenizer: The LM's.
        stored: The phrases that have vectors.
        sizes: Shortest and longest phrase, in tokens.
        max_phrases: Keep at most so many.
        others: Take also the n-grams that are not stored.

    Returns:
        The phrases, each with every place in its document.
    """
    if not hits:
        return Selection([], [], 0)
    text = tokenize_lines(Document(GAP.join(hit.chunk.text for hit in hits), "chunks"), tokenizer)
    found = _stored_ngrams(text, stored, sizes)
    if others:
        found = _with_others(text, found, stored, sizes)
    order = numpy.argsort(found.number, kind="stable")
    number, first, size = (column[order] for column in found)
    begins = numpy.flatnonzero(numpy.diff(number, prepend=-1))
    counts = numpy.diff(begins, append=len(number))
    ranked = numpy.argsort(-(size[begins] - 1) * counts, kind="stable")[:max_phrases]
    spans = _spans(hits, text, first, size)
    ids = text.ids.tolist()
    columns = (begins, counts, size[begins], first[begins])
    chosen = list(zip(*(column[ranked].tolist() for column in columns), strict=True))
    keys = [tuple(ids[at : at + n]) for _, _, n, at in chosen]
    places = [tuple(spans[begin : begin + count]) for begin, count, _, _ in chosen]
    if _overlap(hits):
        # Chunks that share sentences show one place twice.
        places = [tuple(dict.fromkeys(own)) for own in places]
    texts = _texts(text, tokenizer, keys, first[begins][ranked])
    phrases = [Phrase(*parts) for parts in zip(keys, texts, places, strict=True)]
    is_stored = number[begins][ranked] < len(stored)
    return Selection(list(hits), phrases, int(is_stored.sum()))


def _stored_ngrams(text: TokenizedText, stored: StoredPhrases, sizes: tuple[int, int]) -> _Found:
    hashes = RollingHash(text.ids)
    parts: list[_Found] = [_Found(*(numpy.empty(0, numpy.int64) for _ in range(3)))]
    for size in range(sizes[0], sizes[1] + 1):
        first = text.windows(size)
        number = stored.find(text.ids, first, size, hashes)
        known = number >= 0
        parts.append(_Found(number[known], first[known], numpy.full(int(known.sum()), size)))
    return _Found(*(numpy.concatenate(column) for column in zip(*parts, strict=True)))


def _with_others(
    text: TokenizedText, found: _Found, stored: StoredPhrases, sizes: tuple[int, int]
) -> _Found:
    """Add the n-grams that may be phrases but are not stored, numbered from its end on."""
    run, hashes = text.arrays(), RollingHash(text.ids)
    # A run has a break after each line: token t of line l stands at t + l.
    at = numpy.arange(len(text.ids)) + text.line
    parts = [found]
    seen: list[Keys] = []
    for size in range(sizes[0], sizes[1] + 1):
        first = text.windows(size)
        is_number = run.are_numbers(at[first], at[first] + size)
        is_new = stored.find(text.ids, first, size, hashes) < 0
        first = first[is_new & ~is_number]
        keys = hashes.keys(first, first + size)
        base = len(stored) + sum(map(len, seen))
        seen.append(numpy.unique(keys))
        number = base + KeyIndex(seen[-1]).find(keys)
        parts.append(_Found(number, first, numpy.full(len(first), size)))
    return _Found(*(numpy.concatenate(column) for column in zip(*parts, strict=True)))


def _texts(
    text: TokenizedText, tokenizer: Tokenizer, keys: Sequence[tuple[int, ...]], first: Ints
) -> list[str]:
    """Return what phrases spell; where tokens are the text itself, it need not be decoded."""
    if not tokenizer.is_exact:
        return tokenizer.decode_all(keys)
    last = first + numpy.array([len(key) - 1 for key in keys], dtype=numpy.int64)
    edges = zip(keys, text.visible[first].tolist(), text.end[last].tolist(), strict=True)
    return [" " * tokenizer.has_space(k[0]) + text.text[a:b] for k, a, b in edges]


def _overlap(hits: Sequence[Hit]) -> bool:
    ranges = sorted((hit.chunk.document, hit.chunk.start, hit.chunk.end) for hit in hits)
    pairs = zip(ranges[:-1], ranges[1:], strict=True)
    return any(name == other and start < end for (name, _, end), (other, start, _) in pairs)


def _spans(hits: Sequence[Hit], text: TokenizedText, first: Ints, size: Ints) -> list[Span]:
    """Return where n-grams stand in their documents."""
    lengths = [len(hit.chunk.text) + len(GAP) for hit in hits]
    begins = numpy.cumsum([0, *lengths[:-1]])
    start, end = text.visible[first], text.end[first + size - 1]
    chunk = numpy.searchsorted(begins, start, side="right") - 1
    shift = numpy.array([hit.chunk.start for hit in hits])[chunk] - begins[chunk]
    names = [hit.chunk.document for hit in hits]
    rows = zip(chunk.tolist(), (start + shift).tolist(), (end + shift).tolist(), strict=True)
    return [Span(names[number], begin, stop) for number, begin, stop in rows]
