"""What of passages can be quoted: sentences that say something by themselves, and lists."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from univerb.applications.prompts import one_line, title_of
from univerb.documents.chunks import Chunk
from univerb.documents.headings import heading_above, leading_heading
from univerb.documents.sentences import split_clauses, split_sentences

_SHORT = 8
"""Words below which a sentence is quoted together with the next: headings, "No." """
_FEWEST = 5
"""Words below which a sentence is quoted only if none is longer."""
_LONGEST = 60
"""Words above which a sentence is quoted in clauses."""
_HEADING = 15
"""Words below which a line without final punctuation is a heading or an item of a list."""
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
    return [each for each in stretches if len(each.text.split()) >= _FEWEST] or stretches


def _stretches(passages: Sequence[Chunk], texts: Mapping[str, str]) -> Iterator[Quotable]:
    seen: set[tuple[str, int]] = set()
    for passage in passages:
        # Where a line was wrapped is seen in the whole text only, and headings may lie before.
        offset = 0 if passage.document in texts else passage.start
        text = texts.get(passage.document, passage.text)
        spans, leading = quotable_spans(text), leading_heading(text)
        title = title_of(passage.document) + (f". {leading}" if leading else "")
        first = bisect_left(spans, passage.start - offset, key=itemgetter(0))
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

    Headings say nothing alone. Very long sentences come in clauses.
    """
    sentences = list(split_sentences(text))
    is_open = [
        not _FINAL.search(text[a:b]) and len(text[a:b].split()) < _HEADING for a, b in sentences
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
                spans.append((start, sentences[last][1]))
        else:
            while (
                len(text[start : sentences[last][1]].split()) < _SHORT
                and last + 1 < len(sentences)
                and not is_open[last + 1]
                and "\n\n" not in text[sentences[last][1] : sentences[last + 1][0]]
            ):
                last += 1
            spans += _clauses(text, start, sentences[last][1])
        index = last + 1
    return spans or sentences


def _clauses(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a long sentence at commas into parts of at most sixty words, where it has any."""
    begin = last = start
    for _, stop in split_clauses(text[start:end]):
        if last > begin and len(text[begin : start + stop].split()) > _LONGEST:
            yield begin, last
            begin = last + len(text[last:end]) - len(text[last:end].lstrip())
        last = start + stop
    yield begin, end
