"""Documents as arrays of the LM's tokens, with flags for where a phrase may begin and end.

Everything is vectorised over tokens, so that a folder of law takes seconds, not hours.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self

import numpy
from numpy.typing import NDArray

from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.content import content_characters
from univerb.phrases.guards import NUMBER, Guards, is_unspaced
from univerb.phrases.hashing import Ints, prepend_zero
from univerb.tokenizer import Tokenizer

Flags = NDArray[numpy.bool_]

# A line that an editor wrapped: long, not ending a sentence, followed by more text.
_SOFT_BREAK = re.compile(r"(?m)^(.{40,}[^\s.!?:;])\n(?=[\w(\"'])")
_LINE = re.compile(r"[^\n\r]+")
_UNKNOWN, _SPACE, _WORD, _MARK, _UNSPACED, _LETTER, _DIGIT, _BAD = 255, 1, 2, 4, 8, 16, 32, 64
_BREAK = 128
# Class of each code point, filled as texts bring new ones.
_CHAR_CLASSES = numpy.full(0x110000, _UNKNOWN, dtype=numpy.uint8)


BREAK = -1
"""The id between lines, and of tokens that no phrase may contain."""
START, END, LETTER, DIGIT, CONTENT = 1, 2, 4, 8, 16


class TokenArrays(NamedTuple):
    """Tokens of any number of lines, with a break after each."""

    ids: NDArray[numpy.int32]
    flags: NDArray[numpy.uint8]
    """`START`, `END`: a phrase may begin or end here. `LETTER`, `DIGIT`: the token has one.
    `CONTENT`: it is part of a content word; every token has this without that guard."""

    @classmethod
    def concatenate(cls, parts: Iterable[Self]) -> Self:
        """Put arrays one after the other."""
        empty = cls(numpy.empty(0, numpy.int32), numpy.empty(0, numpy.uint8))
        ids, flags = zip(empty, *parts, strict=True)
        return cls(numpy.concatenate(ids), numpy.concatenate(flags))

    def has(self, flag: int) -> Flags:
        """Return which tokens have a flag."""
        return self.flags & flag > 0

    def have(self, flag: int, begin: Ints, end: Ints) -> Flags:
        """Return which spans have a token with a flag. `end` is exclusive."""
        return _contain(self.has(flag), begin, end)

    def are_numbers(self, begin: Ints, end: Ints) -> Flags:
        """Return which spans are bare numbers: digits without letters.

        They are no phrases, since merging them ruins arithmetic. `end` is exclusive.
        """
        return ~self.have(LETTER, begin, end) & self.have(DIGIT, begin, end)


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The lines of a document as tokens; one entry per token, offsets in the document."""

    text: str
    """The document's text, with breaks that wrap a line replaced by spaces."""
    ids: NDArray[numpy.int32]
    visible: Ints
    """Offset of the first character from the token on that is no space."""
    end: Ints
    line: Ints
    """Number of its line."""
    may_start: Flags
    """Whether a phrase may begin with it."""
    may_end: Flags
    """Whether a phrase may end with it."""
    is_space: Flags
    """Whether it is only space, be it the one put before a line."""
    has_letter: Flags
    has_digit: Flags
    is_content: Flags
    """Whether it is part of a content word, without that guard of any; a phrase has one."""
    is_masked: Flags
    """Whether no phrase may contain it, since it is special or not valid UTF-8."""

    def lines(self) -> Iterator[slice]:
        """Yield the tokens of each line."""
        edges = numpy.flatnonzero(numpy.diff(self.line, prepend=-1, append=-1))
        yield from (slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True))

    def line_spans(
        self, find: Callable[[str], Iterable[tuple[int, int]]]
    ) -> Iterator[tuple[int, int]]:
        """Yield the character spans that `find` finds in each line, in order, each once."""
        for line in self.lines():
            begin, end = int(self.visible[line.start]), int(self.end[line.stop - 1])
            spans = find(self.text[begin:end])
            yield from sorted({(begin + start, begin + stop) for start, stop in spans})

    def windows(self, size: int) -> Ints:
        """Return the first tokens of all n-grams of a size that may be phrases."""
        if size > len(self.ids):
            return numpy.empty(0, dtype=numpy.int64)
        last = size - 1
        is_in_line = self.line[: len(self.line) - last] == self.line[last:]
        has_ends = self.may_start[: len(is_in_line)] & self.may_end[last:]
        masked, content = (prepend_zero(numpy.cumsum(f)) for f in (self.is_masked, self.is_content))
        is_allowed = (masked[size:] == masked[:-size]) & (content[size:] > content[:-size])
        return numpy.flatnonzero(is_in_line & has_ends & is_allowed)

    @property
    def positions(self) -> Ints:
        """Index of each token in `arrays()`, where a break follows each line."""
        return numpy.arange(len(self.ids)) + self.line

    def arrays(self) -> TokenArrays:
        """Return ids and flags, as they are counted and searched."""
        flags = self.may_start * START | self.may_end * END
        flags |= self.has_letter * LETTER | self.has_digit * DIGIT | self.is_content * CONTENT
        ids = numpy.where(self.is_masked, BREAK, self.ids)
        flags[self.is_masked] = 0
        at = self.positions
        size = int(at[-1]) + 2 if len(at) else 0
        arrays = TokenArrays(numpy.full(size, BREAK, numpy.int32), numpy.zeros(size, numpy.uint8))
        arrays.ids[at], arrays.flags[at] = ids, flags
        return arrays

    def aligned(self, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield first and last token of those character spans whose ends may end a phrase.

        The spans have no surrounding space.
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


def unwrapped(text: str) -> str:
    """Return a text whose lines an editor wrapped as the lines that they were."""
    # A break that becomes a space keeps its length, so offsets stay valid.
    return _SOFT_BREAK.sub(r"\1 ", text)


def tokenize_lines(
    document: Document, tokenizer: Tokenizer, guards: Guards | None = None
) -> TokenizedText:
    """Tokenize each line of a document as if a word preceded it.

    Lines that an editor wrapped count as one; lines without text are left out.
    """
    text = unwrapped(document.text)
    lines = [line for line in map(_stripped, _LINE.finditer(text)) if line[0]]
    try:
        encoded = tokenizer.encode_all_inside([line for line, _ in lines])
    except TypeError:
        raise _invalid(f"document {document.name!r}") from None
    counts = [len(encoding.ids) for encoding in encoded]
    line = numpy.repeat(numpy.arange(len(lines)), counts)
    begins = numpy.array([start for _, start in lines], dtype=numpy.int64)
    lengths = numpy.array([len(text) for text, _ in lines], dtype=numpy.int64)
    ids = numpy.fromiter(
        chain.from_iterable(encoding.ids for encoding in encoded),
        dtype=numpy.int32,
        count=sum(counts),
    )
    pairs = chain.from_iterable(chain.from_iterable(encoding.offsets) for encoding in encoded)
    offsets = numpy.fromiter(pairs, dtype=numpy.int64, count=2 * sum(counts)).reshape(-1, 2)
    offsets += begins[line][:, None]
    edges = numpy.concatenate([begins, begins + lengths])
    rules = guards or Guards()
    is_special = numpy.isin(ids, list(tokenizer.special_ids)) & rules.no_special
    return _flagged(text, ids, offsets, line, edges, is_special, rules)


def tokenize_text(text: str, tokenizer: Tokenizer, guards: Guards | None = None) -> TokenizedText:
    """Tokenize a text exactly as an LM reads it, as one line; its line breaks are masked."""
    try:
        encoded = tokenizer.encode(text)
    except TypeError:
        raise _invalid(f"the text {text[:40]!r}…") from None
    ids = numpy.array(encoded.ids, dtype=numpy.int32)
    offsets = numpy.array(encoded.offsets, dtype=numpy.int64).reshape(-1, 2)
    rules = guards or Guards()
    is_masked = numpy.isin(ids, list(tokenizer.special_ids)) & rules.no_special
    if rules.no_newline:
        is_masked |= _contain(_char_classes(text) & _BREAK > 0, offsets[:, 0], offsets[:, 1])
    edges = numpy.array([0, len(text)])
    line = numpy.zeros(len(ids), dtype=numpy.int64)
    return _flagged(text, ids, offsets, line, edges, is_masked, rules)


def ends_whole(part: str, text: str) -> bool:
    """Tell whether a part that a text begins with ends a word or number of it, and a character.

    The rules of `Guards` that hold for what is written, too, where a phrase was cut.
    """
    at = len(part)
    # A part that ends inside a character decodes to another one.
    if not text.startswith(part) or part[-1:].isspace():
        return False
    return bool(_boundaries(_char_classes(text))[at] and not _inside_numbers(text)[at])


def _invalid(origin: str) -> DocumentError:
    return DocumentError(f"{origin} is not valid UTF-8 (it has half a character). Correct it.")


def _stripped(match: re.Match[str]) -> tuple[str, int]:
    line = match.group().strip()
    return line, match.start() + match.group().find(line)


def _flagged(
    text: str,
    ids: NDArray[numpy.int32],
    offsets: Ints,
    line: Ints,
    edges: Ints,
    is_masked: Flags,
    guards: Guards,
) -> TokenizedText:
    begin, end = offsets[:, 0], offsets[:, 1]
    classes = _char_classes(text)
    # From each character on, the next one that is no space.
    no_space = numpy.where(classes & _SPACE, len(text), numpy.arange(len(text)))
    following = numpy.append(numpy.minimum.accumulate(no_space[::-1])[::-1], len(text))
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
        boundary = _boundaries(classes)
        boundary[edges] = True
        # The space before a word belongs to the phrase, even if it is a separate token.
        after_space = numpy.append(False, is_space[:-1])[: len(ids)]
        may_start &= boundary[visible] & (is_first | ~after_space)
        may_end &= boundary[end] & ~is_space
    if guards.whole_numbers:
        is_inside = _inside_numbers(text)
        may_start &= ~is_inside[visible]
        may_end &= ~is_inside[end]
    is_content = numpy.ones(len(ids), dtype=bool)
    if guards.content:
        is_content = _contain(content_characters(text, guards.content), begin, end)
    return TokenizedText(
        text,
        ids,
        visible,
        end,
        line,
        may_start,
        may_end,
        is_space,
        has_letter=_contain(classes & _LETTER > 0, begin, end),
        has_digit=_contain(classes & _DIGIT > 0, begin, end),
        is_content=is_content,
        is_masked=is_masked | _contain(classes & _BAD > 0, begin, end) & guards.whole_characters,
    )


def _contain(is_marked: Flags, begin: Ints, end: Ints) -> Flags:
    """Return which spans have a marked character or token."""
    before = prepend_zero(numpy.cumsum(is_marked))
    is_inside: Flags = before[end] > before[begin]
    return is_inside


def _inside_numbers(text: str) -> Flags:
    """Return which places between characters, and at both ends, are inside of a number."""
    spans = numpy.array([match.span() for match in NUMBER.finditer(text)], dtype=numpy.int64)
    steps = numpy.zeros(len(text) + 1, dtype=numpy.int8)
    steps[spans.reshape(-1, 2)[:, 0] + 1] += 1
    steps[spans.reshape(-1, 2)[:, 1]] -= 1
    return numpy.cumsum(steps, dtype=numpy.int8) > 0


def _boundaries(classes: NDArray[numpy.uint8]) -> Flags:
    """Return between which characters, and at both ends, a word may begin or end."""
    boundary = numpy.ones(len(classes) + 1, dtype=bool)
    before, after = classes[:-1], classes[1:]
    within = (before & _WORD > 0) & (after & _WORD > 0)
    unspaced = (before | after) & _UNSPACED > 0
    boundary[1:-1] = ~(after & _MARK > 0) & (unspaced | ~within)
    return boundary


def _char_classes(text: str) -> NDArray[numpy.uint8]:
    codes = numpy.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=numpy.uint32)
    classes = _CHAR_CLASSES[codes]
    new = numpy.unique(codes[classes == _UNKNOWN])
    if new.size:
        _CHAR_CLASSES[new] = [_char_class(chr(code)) for code in new]
        classes = _CHAR_CLASSES[codes]
    return classes


def _char_class(character: str) -> int:
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
