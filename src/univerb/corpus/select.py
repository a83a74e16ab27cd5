"""The phrases of a few chunks, selected in milliseconds.

The chunks are tokenized together and all their n-grams looked up at once; only what the corpus
holds becomes a Python object.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy

from univerb.corpus.phrase_index import StoredPhrases
from univerb.corpus.shards import GAP
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.guards import Guards
from univerb.phrases.hashing import Ints, RollingHash
from univerb.phrases.tokenized import TokenizedText, tokenize_lines, unwrapped
from univerb.retrieval.base import Hit
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

if TYPE_CHECKING:
    from univerb.modeling.phrase_model import PhraseModel


class Selection(NamedTuple):
    """The phrases of some chunks."""

    hits: list[Hit]
    phrases: list[Phrase]
    """Those that save the most tokens first."""
    stored: int
    """Number of phrases that the corpus has; the others must be encoded."""

    def vocabulary(self, lm: "PhraseModel") -> DynamicVocabulary:
        """Return the phrases as a vocabulary of an LM, which drafts from the chunks."""
        texts = [unwrapped(hit.chunk.text) for hit in self.hits]
        encoded = lm.tokenizer.encode_all_inside(texts)
        return DynamicVocabulary(lm.static_size, self.phrases, [each.ids for each in encoded])


class _Occurrences(NamedTuple):
    """Occurrences of n-grams in the tokens of all chunks."""

    number: Ints
    """The phrase's number in the corpus, or one beyond its last."""
    first: Ints
    size: Ints


def select_phrases(
    hits: Sequence[Hit],
    tokenizer: Tokenizer,
    stored: StoredPhrases,
    sizes: tuple[int, int],
    max_phrases: int | None = None,
    others: bool = False,
    guards: Guards | None = None,
) -> Selection:
    """Find the phrases of chunks, each with all its occurrences in them.

    With `others`, n-grams that are not stored are included. `sizes` are in tokens. What the guards
    do not allow is left out even if it is stored.
    """
    if not hits:
        return Selection([], [], 0)
    with _paused_collector():
        return _select(hits, tokenizer, stored, sizes, max_phrases, others, guards)


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Make thousands of objects at once: Python would look through all others for cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _select(
    hits: Sequence[Hit],
    tokenizer: Tokenizer,
    stored: StoredPhrases,
    sizes: tuple[int, int],
    max_phrases: int | None,
    others: bool,
    guards: Guards | None,
) -> Selection:
    chunks = Document(GAP.join(hit.chunk.text for hit in hits), "chunks")
    text = tokenize_lines(chunks, tokenizer, guards)
    occurrences = _find_ngrams(text, stored, sizes, others)
    order = numpy.argsort(occurrences.number, kind="stable")
    number, first, size = (column[order] for column in occurrences)
    begins = numpy.flatnonzero(numpy.diff(number, prepend=-1))
    counts = numpy.diff(begins, append=len(number))
    ranked = numpy.argsort(-(size[begins] - 1) * counts, kind="stable")[:max_phrases]
    spans = _spans(hits, text, first, size)
    ids = text.ids.tolist()
    columns = (begins, counts, size[begins], first[begins])
    chosen = list(zip(*(column[ranked].tolist() for column in columns), strict=True))
    keys = [tuple(ids[start : start + n]) for _, _, n, start in chosen]
    # Chunks that share sentences show one occurrence twice.
    sources = [tuple(dict.fromkeys(spans[b : b + count])) for b, count, _, _ in chosen]
    texts = _texts(text, tokenizer, keys, first[begins][ranked])
    phrases = [Phrase(*parts) for parts in zip(keys, texts, sources, strict=True)]
    is_stored = number[begins][ranked] < len(stored)
    return Selection(list(hits), phrases, int(is_stored.sum()))


def _find_ngrams(
    text: TokenizedText, stored: StoredPhrases, sizes: tuple[int, int], others: bool
) -> _Occurrences:
    """Find the stored n-grams; with `others` also those that may be phrases, numbered after."""
    arrays, hashes = text.arrays(), RollingHash(text.ids)
    total = len(stored)
    parts = []
    for size in range(sizes[0], sizes[1] + 1):
        first = text.windows(size)
        number = stored.find(text.ids, first, size, hashes)
        if others:
            position = text.positions[first]
            new = (number < 0) & ~arrays.are_numbers(position, position + size)
            keys, index = numpy.unique(
                hashes.keys(first[new], first[new] + size), return_inverse=True
            )
            number[new] = total + index
            total += len(keys)
        known = number >= 0
        parts.append((number[known], first[known], numpy.full(int(known.sum()), size)))
    return _Occurrences(*(numpy.concatenate(column) for column in zip(*parts, strict=True)))


def _texts(
    text: TokenizedText, tokenizer: Tokenizer, keys: Sequence[tuple[int, ...]], first: Ints
) -> list[str]:
    """Return the texts of phrases; an exact tokenizer need not decode them."""
    if not tokenizer.is_exact:
        return tokenizer.decode_all(keys)
    last = first + numpy.array([len(key) - 1 for key in keys], dtype=numpy.int64)
    edges = zip(keys, text.visible[first].tolist(), text.end[last].tolist(), strict=True)
    return [" " * tokenizer.has_space(k[0]) + text.text[a:b] for k, a, b in edges]


def _spans(hits: Sequence[Hit], text: TokenizedText, first: Ints, size: Ints) -> list[Span]:
    """Return the spans of n-grams in their documents."""
    lengths = [len(hit.chunk.text) + len(GAP) for hit in hits]
    begins = numpy.cumsum([0, *lengths[:-1]])
    start, end = text.visible[first], text.end[first + size - 1]
    chunk = numpy.searchsorted(begins, start, side="right") - 1
    shift = numpy.array([hit.chunk.start for hit in hits])[chunk] - begins[chunk]
    names = [hit.chunk.document for hit in hits]
    rows = zip(chunk.tolist(), (start + shift).tolist(), (end + shift).tolist(), strict=True)
    return [Span(names[number], begin, stop) for number, begin, stop in rows]
