"""Copy runs: the stretches of a text that stand word for word in passages.

Texts are compared as words: numbers and hyphenated words are whole, so that no run ends inside one,
and white space counts only by whether there is any. Case and every other character matter. In
scripts without spaces each character is a word.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from univerb.documents.chunks import Chunk
from univerb.phrases.content import content_words
from univerb.phrases.guards import NUMBER, is_unspaced

_JOINED = r"(?:['’.,:/–‐‑-][^\W_]+|\^[+−-]?\d+)*"
"""The rest of 5-year, co-operate, 19-year-old and x^2."""
_GAP = "[ \xa0\u2009\u202f]"
_WHOLE = rf"(?>\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)(?:[.,]\d+)*|{NUMBER.pattern})"
_POWER = rf"(?:(?:{_GAP}?[×·]{_GAP}?|\^[+−-]?){_WHOLE})*"
_PARAGRAPH = rf"(?:{_GAP}\((?:\d{{1,3}}|[a-z]|[ivx]{{2,5}})\))*"
_WORD = re.compile(
    # A number expression, also 1 500.75, 3 × 10^12 and § 12 (3), and a unit behind it.
    rf"[+−-]?(?:§§?{_GAP}?)?{_WHOLE}{_POWER}{_PARAGRAPH}[^\W_]*{_JOINED}"
    rf"|[^\W_]+{_JOINED}|[^\w\s]|_"
)
_JOINERS = frozenset({"Mn", "Mc", "Me", "Cf"})
_DIGITS = re.compile(r"\d{2}")
_SHORTEST_NAME = 4
"""Characters; shorter ones, such as the month May, are names and common words alike."""


class Word(NamedTuple):
    """A word, a number or a mark of a text."""

    text: str
    start: int
    end: int
    is_spaced: bool
    """Whether white space stands before it."""

    @property
    def is_mark(self) -> bool:
        """Whether it has neither letters nor digits."""
        return not any(character.isalnum() for character in self.text)


class CopyPlace(NamedTuple):
    """Where a run stands: a passage's index and characters of its document."""

    passage: int
    start: int
    end: int


class CopyRun(NamedTuple):
    """A stretch of a text, in characters, and every place that it stands in."""

    start: int
    end: int
    places: tuple[CopyPlace, ...]
    """In the order of the passages."""


def split_words(text: str) -> list[Word]:
    """Split a text into words, numbers and marks."""
    words: list[Word] = []
    for start, end in _spans(text):
        if words and words[-1].end == start and _joins(text[start - 1], text[start]):
            start = words.pop().start
        words.append(Word(text[start:end], start, end, text[start - 1 : start].isspace()))
    return words


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Find characters of scripts without spaces, and the words between them."""
    at = 0
    for is_apart, characters in groupby(text, is_unspaced):
        end = at + len(list(characters))
        if is_apart:
            yield from pairwise(range(at, end + 1))
        else:
            yield from (match.span() for match in _WORD.finditer(text, at, end))
        at = end


def _joins(left: str, right: str) -> bool:
    """Tell whether neighbours are one word: by an accent, a vowel sign or an invisible joiner."""
    return any(unicodedata.category(each) in _JOINERS for each in (left, right))


class CopiedPassages:
    """Passages that texts may copy from."""

    def __init__(self, passages: Sequence[Chunk]) -> None:
        self._passages = passages
        self._words = [split_words(passage.text) for passage in passages]
        self._where: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """The passage and the index in it of every word."""
        for number, words in enumerate(self._words):
            for at, word in enumerate(words):
                self._where[word.text].append((number, at))

    def runs(self, text: str) -> list[CopyRun]:
        """Find the longest stretches of a text that stand in passages, without overlap, in order.

        Where two overlap the longer one is whole, and the other is what is left of it. A run begins
        and ends with a word and says something.
        """
        words = split_words(text)
        matches = self._matches(words)
        runs = []
        for begin, end in _longest_first([max(m.values(), default=0) for m in matches]):
            spoken = [index for index in range(begin, end) if not words[index].is_mark]
            if spoken and _says_something(words, spoken[0], spoken[-1] + 1):
                first, count = spoken[0], spoken[-1] + 1 - spoken[0]
                places = sorted(at for at, size in matches[first].items() if size >= count)
                found = tuple(self._place(*at, count) for at in places)
                runs.append(CopyRun(words[first].start, words[spoken[-1]].end, found))
        return sorted(runs)

    def _matches(self, words: Sequence[Word]) -> list[dict[tuple[int, int], int]]:
        """Return for each word how many words from there on stand at each of its places."""
        matches: list[dict[tuple[int, int], int]] = []
        following: dict[tuple[int, int], int] = {}
        for index in range(len(words) - 1, -1, -1):
            here = {}
            for number, at in self._where.get(words[index].text, ()):
                more = following.get((number, at + 1), 0)
                # Words that one text has apart and the other has joined do not follow each other.
                if more and words[index + 1].is_spaced != self._words[number][at + 1].is_spaced:
                    more = 0
                here[number, at] = 1 + more
            matches.append(here)
            following = here
        return matches[::-1]

    def _place(self, number: int, at: int, count: int) -> CopyPlace:
        offset, words = self._passages[number].start, self._words[number]
        return CopyPlace(number, offset + words[at].start, offset + words[at + count - 1].end)


def _says_something(words: Sequence[Word], begin: int, end: int) -> bool:
    """Tell whether some words of a text are worth a citation.

    They have two content words, or one that is a number of two digits or a name: glue and single
    common words stand in any document. In scripts without spaces two characters count as a word.
    """
    # Word by word: both halves of co-operate are content, but it is one common word.
    content = [word.text for word in words[begin:end] if content_words(word.text)]
    return sum(0.5 if is_unspaced(word[0]) else 1 for word in content) >= 2 or any(
        _DIGITS.search(words[index].text) or _is_name(words, index) for index in range(begin, end)
    )


def _is_name(words: Sequence[Word], index: int) -> bool:
    """Tell whether a content word has a capital that no beginning of a sentence explains."""
    is_inside = index > 0 and not words[index - 1].is_mark
    word = words[index].text
    is_long = len(word) >= _SHORTEST_NAME
    return is_inside and is_long and word[0].isupper() and bool(content_words(word))


def _longest_first(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield stretches (begin, end) that cover what has a length, the longest first."""
    is_taken = [False] * len(lengths)
    for begin in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        wanted = is_taken[begin : begin + lengths[begin]]
        size = wanted.index(True) if True in wanted else len(wanted)
        if size:
            is_taken[begin : begin + size] = [True] * size
            yield begin, begin + size
