"""Forward maximum matching: the frequent phrases of a support corpus, as long as possible.

The table holds frequent word n-grams (docs/method.md, Training samples); a text is segmented
greedily from left to right, each time by the longest n-gram that begins there. Words are spans of
the LM's tokens, so that a match is a phrase of the LM, never half a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.hashing import Ints, KeyIndex, Keys, RollingHash, prepend_zero, ranges
from univerb.phrases.mining import count_ngrams, top_ngrams
from univerb.phrases.ngrams import PhraseSource, Spans, SpanSource, checked_sizes
from univerb.phrases.tokenized import (
    BREAK,
    CONTENT,
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


# First code point that encodes a word of the table; lower ones encode none.
_FIRST = 0x10000
_MAX_WORDS = 0x110000 - _FIRST


class WordSpans(NamedTuple):
    """Words as spans of tokens; punctuation and breaks have the key 0."""

    keys: Keys
    """A 64-bit hash of each word's tokens."""
    first: Ints
    """Index of each word's first token."""
    last: Ints


def words_of(tokens: TokenArrays) -> WordSpans:
    """Group tokens into words: from where one may begin to where the next may."""
    is_break = tokens.ids == BREAK
    first = numpy.flatnonzero(tokens.has(START) | is_break)
    last = numpy.append(first[1:], len(tokens.ids))[: len(first)] - 1
    keys = RollingHash(tokens.ids).keys(first, last + 1)
    texts = prepend_zero(numpy.cumsum(tokens.has(LETTER | DIGIT)))
    is_word = (texts[last + 1] > texts[first]) & tokens.has(END)[last] & ~is_break[first]
    return WordSpans(numpy.where(is_word, keys | numpy.uint64(1), numpy.uint64(0)), first, last)


class Matches(NamedTuple):
    """Matched phrases, from left to right, without overlap."""

    first: Ints
    """Index of each one's first token."""
    last: Ints
    phrase: Ints
    """Its number in the table."""


@dataclass(frozen=True)
class FMMTable:
    """Word n-grams of a support corpus, the most frequent first.

    Phrases are stored concatenated: their tokens and their words' keys, with the end of each.
    """

    tokens: NDArray[numpy.int32]
    token_ends: Ints
    words: Keys
    word_ends: Ints
    counts: Ints

    @classmethod
    def mine(
        cls,
        tokens: TokenArrays,
        sizes: tuple[int, int] = (2, 16),
        min_count: int = 5,
        cap: int | None = 1_000_000,
    ) -> Self:
        """Count the word n-grams of a corpus.

        Args:
            tokens: The corpus.
            sizes: Shortest and longest n-gram, in words; punctuation ends one.
            min_count: Minimum number of occurrences.
            cap: Maximum number of n-grams: the most frequent ones.

        Returns:
            The table.
        """
        words = words_of(tokens)
        known = numpy.unique(words.keys[words.keys > 0])
        # The key 0 is unknown: -1, a break.
        numbers = KeyIndex(known).find(words.keys).astype(numpy.int32)
        is_content = tokens.have(CONTENT, words.first, words.last + 1)
        mined = count_ngrams(numbers, checked_sizes(sizes), min_count, is_content=is_content)
        begin, end = words.first[mined.start], words.last[mined.start + mined.size - 1] + 1
        is_phrase = ~tokens.are_numbers(begin, end)
        mined = top_ngrams(type(mined)(*(column[is_phrase] for column in mined)), cap)
        begin, end = words.first[mined.start], words.last[mined.start + mined.size - 1] + 1
        return cls(
            tokens.ids[ranges(begin, end)],
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

    def match(self, tokens: TokenArrays) -> Matches:
        """Segment tokens by the longest phrases, greedily from the left."""
        words = words_of(tokens)
        matches = self._automaton.find(self.word_codes(words.keys)) if len(self) else []
        rows = numpy.array(matches, dtype=numpy.int64).reshape(-1, 3)
        return Matches(words.first[rows[:, 0]], words.last[rows[:, 1] - 1], rows[:, 2])

    def word_codes(self, keys: Keys) -> str:
        """Return a text with one character for each word; unknown words share one."""
        index = self._known.find(keys)
        is_known = (index >= 0) & (keys != 0)
        codes = numpy.where(is_known, index + _FIRST, 1).astype("<u4")
        return codes.tobytes().decode("utf-32-le")

    def patterns(self) -> list[str]:
        """Return the word codes of each phrase."""
        text = self.word_codes(self.words)
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


def fmm(table: FMMTable, guards: Guards | None = None) -> PhraseSource:
    """Make a source of the longest phrases of a table in a document."""

    def spans(text: TokenizedText) -> Spans:
        arrays = text.arrays()
        matches = table.match(arrays)
        # Breaks are no tokens of the document.
        token = numpy.full(len(arrays.ids), -1)
        token[text.positions] = numpy.arange(len(text.ids))
        return token[matches.first], token[matches.last]

    return SpanSource(spans, guards or Guards())


def fmm_of(
    documents: Sequence[Document],
    sizes: tuple[int, int] = (2, 16),
    min_count: int = 5,
    guards: Guards | None = None,
) -> PhraseSource:
    """Make a source of the longest phrases that are frequent in `documents`.

    The documents are counted when the source is first used; `guards` are rules for phrases, the
    other arguments as in `FMMTable.mine`.
    """
    checked_sizes(sizes)

    @cache
    def source(tokenizer: Tokenizer) -> PhraseSource:
        parts = (tokenize_lines(support, tokenizer, guards).arrays() for support in documents)
        return fmm(FMMTable.mine(TokenArrays.concatenate(parts), sizes, min_count), guards)

    return lambda document, tokenizer: source(tokenizer)(document, tokenizer)
