"""Mining the phrases of a corpus: its frequent n-grams, in the order of their ids."""

from typing import NamedTuple

import numpy

from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.phrase_index import Ids
from univerb.phrases.hashing import Ints, prepend_zero, ranges
from univerb.phrases.mining import NgramCounts, count_ngrams, top_ngrams
from univerb.phrases.tokenized import CONTENT, END, START, TokenArrays

SMALL = 4096
"""Phrases that a corpus may have even if they are rare: vectors of five megabytes."""
_FEWEST = 2


class MinedPhrases(NamedTuple):
    """Phrases as flat arrays."""

    tokens: Ids
    ends: Ints
    """The end of each phrase in `tokens`."""
    counts: Ints

    def __len__(self) -> int:
        return len(self.ends)

    def with_first_tokens(self) -> "MinedPhrases":
        """Add the tokens that phrases begin with, each before them and with a count of 0.

        In the conditional form documents vote on these: their vectors are stored, too.
        """
        begins = prepend_zero(self.ends)[:-1]
        first = self.tokens[begins]
        new = numpy.flatnonzero(numpy.diff(first, prepend=-1))
        sizes = numpy.insert(self.ends - begins, new, 1)
        tokens = numpy.insert(self.tokens, begins[new], first[new])
        return MinedPhrases(tokens, numpy.cumsum(sizes), numpy.insert(self.counts, new, 0))


def mine_phrases(tokens: TokenArrays, settings: CorpusSettings) -> MinedPhrases:
    """Find the phrases in the tokens of all chunks: those that save the most tokens."""
    ids = tokens.ids
    flags = (tokens.has(flag) for flag in (START, END, CONTENT))
    fewest = min(settings.min_count, _FEWEST)
    mined = count_ngrams(ids, settings.sizes, fewest, *flags)
    is_number = tokens.are_numbers(mined.start, mined.start + mined.size)
    mined = NgramCounts(*(column[~is_number] for column in mined))
    mined = top_ngrams(mined, max(int((mined.counts >= settings.min_count).sum()), SMALL))
    mined = top_ngrams(mined, settings.max_phrases, gain=(mined.size - 1) * mined.counts)
    order = _by_ids(ids, mined, settings.sizes[1])
    begin, size = mined.start[order], mined.size[order]
    return MinedPhrases(ids[ranges(begin, begin + size)], numpy.cumsum(size), mined.counts[order])


def _by_ids(ids: Ids, mined: NgramCounts, longest: int) -> Ints:
    """Return the order of n-grams by their ids, each before its continuations."""
    columns = []
    for offset in range(longest):
        index = numpy.minimum(mined.start + offset, len(ids) - 1)
        columns.append(numpy.where(offset < mined.size, ids[index], -1))
    return numpy.lexsort(columns[::-1]) if len(mined.start) else mined.start
