"""Training samples: running text in which some stretches are phrases (METHOD A.4).

A builder finds every stretch of a passage that may be a phrase and goes through them once from the
left: a gap, a phrase, a gap, a phrase. All it draws comes from the generator that it is given.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy

from univerb.phrase import Document
from univerb.phrases.fmm import FMMTable
from univerb.phrases.hashing import Ints, prepend_zero
from univerb.phrases.ngrams import checked_sizes, word_splitter
from univerb.phrases.tokenized import BREAK, TokenArrays, TokenizedText, tokenize_text
from univerb.tokenizer import Tokenizer
from univerb.training.batch import Sample
from univerb.training.config import Samples

SampleBuilder = Callable[[TokenizedText, numpy.random.Generator], Sample]
"""Makes a sample of a passage, as `tokenize_text` reads it."""

Spans = tuple[Ints, Ints]
"""First tokens of some stretches, and the tokens after their last."""


def n_words(sizes: tuple[int, int] = (2, 5), gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are runs of NLTK's words.

    Args:
        sizes: Shortest and longest phrase, in words.
        gap: Fewest and most tokens between two phrases.

    Returns:
        The builder.

    Raises:
        MissingExtra: If NLTK is not installed.
    """
    low, high = checked_sizes(sizes)
    split = word_splitter()

    def find(text: TokenizedText) -> Spans:
        words = list(split(text.text))
        spans = [
            (start, end)
            for size in range(low, high + 1)
            for (start, _), (_, end) in zip(words, words[size - 1 :], strict=False)
        ]
        found = numpy.array(list(text.aligned(spans)), dtype=numpy.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1] + 1

    return _builder(find, gap)


def n_ids(sizes: tuple[int, int] = (2, 5), gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are runs of the LM's tokens, wherever words begin and end.

    Args:
        sizes: Shortest and longest phrase, in tokens.
        gap: Fewest and most tokens between two phrases.

    Returns:
        The builder.
    """
    low, high = checked_sizes(sizes)

    def find(text: TokenizedText) -> Spans:
        first = [numpy.arange(len(text.ids) - size + 1) for size in range(low, high + 1)]
        end = [places + size for size, places in enumerate(first, low)]
        return numpy.concatenate(first), numpy.concatenate(end)

    return _builder(find, gap)


def fmm(table: FMMTable, gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are the longest that a table has.

    Args:
        table: The frequent phrases of a support corpus.
        gap: Fewest and most tokens between two phrases; matches that come sooner stay tokens.

    Returns:
        The builder.
    """

    def find(text: TokenizedText) -> Spans:
        matches = table.match(text.arrays())
        return matches.first, matches.last + 1

    return _builder(find, gap)


def make_builder(
    settings: Samples, documents: Sequence[Document], tokenizer: Tokenizer
) -> SampleBuilder:
    """Make the builder that a config names.

    Args:
        settings: Which, and with what sizes and gaps.
        documents: The training text, whose frequent phrases `fmm` counts.
        tokenizer: The LM's.

    Returns:
        The builder.
    """
    if settings.kind == "n-words":
        return n_words(settings.sizes, settings.gap)
    if settings.kind == "n-ids":
        return n_ids(settings.sizes, settings.gap)
    run = TokenArrays.concatenate(
        tokenize_text(document.text, tokenizer).arrays() for document in documents
    )
    return fmm(FMMTable.mine(run, settings.sizes, settings.min_count), settings.gap)


def _builder(find: Callable[[TokenizedText], Spans], gap: tuple[int, int]) -> SampleBuilder:
    low, high = gap

    def build(text: TokenizedText, generator: numpy.random.Generator) -> Sample:
        ends = _phrases(text, *find(text))
        phrases: list[tuple[int, int]] = []
        earliest = int(generator.integers(low, high, endpoint=True))
        for begin in sorted(ends):
            if begin >= earliest:
                end = ends[begin][int(generator.integers(len(ends[begin])))]
                phrases.append((begin, end))
                earliest = end + int(generator.integers(low, high, endpoint=True))
        return Sample(text.ids.tolist(), _tiled(phrases, len(text.ids)))

    return build


def _phrases(text: TokenizedText, first: Ints, end: Ints) -> dict[int, list[int]]:
    """Return where phrases may begin, and where each may end."""
    run = text.arrays()
    breaks = prepend_zero(numpy.cumsum(run.ids == BREAK))
    # Bare numbers are no phrases at inference either: merging digits ruins arithmetic.
    fits = (end - first >= 2) & (breaks[end] == breaks[first]) & ~run.are_numbers(first, end)
    ends: dict[int, list[int]] = defaultdict(list)
    for begin, stop in zip(first[fits].tolist(), end[fits].tolist(), strict=True):
        ends[begin].append(stop)
    return ends


def _tiled(phrases: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Put the tokens between phrases back, each a unit of its own."""
    units: list[tuple[int, int]] = []
    done = 0
    for begin, end in (*phrases, (size, size)):
        units += [(token, token + 1) for token in range(done, begin)]
        if end > begin:
            units.append((begin, end))
        done = end
    return units
