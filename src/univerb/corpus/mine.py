"""The phrases of a corpus: its frequent n-grams, in the order of their ids."""

from typing import NamedTuple

import numpy

from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.phrase_index import Ids
from univerb.phrases.hashing import Ints, ranges
from univerb.phrases.mining import NgramCounts, count_ngrams, top_ngrams
from univerb.phrases.tokenized import END, START, TokenArrays


class MinedPhrases(NamedTuple):
    """Phrases as flat arrays."""

    tokens: Ids
    ends: Ints
    """Where each phrase ends in `tokens`."""
    counts: Ints

    def __len__(self) -> int:
        return len(self.ends)


def mine_phrases(run: TokenArrays, settings: CorpusSettings) -> MinedPhrases:
    """Find the phrases that a store holds.

    Args:
        run: The tokens of all chunks.
        settings: Sizes, least count, and how many to keep: those that save the most tokens.

    Returns:
        The phrases, sorted by their ids.
    """
    mined = count_ngrams(run.ids, settings.sizes, settings.min_count, run.has(START), run.has(END))
    is_number = run.are_numbers(mined.start, mined.start + mined.size)
    mined = NgramCounts(*(column[~is_number] for column in mined))
    mined = top_ngrams(mined, settings.max_phrases, gain=(mined.size - 1) * mined.counts)
    order = _by_ids(run.ids, mined, settings.sizes[1])
    begin, size = mined.start[order], mined.size[order]
    return MinedPhrases(
        run.ids[ranges(begin, begin + size)], numpy.cumsum(size), mined.counts[order]
    )


def _by_ids(ids: Ids, mined: NgramCounts, longest: int) -> Ints:
    """Return the order of n-grams by their ids, each before those that go on from it."""
    columns = []
    for place in range(longest):
        inside = numpy.minimum(mined.start + place, len(ids) - 1)
        columns.append(numpy.where(place < mined.size, ids[inside], -1))
    return numpy.lexsort(columns[::-1]) if len(mined.start) else mined.start
