"""A document as one run of the LM's tokens, and where among them a phrase may begin and end.

Everything is an array over tokens, so that a folder of law takes seconds, not hours.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self

import numpy
from numpy.typing import NDArray

from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.guards import Guards, is_unspaced
from univerb.phrases.hashing import Ints, prepend_zero
from univerb.tokenizer import Tokenizer

Flags = NDArray[numpy.bool_]

# A line that was wrapped by an editor: long, not ending a sentence, followed by more text.
_SOFT_BREAK = re.compile(r"(?m)^(.{40,}[^\s.!?:;])\n(?=[\w(\"'])")
_LINE = re.compile(r"[^\n\r]+")
_UNKNOWN, _SPACE, _WORD, _MARK, _UNSPACED, _LETTER, _DIGIT, _BAD = 255, 1, 2, 4, 8, 16, 32, 64
_BREAK = 128
# What each code point is, looked up once: filled as texts bring new ones.
_CLASSES = numpy.full(0x110000, _UNKNOWN, dtype=numpy.uint8)


BREAK = -1
"""Stands where no phrase may go on: at the end of a line, and for tokens that none may contain."""
START, END, LETTER, DIGIT = 1, 2, 4, 8


class TokenArrays(NamedTuple):
    """Tokens of any number of lines, with a break after each."""

    ids: NDArray[numpy.int32]
    flags: NDArray[numpy.uint8]
    """`START` and `END` say where a phrase may begin and end, the others what a token has."""

    @classmethod
    def concatenate(cls, runs: Iterable[Self]) -> Self:
        """Put runs one after the other."""
        empty = cls(numpy.empty(0, numpy.int32), numpy.empty(0, numpy.uint8))
        ids, flags = zip(empty, *runs, strict=True)
        return cls(numpy.concatenate(ids), numpy.concatenate(flags))

    def has(self, flag: int) -> Flags:
        """Tell which tokens have a flag."""
        return self.flags & flag > 0

    def are_numbers(self, begin: Ints, end: Ints) -> Flags:
        """Tell which stretches are bare numbers: no phrases, since merging them ruins arithmetic.

        Args:
            begin: The place of each stretch's first token.
            end: The place after its last.

        Returns:
            Whether a stretch has digits and no letters.
        """
        letters, digits = (prepend_zero(numpy.cumsum(self.has(flag))) for flag in (LETTER, DIGIT))
        found: Flags = (letters[end] == letters[begin]) & (digits[end] > digits[begin])
        return found


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The lines of a document as tokens; offsets are the document's."""

    text: str
    """The document's, with breaks that wrap a line turned into spaces."""
    ids: NDArray[numpy.int32]
    visible: Ints
    """Where the text from a token on begins, leading space left out."""
    end: Ints
    line: Ints
    """For each token, the number of its line."""
    may_start: Flags
    """Whether a phrase may begin with this token."""
    may_end: Flags
    """Whether a phrase may end with it."""
    is_space: Flags
    """Whether a token is nothing but space, be it the one put before a line."""
    has_letter: Flags
    has_digit: Flags
    is_masked: Flags
    """Whether a phrase must not contain the token, since it is special or not valid UTF-8."""

    def lines(self) -> Iterator[slice]:
        """Yield the tokens of each line."""
        edges = numpy.flatnonzero(numpy.diff(self.line, prepend=-1, append=-1))
        yield from (slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True))

    def windows(self, size: int) -> Ints:
        """Return where n-grams of a size begin that may be phrases."""
        if size > len(self.ids):
            return numpy.empty(0, dtype=numpy.int64)
        last = size - 1
        fits = self.line[: len(self.line) - last] == self.line[last:]
        starts = self.may_start[: len(fits)] & self.may_end[last:]
        barred = prepend_zero(numpy.cumsum(self.is_masked))
        return numpy.flatnonzero(fits & starts & (barred[size:] == barred[:-size]))

    @property
    def positions(self) -> Ints:
        """Index of each token in `arrays()`, where a break follows each line."""
        return numpy.arange(len(self.ids)) + self.line

    def arrays(self) -> "TokenArrays":
        """Return the tokens in the form in which corpora are counted and searched."""
        flags = self.may_start * START | self.may_end * END
        flags |= self.has_letter * LETTER | self.has_digit * DIGIT
        ids = numpy.where(self.is_masked, BREAK, self.ids)
        flags[self.is_masked] = 0
        at = self.positions
        size = int(at[-1]) + 2 if len(at) else 0
        run = TokenArrays(numpy.full(size, BREAK, numpy.int32), numpy.zeros(size, numpy.uint8))
        run.ids[at], run.flags[at] = ids, flags
        return run

    def aligned(self, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Turn character spans into first and last tokens, where both ends may end a phrase.

        Args:
            spans: Character ranges of the document, spaces around them left out.

        Yields:
            The token ranges, last one included.
        """
        after_space = numpy.append(False, self.is_space[:-1])[: len(self.ids)]
        starting = numpy.flatnonzero(self.may_start & ~after_space)
        starts = dict(zip(self.visible[starting].tolist(), starting.tolist(), strict=True))
        ending = numpy.flatnonzero(self.may_end)
        ends = dict(zip(self.end[ending].tolist(), ending.tolist(), strict=True))
        for start, end in spans:
            first, last = starts.get(start), ends.get(end)
            if first is not None and last is not None and self.line[first] == self.line[last]:
                yield first, last


def tokenize_lines(
    document: Document, tokenizer: Tokenizer, guards: Guards | None = None
) -> TokenizedText:
    """Cut a document into lines and tokenize each as if a word stood before it.

    Args:
        document: The document; lines wrapped by an editor count as one.
        tokenizer: The LM's.
        guards: Which rules decide where phrases begin and end.

    Returns:
        The tokens of the lines that have text.

    Raises:
        DocumentError: If the text is not valid UTF-8.
    """
    # A break that becomes a space keeps its length, so offsets hold.
    text = _SOFT_BREAK.sub(r"\1 ", document.text)
    lines = [line for line in map(_stripped, _LINE.finditer(text)) if line[0]]
    try:
        encoded = tokenizer.encode_all_inside([line for line, _ in lines])
    except TypeError:
        raise DocumentError(
            f"document {document.name!r} is not valid UTF-8 (it has half a character). Correct it."
        ) from None
    counts = [len(one.ids) for one in encoded]
    line = numpy.repeat(numpy.arange(len(lines)), counts)
    begins = numpy.array([start for _, start in lines], dtype=numpy.int64)
    ids = numpy.fromiter(
        chain.from_iterable(one.ids for one in encoded), dtype=numpy.int32, count=sum(counts)
    )
    pairs = chain.from_iterable(chain.from_iterable(one.offsets) for one in encoded)
    offsets = numpy.fromiter(pairs, dtype=numpy.int64, count=2 * sum(counts)).reshape(-1, 2)
    edges = numpy.concatenate(
        [begins, begins + numpy.array([len(one) for one, _ in lines], dtype=numpy.int64)]
    )
    offsets += begins[line][:, None]
    rules = guards or Guards()
    special = numpy.isin(ids, list(tokenizer.special_ids)) & rules.no_special
    return _flagged(text, ids, offsets, line, edges, special, rules)


def tokenize_text(text: str, tokenizer: Tokenizer, guards: Guards | None = None) -> TokenizedText:
    """Tokenize a text exactly as an LM reads it, line breaks included.

    Args:
        text: The text.
        tokenizer: The LM's.
        guards: Which rules decide where phrases begin and end.

    Returns:
        One run of tokens; those that break a line are barred from phrases.

    Raises:
        DocumentError: If the text is not valid UTF-8.
    """
    try:
        encoded = tokenizer.encode(text)
    except TypeError:
        raise DocumentError(
            f"the text {text[:40]!r}… is not valid UTF-8 (it has half a character). Correct it."
        ) from None
    ids = numpy.array(encoded.ids, dtype=numpy.int32)
    offsets = numpy.array(encoded.offsets, dtype=numpy.int64).reshape(-1, 2)
    rules = guards or Guards()
    barred = numpy.isin(ids, list(tokenizer.special_ids)) & rules.no_special
    if rules.no_newline:
        breaks = prepend_zero(numpy.cumsum(_kinds(text) & _BREAK > 0))
        barred |= breaks[offsets[:, 1]] > breaks[offsets[:, 0]]
    edges = numpy.array([0, len(text)])
    line = numpy.zeros(len(ids), dtype=numpy.int64)
    return _flagged(text, ids, offsets, line, edges, barred, rules)


def _stripped(match: re.Match[str]) -> tuple[str, int]:
    line = match.group().strip()
    return line, match.start() + match.group().find(line)


def _flagged(
    text: str,
    ids: NDArray[numpy.int32],
    offsets: Ints,
    line: Ints,
    edges: Ints,
    is_special: Flags,
    guards: Guards,
) -> TokenizedText:
    begin, end = offsets[:, 0], offsets[:, 1]
    kinds = _kinds(text)
    # The next character that is no space, from every place on.
    places = numpy.where(kinds & _SPACE, len(text), numpy.arange(len(text)))
    following = numpy.append(numpy.minimum.accumulate(places[::-1])[::-1], len(text))
    visible = following[begin]
    is_space = visible >= end
    may_start, may_end = numpy.ones(len(ids), dtype=bool), numpy.ones(len(ids), dtype=bool)
    is_first = numpy.diff(line, prepend=-1) != 0
    is_last = numpy.append(is_first[1:], True)[: len(ids)]
    if guards.whole_characters:
        overlaps = numpy.zeros(len(ids), dtype=bool)
        overlaps[1:] = begin[1:] < end[:-1]
        may_start &= is_first | ~overlaps
        may_end &= is_last | ~numpy.append(overlaps[1:], False)[: len(ids)]
    if guards.word_boundaries:
        boundary = _boundaries(kinds)
        boundary[edges] = True
        # The space before a word belongs to the phrase, also where it is a token of its own.
        after_space = numpy.append(False, is_space[:-1])[: len(ids)]
        may_start &= boundary[visible] & (is_first | ~after_space)
        may_end &= boundary[end] & ~is_space
    return TokenizedText(
        text,
        ids,
        visible,
        end,
        line,
        may_start,
        may_end,
        is_space,
        has_letter=_contains(kinds, _LETTER, begin, end),
        has_digit=_contains(kinds, _DIGIT, begin, end),
        is_masked=is_special | _contains(kinds, _BAD, begin, end) & guards.whole_characters,
    )


def _contains(kinds: NDArray[numpy.uint8], kind: int, begin: Ints, end: Ints) -> Flags:
    before = numpy.concatenate([[0], numpy.cumsum(kinds & kind > 0)])
    found: Flags = before[end] > before[begin]
    return found


def word_boundaries(text: str) -> Flags:
    """Tell at which places of a text, its end included, a word may begin or end."""
    return _boundaries(_kinds(text))


def _boundaries(kinds: NDArray[numpy.uint8]) -> Flags:
    boundary = numpy.ones(len(kinds) + 1, dtype=bool)
    before, after = kinds[:-1], kinds[1:]
    within = (before & _WORD > 0) & (after & _WORD > 0)
    unspaced = (before | after) & _UNSPACED > 0
    boundary[1:-1] = ~(after & _MARK > 0) & (unspaced | ~within)
    return boundary


def _kinds(text: str) -> NDArray[numpy.uint8]:
    codes = numpy.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=numpy.uint32)
    kinds = _CLASSES[codes]
    new = numpy.unique(codes[kinds == _UNKNOWN])
    if new.size:
        _CLASSES[new] = [_kind(chr(code)) for code in new]
        kinds = _CLASSES[codes]
    return kinds


def _kind(character: str) -> int:
    # A vowel sign, an accent or the like is a part of the character before it.
    is_mark = unicodedata.category(character).startswith("M")
    is_word = character.isalnum() or character == "_" or is_mark
    return (
        _SPACE * character.isspace()
        | _WORD * is_word
        | _MARK * is_mark
        | _UNSPACED * is_unspaced(character)
        | _LETTER * (character.isalnum() and not character.isdigit())
        | _DIGIT * character.isdigit()
        | _BAD * (character == "\N{REPLACEMENT CHARACTER}")
        | _BREAK * (character in "\n\r")
    )
