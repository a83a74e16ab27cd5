"""From phrases with sources to citations that anybody can check.

A citation cannot exist unless the passage has, at the span it names, the very text that the
answer has: its constructor compares them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self, get_args

from univerb.decoding.results import Generation
from univerb.documents.chunks import Chunk
from univerb.documents.sentences import split_sentences
from univerb.errors import OptionError, PhraseError, did_you_mean, shown
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.ngrams import PhraseSource
from univerb.tokenizer import Tokenizer

Style = Literal["inline", "sentence", "none"]
"""Markers after each phrase, at the end of each sentence, or nowhere."""
Cite = Literal["best", "all"]
"""Which of the passages that have a phrase are cited."""

_PER_SENTENCE = 3
# A marker that the LM typed, or the beginning of one where the text was cut off. Longer numbers in
# brackets, such as years, are text.
_TYPED = re.compile(r"(?<![ \t])[ \t]*(?:\[(\d{1,2}(?:, ?\d{1,2}){0,8})\]|\[[\d, ]{0,9}\Z)")
_FINAL = re.compile(r"[.!?…。！？]+[\"'”’»)]*\Z")


@dataclass(frozen=True, slots=True)
class Citation:
    """A stretch of an answer that was copied from a passage; ranges are in characters."""

    marker: int
    """The passage's number, from 1."""
    passage: Chunk
    start: int
    """Where the source begins in its document."""
    end: int
    answer_start: int
    """Where the copy begins in the answer's text without markers."""
    answer_end: int
    answer: InitVar[str]
    """That text; the copy is compared with its source."""

    def __post_init__(self, answer: str) -> None:
        is_inside = 0 <= self.answer_start < self.answer_end <= len(answer)
        copy = answer[self.answer_start : self.answer_end] if is_inside else ""
        span = Span(self.document, self.start, self.end)
        if self.marker < 1 or not is_inside or not _has(self.passage, span, copy):
            raise PhraseError(
                f"{copy!r} is not what passage {self.marker} ({self.document!r}) has at "
                f"{self.start}-{self.end}. Cite the span that the phrase was taken from."
            )

    @property
    def document(self) -> str:
        """The name of the document."""
        return self.passage.document

    @property
    def text(self) -> str:
        """The source's text; a line break in it may be a space in the answer."""
        return self.passage.text[self.start - self.passage.start : self.end - self.passage.start]


class Typed(NamedTuple):
    """A marker that the LM wrote by itself, as tokens."""

    marker: int
    at: int
    """Where it stood in the text without markers."""


class Mark(NamedTuple):
    """Passage numbers to show at a position of the text."""

    at: int
    markers: tuple[int, ...]
    space: str = ""
    """What stands before them."""


class Run(NamedTuple):
    """A stretch of the text with markers: plain, cited, or a marker."""

    text: str
    citations: tuple[Citation, ...] = ()
    marker: int | None = None


@dataclass(frozen=True, slots=True)
class CitedText:
    """A text, what of it is cited, and where its markers are shown."""

    text: str
    """Without markers."""
    citations: tuple[Citation, ...] = ()
    typed: tuple[Typed, ...] = ()
    marks: tuple[Mark, ...] = ()

    def runs(self) -> Iterator[Run]:
        """Yield the text with its markers, stretch by stretch."""
        marks, at = list(self.marks), 0
        for (start, end), group in groupby(
            self.citations, key=lambda citation: (citation.answer_start, citation.answer_end)
        ):
            yield from self._between(at, start, marks)
            yield Run(self.text[start:end], tuple(group))
            at = end
        yield from self._between(at, len(self.text), marks)

    def _between(self, start: int, end: int, marks: list[Mark]) -> Iterator[Run]:
        while marks and marks[0].at <= end:
            mark = marks.pop(0)
            yield Run(self.text[start : mark.at] + mark.space)
            yield from (Run(f"[{marker}]", marker=marker) for marker in mark.markers)
            start = mark.at
        yield Run(self.text[start:end])

    def __str__(self) -> str:
        return "".join(run.text for run in self.runs())

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the citations as JSON can hold them, their ranges in the text with markers."""
        citations, at = [], 0
        for run in self.runs():
            for citation in run.citations:
                names = ("marker", "document", "start", "end", "text")
                span = {"answer_start": at, "answer_end": at + len(run.text)}
                citations.append({name: getattr(citation, name) for name in names} | span)
            at += len(run.text)
        return citations


@dataclass(frozen=True, slots=True, eq=False)
class MarkedPhrase(Phrase):
    """A phrase with its passage's marker in its key and its text, but not in its sources."""

    bare: int = 0
    """How much of the text is the phrase itself."""

    def cut(self, text: str, ids: tuple[int, ...]) -> Self:
        """Return the part that begins it; what the marker has of that part is not sourced."""
        return replace(Phrase.cut(self, text[: self.bare], ids), text=text)


