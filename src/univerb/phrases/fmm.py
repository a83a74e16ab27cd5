"""Forward maximum matching: the frequent phrases of a support corpus, as long as possible.

The table holds the word n-grams that occur often enough (METHOD A.4.3, `fmm-table`); a text is
segmented greedily from left to right, each time by the longest n-gram that begins there. Words are
runs of the LM's tokens, so that a match is a phrase of the LM, never half a word.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document, Phrase
from univerb.phrases.hashing import Ints, KeyIndex, Keys, RollingHash, prepend_zero, ranges
from univerb.phrases.mining import count_ngrams, top_ngrams
from univerb.phrases.ngrams import PhraseSource, checked_sizes, collect
from univerb.phrases.tokenized import (
    BREAK,
    DIGIT,
    END,
    LETTER,
    START,
    TokenArrays,
    TokenizedText,
    tokenize_lines,
)
from univerb.tokenizer import Tokenizer

if TYPE_CHECKING:
    from daachorse import CharwiseDoubleArrayAhoCorasick


# Where the code points of words begin: below lie those that stand for no word of the table.
_FIRST = 0x10000
_MAX_WORDS = 0x110000 - _FIRST


class Words(NamedTuple):
    """The words of a run; punctuation and breaks have the key 0."""

    keys: Keys
    """A 64-bit hash of each word's tokens."""
    first: Ints
    """The place of each word's first token in the run."""
    last: Ints


def words_of(run: TokenArrays) -> Words:
    """Group the tokens of a run into words: from where one may begin to where the next may."""
    is_break = run.ids == BREAK
    first = numpy.flatnonzero(run.has(START) | is_break)
    last = numpy.append(first[1:], len(run.ids))[: len(first)] - 1
    keys = RollingHash(run.ids).keys(first, last + 1)
    texts = prepend_zero(numpy.cumsum(run.has(LETTER | DIGIT)))
    is_word = (texts[last + 1] > texts[first]) & run.has(END)[last] & ~is_break[first]
    return Words(numpy.where(is_word, keys | numpy.uint64(1), numpy.uint64(0)), first, last)


class Matches(NamedTuple):
    """Phrases found in a run, from left to right, none overlapping another."""

    first: Ints
    """The place of each one's first token."""
    last: Ints
    phrase: Ints
    """Its number in the table."""


