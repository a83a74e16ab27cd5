"""How much of a text the phrases of a corpus could write: no model, only matching.

The oracle that is measured always writes the longest phrase that the text goes on with. No decoder
can save more with this choice rule, so it says what a corpus is worth before any training.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from univerb.corpus.corpus import Corpus
from univerb.errors import OptionError
from univerb.phrase import Document
from univerb.phrases.hashing import RollingHash
from univerb.phrases.tokenized import TokenizedText, tokenize_lines
from univerb.tokenizer import Tokenizer

Flags = NDArray[numpy.bool_]


@dataclass(slots=True)
class Coverage:
    """What longest matching finds in held-out text."""

    tokens: int = 0
    """Base tokens of the text."""
    units: int = 0
    """Units when the longest phrase is always taken."""
    covered: Counter[int] = field(default_factory=Counter)
    """Base tokens inside phrases, by the phrase's length."""
    windows: Counter[int] = field(default_factory=Counter)
    """N-grams of the text that may be phrases, by length."""
    candidates: Counter[int] = field(default_factory=Counter)
    """Those of them that are among the candidate phrases."""
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
        return sum(self.covered.values()) / self.tokens if self.tokens else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        sizes = sorted(self.windows)
        return {
            "passages": self.passages,
            "tokens": self.tokens,
            "units": self.units,
            "units_per_token": self.compression,
            "covered_share": self.share,
            "covered_share_by_length": {n: self.covered[n] / max(self.tokens, 1) for n in sizes},
            "candidate_share_by_length": {
                n: self.candidates[n] / max(self.windows[n], 1) for n in sizes
            },
            "phrases_per_passage": self.phrases / max(self.passages, 1),
        }


def table_coverage(corpus: Corpus, documents: Iterable[Document], tokenizer: Tokenizer) -> Coverage:
    """Measure with all phrases of a corpus as candidates."""
    stored = corpus.phrases
    total = Coverage()
    for document in documents:
        text = tokenize_lines(document, tokenizer)
        hashes = RollingHash(text.ids)
        sizes = range(corpus.manifest.settings.sizes[0], corpus.manifest.settings.sizes[1] + 1)
        known = [stored.find(text.ids, text.windows(n), n, hashes) >= 0 for n in sizes]
        _count(total, text, dict(zip(sizes, known, strict=True)))
        total.passages += 1
        total.phrases += len(stored)
    return total


def retrieved_coverage(
    corpus: Corpus,
    passages: Sequence[tuple[str, Document]],
    tokenizer: Tokenizer,
    k: int = 32,
    others: bool = False,
) -> Coverage:
    """Measure with the phrases of the chunks that each passage's beginning retrieves.

    Args:
        corpus: Where to retrieve.
        passages: Beginnings, which are the queries, and what follows them, which is measured.
        tokenizer: The LM's.
        k: From how many chunks.
        others: Count also the n-grams of the chunks that the corpus does not hold.

    Returns:
        The figures over all passages.
    """
    total = Coverage()
    for beginning, rest in passages:
        found = corpus.select(beginning, tokenizer, k, others=others)
        keys = {phrase.ids for phrase in found.phrases}
        text = tokenize_lines(rest, tokenizer)
        sizes = range(corpus.manifest.settings.sizes[0], corpus.manifest.settings.sizes[1] + 1)
        _count(total, text, {n: _among(keys, text, n) for n in sizes})
        total.passages += 1
        total.phrases += len(keys)
    return total


def passages_of(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    prefix: int = 32,
    length: int = 128,
    limit: int | None = None,
    each: int = 1,
) -> list[tuple[str, Document]]:
    """Cut held-out text into beginnings and what follows (METHOD D.1).

    Args:
        documents: Each gives passages from its beginning on, if it has more tokens than `prefix`.
        tokenizer: The LM's.
        prefix: Tokens of the beginning.
        length: Tokens that follow, at most.
        limit: At most so many passages, taken evenly.
        each: At most so many passages of one document.

    Returns:
        Pairs of beginning and rest.

    Raises:
        OptionError: If a passage would have no beginning or no rest.
    """
    if prefix < 1 or length < 1:
        raise OptionError(f"prefix is {prefix} and length is {length}; give at least 1 token each.")
    found = list(_passages(documents, tokenizer, prefix, length, each))
    if limit is None or len(found) <= limit:
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _passages(
    documents: Iterable[Document], tokenizer: Tokenizer, prefix: int, length: int, each: int
) -> Iterator[tuple[str, Document]]:
    for document in documents:
        # Enough characters for any tokenizer, so that a book is not read for its first page.
        text = document.text[: 16 * each * (prefix + length)]
        offsets = tokenizer.encode(text).offsets
        for first in range(0, each * (prefix + length), prefix + length):
            own = offsets[first : first + prefix + length]
            if len(own) > prefix:
                begin, cut, end = own[0][0], own[prefix - 1][1], own[-1][1]
                if text[begin:cut].strip() and text[cut:end].strip():
                    yield text[begin:cut], Document(text[cut:end], document.name)


def _among(keys: set[tuple[int, ...]], text: TokenizedText, size: int) -> Flags:
    ids = text.ids.tolist()
    found = [tuple(ids[place : place + size]) in keys for place in text.windows(size).tolist()]
    return numpy.array(found, dtype=bool)


def _count(total: Coverage, text: TokenizedText, candidates: dict[int, Flags]) -> None:
    """Add a text, of which it is known, size by size, which n-grams are candidates."""
    best = numpy.ones(len(text.ids), dtype=numpy.int64)
    for size, known in candidates.items():
        places = text.windows(size)
        total.windows[size] += len(places)
        total.candidates[size] += int(known.sum())
        best[places[known]] = size
    place, longest = 0, best.tolist()
    while place < len(longest):
        total.units += 1
        if longest[place] > 1:
            total.covered[longest[place]] += longest[place]
        place += longest[place]
    total.tokens += len(longest)