def citable_phrases(
    passages: Sequence[Chunk],
    source: PhraseSource,
    tokenizer: Tokenizer,
    encode_marker: bool = False,
) -> Iterator[Phrase]:
    """Find the phrases of passages that can be cited.

    Args:
        passages: Numbered from 1 in this order.
        source: How to find the phrases of a document.
        tokenizer: The LM's.
        encode_marker: Make the passage's marker the end of each phrase's key.

    Yields:
        Phrases whose sources are spans of the passages' documents. Left out are those that a
        passage does not have letter by letter, because the tokenizer or the source changed them,
        and those with square brackets, which could be taken for markers.
    """
    for number, passage in enumerate(passages, 1):
        if not passage.text.strip():
            continue
        for phrase in source(Document(passage.text, passage.document), tokenizer):
            text = phrase.text.strip()
            moved = [
                replace(span, start=span.start + passage.start, end=span.end + passage.start)
                for span in phrase.sources
            ]
            sources = tuple(span for span in moved if _has(passage, span, text))
            if sources and not {"[", "]"} & set(text):
                citable = replace(phrase, sources=sources)
                yield _marked(citable, number, tokenizer) if encode_marker else citable


def cited_text(
    generation: Generation, passages: Sequence[Chunk], style: Style, cite: Cite
) -> CitedText:
    """Turn a generation into text with citations.

    Args:
        generation: What the LM wrote with the passages' phrases.
        passages: Numbered from 1 in this order.
        style: Where markers are shown.
        cite: "best" cites the first passage that has a phrase, "all" each one.

    Returns:
        The text without the markers that the LM typed; these are shown where the style puts them.
    """
    check_choices(style, cite)
    text, copies, typed = _without_markers(generation, len(passages))
    sentences = [_Sentence.of(text, *span) for span in split_sentences(text)]
    if style == "sentence":
        copies = [part for copy in copies for part in copy.parts(sentences, text)]
    citations = tuple(
        citation for copy in copies for citation in _citations(copy, text, passages, cite)
    )
    marks: Iterable[Mark] = ()
    if style == "inline":
        marks = _inline_marks(citations, typed)
    elif style == "sentence":
        marks = _sentence_marks(citations, typed, sentences)
    return CitedText(text, citations, typed, tuple(marks))


def check_choices(style: str, cite: str) -> None:
    """Refuse a style or a choice of passages that does not exist."""
    for name, value, kind in (("style", style, Style), ("cite", cite, Cite)):
        if not isinstance(value, str) or value not in get_args(kind):
            raise OptionError(f"{name} is {shown(value)}. {did_you_mean(value, get_args(kind))}")


class _Sentence(NamedTuple):
    start: int
    tail: int
    """Where its final punctuation begins."""

    @classmethod
    def of(cls, text: str, start: int, end: int) -> Self:
        final = _FINAL.search(text, start, end)
        words = text[start : final.start() if final else end].rstrip()
        return cls(start, start + len(words)) if words else cls(start, end)


class _Copy(NamedTuple):
    """A phrase in a text."""

    start: int
    end: int
    sources: tuple[Span, ...]

    def parts(self, sentences: Sequence[_Sentence], text: str) -> Iterator[Self]:
        """Yield what each sentence has of it, without final punctuation: markers go there."""
        for sentence in sentences:
            start, end = max(self.start, sentence.start), min(self.end, sentence.tail)
            if any(character.isalnum() for character in text[start:end]):
                ahead = start - self.start
                sources = tuple(
                    replace(span, start=span.start + ahead, end=span.start + ahead + end - start)
                    for span in self.sources
                )
                yield self._replace(start=start, end=end, sources=sources)