class FMMTable:
    """Word n-grams of a support corpus, the most frequent first.

    Args:
        tokens: The LM's tokens of all phrases, one after the other.
        token_ends: Where each phrase ends in `tokens`.
        words: The words' keys of all phrases.
        word_ends: Where each phrase ends in `words`.
        counts: How often each was found.
    """

    def __init__(
        self,
        tokens: NDArray[numpy.int32],
        token_ends: Ints,
        words: Keys,
        word_ends: Ints,
        counts: Ints,
    ) -> None:
        self.tokens = tokens
        self.token_ends = token_ends
        self.words = words
        self.word_ends = word_ends
        self.counts = counts

    @classmethod
    def mine(
        cls,
        run: TokenArrays,
        sizes: tuple[int, int] = (2, 16),
        min_count: int = 5,
        cap: int | None = 1_000_000,
    ) -> Self:
        """Count the word n-grams of a corpus.

        Args:
            run: The corpus.
            sizes: Shortest and longest n-gram, in words; punctuation ends one.
            min_count: How often it must be found.
            cap: Keep at most so many, the most frequent first.

        Returns:
            The table.
        """
        words = words_of(run)
        known = numpy.unique(words.keys[words.keys > 0])
        # What is no word is not found, and -1 is a break.
        numbers = KeyIndex(known).find(words.keys).astype(numpy.int32)
        mined = count_ngrams(numbers, checked_sizes(sizes), min_count)
        begin, end = words.first[mined.start], words.last[mined.start + mined.size - 1] + 1
        is_phrase = ~run.are_numbers(begin, end)
        mined = top_ngrams(type(mined)(*(column[is_phrase] for column in mined)), cap)
        begin, end = words.first[mined.start], words.last[mined.start + mined.size - 1] + 1
        return cls(
            run.ids[ranges(begin, end)],
            numpy.cumsum(end - begin),
            words.keys[ranges(mined.start, mined.start + mined.size)],
            numpy.cumsum(mined.size),
            mined.counts,
        )

    def __len__(self) -> int:
        return len(self.counts)

    def ids(self, phrase: int) -> tuple[int, ...]:
        """Return the tokens of a phrase."""
        begin = int(self.token_ends[phrase - 1]) if phrase else 0
        return tuple(self.tokens[begin : int(self.token_ends[phrase])].tolist())

    def match(self, run: TokenArrays) -> Matches:
        """Segment a run by the longest phrases, greedily from the left."""
        words = words_of(run)
        found = self._automaton.find(self.spelled(words.keys)) if len(self) else []
        table = numpy.array(found, dtype=numpy.int64).reshape(-1, 3)
        return Matches(words.first[table[:, 0]], words.last[table[:, 1] - 1], table[:, 2])

    def spelled(self, keys: Keys) -> str:
        """Write words as a text with one character for each word that the table knows."""
        place = self._known.find(keys)
        is_known = (place >= 0) & (keys != 0)
        codes = numpy.where(is_known, place + _FIRST, 1).astype("<u4")
        return codes.tobytes().decode("utf-32-le")

    def patterns(self) -> list[str]:
        """Return the phrases as `spelled` writes them."""
        text = self.spelled(self.words)
        begins = prepend_zero(self.word_ends)[:-1]
        edges = zip(begins.tolist(), self.word_ends.tolist(), strict=True)
        return [text[begin:end] for begin, end in edges]

    @cached_property
    def _known(self) -> KeyIndex:
        known = numpy.unique(self.words)
        if len(known) > _MAX_WORDS:
            raise OptionError(
                f"the table has {len(known)} different words; at most {_MAX_WORDS} can be matched. "
                "Raise min_count or lower the cap."
            )
        return KeyIndex(known)

    @cached_property
    def _automaton(self) -> "CharwiseDoubleArrayAhoCorasick":
        try:
            import daachorse
        except ImportError:
            raise MissingExtra("daachorse", "index") from None
        return daachorse.CharwiseDoubleArrayAhoCorasick(
            self.patterns(), daachorse.MATCH_KIND_LEFTMOST_LONGEST
        )


def fmm(table: FMMTable) -> PhraseSource:
    """Make a source of the longest phrases of a table in a document."""

    def spans(text: TokenizedText) -> Iterator[tuple[int, int]]:
        run = text.arrays()
        matches = table.match(run)
        # Breaks are no tokens of the document.
        token = numpy.full(len(run.ids), -1)
        token[text.positions] = numpy.arange(len(text.ids))
        return zip(token[matches.first].tolist(), token[matches.last].tolist(), strict=True)

    return lambda document, tokenizer: collect(document, tokenizer, spans)


def fmm_of(
    documents: Sequence[Document],
    sizes: tuple[int, int] = (2, 16),
    min_count: int = 5,
    cap: int | None = 1_000_000,
) -> PhraseSource:
    """Make a source of the longest phrases that are frequent in a support corpus.

    Args:
        documents: The support corpus, counted when the source is first used.
        sizes: Shortest and longest phrase, in words.
        min_count: How often one must be found.
        cap: Keep at most so many, the most frequent first.

    Returns:
        The source.
    """
    checked_sizes(sizes)
    tables: dict[str, PhraseSource] = {}

    def find(document: Document, tokenizer: Tokenizer) -> Iterator[Phrase]:
        key = tokenizer.fingerprint()
        if key not in tables:
            run = TokenArrays.concatenate(
                tokenize_lines(one, tokenizer).arrays() for one in documents
            )
            tables[key] = fmm(FMMTable.mine(run, sizes, min_count, cap))
        return tables[key](document, tokenizer)

    return find
