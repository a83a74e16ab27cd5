"""From what an LM wrote to a text with citations, support and markers."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from univerb.applications.citations import (
    Citation,
    Cite,
    CitedText,
    Copy,
    Mark,
    Sentence,
    Style,
    Typed,
    check_choices,
    find_citations,
)
from univerb.applications.support import supported_sentences
from univerb.decoding.results import Generation
from univerb.documents.chunks import Chunk
from univerb.documents.sentences import split_sentences

if TYPE_CHECKING:
    from univerb.entailment.scorers import Entailment

_PER_SENTENCE = 3
# A marker that the LM typed, or the beginning of one where the text was cut off. Longer numbers in
# brackets, such as years, are text.
_TYPED = re.compile(r"(?<![ \t])[ \t]*(?:\[(\d{1,2}(?:, ?\d{1,2}){0,8})\]|\[[\d, ]{0,9}\Z)")
_FINAL = re.compile(r"[.!?…。！？]+[\"'”’»)]*\Z")


def cited_text(
    generation: Generation,
    passages: Sequence[Chunk],
    style: Style = "sentence",
    cite: Cite = "best",
    *,
    support: bool = True,
    question: str = "",
    judge: "Entailment | None" = None,
    end: int | None = None,
) -> CitedText:
    """Turn a generation into text with citations.

    Args:
        generation: What the LM wrote.
        passages: What it was shown, numbered from 1 in this order.
        style: Where markers are shown.
        cite: "best" cites one passage for what was copied or supported, "all" each that has it.
        support: Judge each sentence, and show markers of passages that support it. Otherwise
            markers say where words were copied from, and what the LM typed is shown.
        question: What the text answers.
        judge: Decides instead of the one that ships.
        end: Take the text up to here only.

    Returns:
        The text without the markers that the LM typed; these are shown where the style puts them.
    """
    check_choices(style, cite)
    text, copies, typed = _without_markers(generation, len(passages), end)
    sentences = split_answer(text)
    citations = find_citations(text, sentences, passages, cite, copies)
    if support:
        named = tuple(
            s._replace(markers=tuple(m for m, at in typed if s.start < at <= s.end))
            for s in sentences
        )
        sentences = supported_sentences(text, named, citations, passages, question, judge, cite)
        marks = supported_marks(citations, sentences, style)
    else:
        marks = _copied_marks(citations, typed, sentences, style)
    return CitedText(text, citations, sentences, typed, marks)


def split_answer(text: str) -> tuple[Sentence, ...]:
    """Split a text into sentences that nobody has judged yet."""
    return tuple(sentence_at(text, *span) for span in split_sentences(text))


def sentence_at(text: str, start: int, end: int) -> Sentence:
    """Return a stretch of a text as a sentence: where its final punctuation begins."""
    final = _FINAL.search(text, start, end)
    words = text[start : final.start() if final else end].rstrip()
    return Sentence(start, start + len(words) if words else end, end)


def supported_marks(
    citations: Sequence[Citation], sentences: Sequence[Sentence], style: Style
) -> tuple[Mark, ...]:
    """Place the markers of sentences that passages support."""
    marks: list[Mark] = []
    for sentence in sentences if style != "none" else ():
        left = list(sentence.markers)
        inside = [c for c in citations if sentence.start <= c.answer_start < sentence.end]
        for citation in inside if style == "inline" else ():
            if citation.marker in sentence.markers:
                marks.append(Mark(citation.answer_end, (citation.marker,)))
                left = [number for number in left if number != citation.marker]
        if left:
            marks.append(Mark(sentence.tail, tuple(left), space=" "))
    return tuple(marks)


def _copied_marks(
    citations: Sequence[Citation],
    typed: Sequence[Typed],
    sentences: Sequence[Sentence],
    style: Style,
) -> tuple[Mark, ...]:
    if style == "none":
        return ()
    if style == "inline":
        return tuple(_inline_marks(citations, typed))
    return tuple(_sentence_marks(citations, typed, sentences))


def _without_markers(
    generation: Generation, passages: int, end: int | None
) -> tuple[str, list[Copy], tuple[Typed, ...]]:
    """Take typed markers and surrounding space out of a text, and find its phrases."""
    raw = generation.text[:end]
    gaps = list(_TYPED.finditer(raw))
    cuts = [0, *(edge for gap in gaps for edge in gap.span()), len(raw)]
    whole = "".join(raw[a:b] for a, b in zip(cuts[::2], cuts[1::2], strict=True))
    lead, text = len(whole) - len(whole.lstrip()), whole.strip()

    def moved(position: int) -> int:
        gone = sum(gap.end() - gap.start() for gap in gaps if gap.end() <= position)
        return min(max(position - gone - lead, 0), len(text))

    copies = [Copy(moved(a), moved(b), sources) for a, b, sources in _copies(generation)]
    typed = tuple(
        Typed(int(number), moved(gap.end()))
        for gap in gaps
        for number in re.findall(r"\d+", gap[1] or "")
        if 1 <= int(number) <= passages
    )
    return text, copies, typed


def _copies(generation: Generation) -> Iterator[Copy]:
    at = 0
    for piece in generation.pieces:
        if piece.sources:
            yield Copy(at, at + len(piece.text), piece.sources)
        at += len(piece.text)


def _inline_marks(citations: Sequence[Citation], typed: Sequence[Typed]) -> Iterator[Mark]:
    numbers: dict[int, list[int]] = {}
    for citation in citations:
        numbers.setdefault(citation.answer_end, []).append(citation.marker)
    for marker, at in typed:
        numbers.setdefault(at, []).append(marker)
    for at in sorted(numbers):
        yield Mark(at, tuple(dict.fromkeys(numbers[at])))


def _sentence_marks(
    citations: Sequence[Citation], typed: Sequence[Typed], sentences: Sequence[Sentence]
) -> Iterable[Mark]:
    uses = [(citation.answer_start, citation.marker) for citation in citations]
    # A typed marker belongs to what it stands behind.
    uses += [(max(at - 1, 0), marker) for marker, at in typed]
    uses.sort(key=lambda use: use[0])
    limits = [*(sentence.start for sentence in sentences[1:]), None]
    for sentence, limit in zip(sentences, limits, strict=False):
        markers = [m for at, m in uses if at >= sentence.start and (limit is None or at < limit)]
        if markers:
            yield Mark(sentence.tail, tuple(dict.fromkeys(markers))[:_PER_SENTENCE], space=" ")
