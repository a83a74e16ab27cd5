"""Training samples: passages in which some spans are phrases (paper, section 2.4).

docs/method.md, Training samples. A builder finds every span of a passage that may be a phrase and
goes through them once from the left: a gap, a phrase, a gap, a phrase. All its draws come from the
generator that is passed to it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy

from univerb.phrase import Document
from univerb.phrases.fmm import FMMTable
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.hashing import Ints, prepend_zero
from univerb.phrases.ngrams import checked_sizes, word_spans
from univerb.phrases.tokenized import BREAK, TokenArrays, TokenizedText, tokenize_text
from univerb.tokenizer import Tokenizer
from univerb.training.config import SampleConfig

Key = tuple[int, ...]
"""The tokens of a phrase."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A passage as units: tokens and phrases that tile it."""

    ids: list[int]
    units: list[tuple[int, int]]
    """Token ranges; one of two tokens or more is a phrase."""

    def phrases(self) -> list[Key]:
        """Return its phrases, in order."""
        return [tuple(self.ids[begin:end]) for begin, end in self.units if end - begin >= 2]


SampleBuilder = Callable[[TokenizedText, numpy.random.Generator], Sample]
"""Makes a sample of a passage, as `tokenize_text` reads it."""

Spans = tuple[Ints, Ints]
"""First tokens of some spans, and the tokens after their last."""


def n_words(sizes: tuple[int, int] = (2, 5), gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are runs of `sizes` words, `gap` tokens apart (needs NLTK)."""
    find_spans = word_spans(sizes)

    def find(text: TokenizedText) -> Spans:
        spans = find_spans(text.text)
        aligned = numpy.array(list(text.aligned(spans)), dtype=numpy.int64).reshape(-1, 2)
        return aligned[:, 0], aligned[:, 1] + 1

    return _builder(find, gap)


def n_ids(sizes: tuple[int, int] = (2, 5), gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are runs of `sizes` tokens, wherever words begin."""
    low, high = checked_sizes(sizes)

    def find(text: TokenizedText) -> Spans:
        first = [numpy.arange(len(text.ids) - size + 1) for size in range(low, high + 1)]
        end = [starts + size for size, starts in enumerate(first, low)]
        return numpy.concatenate(first), numpy.concatenate(end)

    return _builder(find, gap)


def fmm(table: FMMTable, gap: tuple[int, int] = (5, 12)) -> SampleBuilder:
    """Make a builder whose phrases are the longest of a table; a match within a gap is tokens."""

    def find(text: TokenizedText) -> Spans:
        matches = table.match(text.arrays())
        return matches.first, matches.last + 1

    return _builder(find, gap)


def make_builder(
    settings: SampleConfig, documents: Sequence[Document], tokenizer: Tokenizer
) -> SampleBuilder:
    """Make the builder that a config names; `fmm` counts the phrases of the documents."""
    if settings.kind == "n-words":
        return n_words(settings.sizes, settings.gap)
    if settings.kind == "n-ids":
        return n_ids(settings.sizes, settings.gap)
    texts = (tokenize_text(document.text, tokenizer, PAPER_GUARDS) for document in documents)
    arrays = TokenArrays.concatenate(text.arrays() for text in texts)
    table = FMMTable.mine(arrays, settings.sizes, settings.min_count)
    return fmm(table, settings.gap)


def _builder(find: Callable[[TokenizedText], Spans], gap: tuple[int, int]) -> SampleBuilder:
    low, high = gap

    def build(text: TokenizedText, generator: numpy.random.Generator) -> Sample:
        ends = _phrase_ends(text, *find(text))
        phrases: list[tuple[int, int]] = []
        earliest = int(generator.integers(low, high, endpoint=True))
        for begin in sorted(ends):
            if begin >= earliest:
                end = ends[begin][int(generator.integers(len(ends[begin])))]
                phrases.append((begin, end))
                earliest = end + int(generator.integers(low, high, endpoint=True))
        return Sample(text.ids.tolist(), _tile(phrases, len(text.ids)))

    return build


def _phrase_ends(text: TokenizedText, first: Ints, end: Ints) -> dict[int, list[int]]:
    """Return where phrases may begin, and where each may end."""
    run = text.arrays()
    breaks = prepend_zero(numpy.cumsum(run.ids == BREAK))
    # Bare numbers are no phrases at inference either: merging digits ruins arithmetic.
    is_phrase = (end - first >= 2) & (breaks[end] == breaks[first]) & ~run.are_numbers(first, end)
    ends: dict[int, list[int]] = defaultdict(list)
    for begin, stop in zip(first[is_phrase].tolist(), end[is_phrase].tolist(), strict=True):
        ends[begin].append(stop)
    return ends


def _tile(phrases: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Add the tokens between phrases, each as a unit of one."""
    units: list[tuple[int, int]] = []
    done = 0
    for begin, end in (*phrases, (size, size)):
        units += [(token, token + 1) for token in range(done, begin)]
        if end > begin:
            units.append((begin, end))
        done = end
    return units