def _has(passage: Chunk, span: Span, text: str) -> bool:
    """Tell whether a passage has a text at a span of its document, as the decoder writes it."""
    is_inside = passage.start <= span.start < span.end <= passage.end
    source = passage.text[span.start - passage.start : span.end - passage.start]
    if span.document != passage.document or not is_inside or len(source) != len(text):
        return False
    # A line that an editor wrapped goes on after a space.
    return all(a == b or (a, b) == ("\n", " ") for a, b in zip(source, text, strict=True))


def _marked(phrase: Phrase, number: int, tokenizer: Tokenizer) -> Phrase:
    # Behind a line break, so that nothing is put before the bracket or merged with it.
    anchor = "\n"
    marker = f"[{number}]"
    ids = tokenizer.encode(anchor + marker).ids[len(tokenizer.encode(anchor).ids) :]
    key, text = (*phrase.ids, *ids), phrase.text + marker
    if tokenizer.decode(key) != text:
        return phrase
    return MarkedPhrase(key, text, phrase.sources, phrase.weight, bare=len(phrase.text))


def _without_markers(
    generation: Generation, passages: int
) -> tuple[str, list[_Copy], tuple[Typed, ...]]:
    """Take typed markers and surrounding space out of a text, and find its phrases."""
    raw, copies = generation.text, _copies(generation)
    gaps = [
        match
        for match in _TYPED.finditer(raw)
        if all(match.end() <= copy.start or copy.end <= match.start() for copy in copies)
    ]
    cuts = [0, *(edge for gap in gaps for edge in gap.span()), len(raw)]
    whole = "".join(raw[a:b] for a, b in zip(cuts[::2], cuts[1::2], strict=True))
    lead, text = len(whole) - len(whole.lstrip()), whole.strip()

    def moved(position: int) -> int:
        gone = sum(gap.end() - gap.start() for gap in gaps if gap.end() <= position)
        return min(max(position - gone - lead, 0), len(text))

    copies = [copy._replace(start=moved(copy.start), end=moved(copy.end)) for copy in copies]
    typed = tuple(
        Typed(int(number), moved(gap.end()))
        for gap in gaps
        for number in re.findall(r"\d+", gap[1] or "")
        if 1 <= int(number) <= passages
    )
    return text, copies, typed


def _copies(generation: Generation) -> list[_Copy]:
    copies, at = [], 0
    for piece in generation.pieces:
        if piece.phrase is not None and piece.sources:
            length = piece.sources[0].end - piece.sources[0].start
            visible = piece.phrase.text.strip()[:length]
            # Not always at the piece's begin: what was held back of a character comes first.
            reach = at + len(piece.text) + length
            start = generation.text.find(visible, at, reach)
            if start >= 0:
                copies.append(_Copy(start, start + length, piece.sources))
        at += len(piece.text)
    return copies


def _citations(copy: _Copy, text: str, passages: Sequence[Chunk], cite: Cite) -> Iterator[Citation]:
    copied = text[copy.start : copy.end]
    for number, passage in enumerate(passages, 1):
        span = next((span for span in copy.sources if _has(passage, span, copied)), None)
        if span:
            span_and_copy = (span.start, span.end, copy.start, copy.end)
            yield Citation(number, passage, *span_and_copy, answer=text)
            if cite == "best":
                return


def _inline_marks(citations: Sequence[Citation], typed: Sequence[Typed]) -> Iterator[Mark]:
    numbers: dict[int, list[int]] = {}
    for citation in citations:
        numbers.setdefault(citation.answer_end, []).append(citation.marker)
    for marker, at in typed:
        numbers.setdefault(at, []).append(marker)
    for at in sorted(numbers):
        yield Mark(at, tuple(dict.fromkeys(numbers[at])))


def _sentence_marks(
    citations: Sequence[Citation], typed: Sequence[Typed], sentences: Sequence[_Sentence]
) -> Iterator[Mark]:
    uses = [(citation.answer_start, citation.marker) for citation in citations]
    # A typed marker belongs to what it stands behind.
    uses += [(max(at - 1, 0), marker) for marker, at in typed]
    uses.sort(key=lambda use: use[0])
    limits = [*(sentence.start for sentence in sentences[1:]), None]
    for sentence, limit in zip(sentences, limits, strict=False):
        markers = [m for at, m in uses if at >= sentence.start and (limit is None or at < limit)]
        if markers:
            yield Mark(sentence.tail, tuple(dict.fromkeys(markers))[:_PER_SENTENCE], space=" ")
