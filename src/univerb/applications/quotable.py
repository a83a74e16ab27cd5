"""What of passages can be quoted: sentences that say something by themselves, and lists."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from univerb.applications.prompts import one_line, title_of
from univerb.documents.chunks import Chunk
from univerb.documents.headings import heading_above, leading_heading
from univerb.documents.sentences import split_sentences
from univerb.phrases.guards import is_unspaced

_SHORT = 8
"""Words below which a sentence is quoted together with the next: headings, "No." """
_FEWEST = 5
"""Words below which a sentence is quoted only if none is longer."""
_LONGEST = 60
"""Words above which a sentence is quoted in clauses, and a list in lines."""
_HEADING = 15
"""Words below which a line without final punctuation is a heading or an item of a list."""
_AT_COMMAS = (re.compile(r"(?<=[,.])\s++|(?<=[，、；])\s*+"), _LONGEST)
"""Where to cut, and how many words of what is between the cuts stay together."""
_AT_LINES = (re.compile(r"[\n\r]\s*+"), _HEADING)
_ANYWHERE = ((re.compile(r"\s++"), _LONGEST), (re.compile(r"."), _LONGEST))
"""At spaces, and between the characters of scripts that have none."""
_Cuts = tuple[tuple[re.Pattern[str], int], ...]
_FINAL = re.compile(r"[.!?…。！？:;]+[\"'”’»)]*\Z")


class Quotable(NamedTuple):
    """A stretch of a document that can be quoted."""

    source: Chunk
    title: str
    """The name of its document, and the heading that this begins with."""
    heading: str
    """What else stands above it; empty if nothing does."""
    before: str
    """The sentence before it; empty for the first."""

    @property
    def text(self) -> str:
        """What is quoted."""
        return one_line(self.source.text)

    @property
    def below_heading(self) -> str:
        """With its heading: what "it" and "this medicine" are is often said there."""
        return f"{self.heading}. {self.text}" if self.heading else self.text

    @property
    def after_sentence(self) -> str:
        """With the sentence before it."""
        return f"{self.before} {self.text}".strip()


def find_quotable(passages: Sequence[Chunk], texts: Mapping[str, str]) -> list[Quotable]:
    """Find what can be quoted of passages, each stretch once: they may overlap.

    `texts` are the whole documents by name, as far as they are at hand.
    """
    stretches = list(_stretches(passages, texts))
    return [each for each in stretches if _count_words(each.text) >= _FEWEST] or stretches


def _stretches(passages: Sequence[Chunk], texts: Mapping[str, str]) -> Iterator[Quotable]:
    seen: set[tuple[str, int]] = set()
    for passage in passages:
        # Where a line was wrapped is seen in the whole text only, and headings may lie before.
        offset = 0 if passage.document in texts else passage.start
        text = texts.get(passage.document, passage.text)
        spans, leading = quotable_spans(text), leading_heading(text)
        title = title_of(passage.document) + (f". {leading}" if leading else "")
        first = bisect_right(spans, passage.start - offset, key=itemgetter(1))
        before = text[slice(*spans[first - 1])] if first else ""
        for start, end in spans[first:]:
            if offset + start >= passage.end:
                break
            source = Chunk(passage.document, offset + start, text[start:end])
            if (source.document, source.start) not in seen:
                seen.add((source.document, source.start))
                heading = heading_above(text, start)
                heading = "" if heading == leading else heading
                yield Quotable(source, title, heading, one_line(before))
            before = source.text


@lru_cache(maxsize=64)
def quotable_spans(text: str) -> Sequence[tuple[int, int]]:
    """Find what of a text can be quoted: sentences, short ones with the next, and lists.

    Headings say nothing alone. What is very long comes in parts.
    """
    sentences = list(split_sentences(text))
    is_open = [
        not _FINAL.search(text[a:b]) and _count_words(text[a:b]) < _HEADING for a, b in sentences
    ]
    spans: list[tuple[int, int]] = []
    index = 0
    while index < len(sentences):
        last = index
        start = sentences[index][0]
        if is_open[index]:
            while last + 1 < len(sentences) and is_open[last + 1]:
                last += 1
            if last > index:
                spans += _parts(text, start, sentences[last][1], (_AT_LINES, *_ANYWHERE))
        else:
            while (
                _count_words(text[start : sentences[last][1]]) < _SHORT
                and last + 1 < len(sentences)
                and not is_open[last + 1]
                and text[sentences[last][1] : sentences[last + 1][0]].count("\n") < 2
            ):
                last += 1
            end = sentences[last][1]
            # Without final punctuation it is a table whose long lines look wrapped.
            at = _AT_COMMAS if _FINAL.search(text[start:end]) else _AT_LINES
            spans += _parts(text, start, end, (at, *_ANYWHERE))
        index = last + 1
    return spans or sentences


def _parts(text: str, start: int, end: int, cuts: _Cuts) -> Iterator[tuple[int, int]]:
    """Cut what is very long at the first kind of cuts, and what still is at the next kind."""
    if not cuts or _count_words(text[start:end]) <= _LONGEST:
        yield start, start + len(text[start:end].rstrip())
        return
    (pattern, most), *finer = cuts
    begin = last = start
    words = 0
    for stop in sorted({end, *(match.end() for match in pattern.finditer(text, start, end))}):
        more = _count_words(text[last:stop])
        if words and words + more > most:
            yield from _parts(text, begin, last, tuple(finer))
            begin, words = last, 0
        words += more
        last = stop
    yield from _parts(text, begin, end, tuple(finer))


def _count_words(text: str) -> int:
    """Count words; each character of a script without spaces is one."""
    return max(len(text.split()), sum(map(is_unspaced, text)))
