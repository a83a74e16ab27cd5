"""How much of a text the phrases of a corpus could write: no model, only matching.

The oracle that is measured always writes the longest phrase that the text goes on with. No decoder
can save more with this choice rule, so it says what a corpus is worth before any training.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from univerb.corpus import Corpus
from univerb.errors import OptionError
from univerb.phrase import Document
from univerb.phrases.hashing import RollingHash
from univerb.phrases.tokenized import TokenizedText, tokenize_lines
from univerb.tokenizer import Tokenizer

_T = TypeVar("_T")
Matches = dict[int, NDArray[numpy.bool_]]
"""For each size, which n-grams of a text are candidate phrases."""


@dataclass(slots=True)
class Coverage:
    """What longest matching finds in held-out text."""

    tokens: int = 0
    """Base tokens of the text."""
    units: int = 0
    """Units when the longest phrase is always taken."""
    covered: int = 0
    """Base tokens inside phrases."""
    passages: int = 0
    phrases: int = 0
    """Candidate phrases, added up over the passages."""

    @property
    def compression(self) -> float:
        """Units per base token: 1 without phrases, less is better."""
        return self.units / self.tokens if self.tokens else 1.0

    @property
    def share(self) -> float:
        """The share of base tokens inside phrases."""
        return self.covered / self.tokens if self.tokens else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return {
            "passages": self.passages,
            "tokens": self.tokens,
            "units": self.units,
            "units_per_token": self.compression,
            "covered_share": self.share,
            "phrases_per_passage": self.phrases / max(self.passages, 1),
        }

    def add(self, text: TokenizedText, matches: Matches, phrases: int) -> None:
        """Count a text, for which there were `phrases` candidates; larger sizes come later."""
        longest = numpy.ones(len(text.ids), dtype=numpy.int64)
        for size, is_match in matches.items():
            longest[text.windows(size)[is_match]] = size
        position, lengths = 0, longest.tolist()
        while position < len(lengths):
            self.units += 1
            self.covered += lengths[position] if lengths[position] > 1 else 0
            position += lengths[position]
        self.tokens += len(lengths)
        self.passages += 1
        self.phrases += phrases


def table_coverage(corpus: Corpus, documents: Iterable[Document], tokenizer: Tokenizer) -> Coverage:
    """Measure with all phrases of a corpus as candidates."""
    total, stored = Coverage(), corpus.phrases
    for document in documents:
        text = tokenize_lines(document, tokenizer, corpus.manifest.settings.guards)
        hashes = RollingHash(text.ids)
        matches = {
            size: stored.find(text.ids, text.windows(size), size, hashes) >= 0
            for size in _sizes(corpus)
        }
        total.add(text, matches, len(stored.numbers))
    return total


def retrieved_coverage(
    corpus: Corpus, passages: Sequence[tuple[str, Document]], tokenizer: Tokenizer, k: int = 32
) -> Coverage:
    """Measure with the phrases of the `k` chunks that each passage's beginning retrieves."""
    total = Coverage()
    for beginning, rest in passages:
        keys = {phrase.ids for phrase in corpus.select(beginning, tokenizer, k).phrases}
        text = tokenize_lines(rest, tokenizer, corpus.manifest.settings.guards)
        matches = {size: _are_in(keys, text, size) for size in _sizes(corpus)}
        total.add(text, matches, len(keys))
    return total


def passages_of(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    prefix: int = 32,
    length: int = 128,
    limit: int | None = None,
    per_document: int = 1,
) -> list[tuple[str, Document]]:
    """Cut held-out text into beginnings and what follows (docs/method.md, Protocols: WikiText-103).

    A beginning has `prefix` tokens and is followed by at most `length`. Passages are taken from a
    document's beginning on, at most `per_document`, and of all at most `limit`, evenly.
    """
    if prefix < 1 or length < 1:
        raise OptionError(f"prefix is {prefix} and length is {length}; give at least 1 token each.")
    passages = list(_passages(documents, tokenizer, prefix, length, per_document))
    return passages if limit is None else spread(passages, limit)


def spread(items: Sequence[_T], limit: int) -> list[_T]:
    """Take at most `limit` items, evenly."""
    if len(items) <= limit:
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def _passages(
    documents: Iterable[Document], tokenizer: Tokenizer, prefix: int, length: int, count: int
) -> Iterator[tuple[str, Document]]:
    for document in documents:
        # Enough characters for any tokenizer, so that a book is not read for its first page.
        text = document.text[: 16 * count * (prefix + length)]
        offsets = tokenizer.encode(text).offsets
        for first in range(0, count * (prefix + length), prefix + length):
            tokens = offsets[first : first + prefix + length]
            if len(tokens) > prefix:
                begin, cut, end = tokens[0][0], tokens[prefix - 1][1], tokens[-1][1]
                if text[begin:cut].strip() and text[cut:end].strip():
                    yield text[begin:cut], Document(text[cut:end], document.name)


def _are_in(keys: set[tuple[int, ...]], text: TokenizedText, size: int) -> NDArray[numpy.bool_]:
    ids, starts = text.ids.tolist(), text.windows(size).tolist()
    return numpy.array([tuple(ids[at : at + size]) in keys for at in starts], dtype=bool)


def _sizes(corpus: Corpus) -> range:
    shortest, longest = corpus.manifest.settings.sizes
    return range(shortest, longest + 1)
