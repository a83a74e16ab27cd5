"""Citations that anybody can check: what of a text stands in which passage, word for word.

A citation cannot exist unless the passage has, at the span it names, the very text that the
answer has: its constructor compares them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Literal, NamedTuple, get_args

from univerb.applications.citable_phrases import passage_has
from univerb.applications.copy_runs import CopiedPassages, CopyPlace, CopyRun
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError, PhraseError, did_you_mean, shown
from univerb.phrase import Span

Style = Literal["inline", "sentence", "none"]
"""Markers after each copied stretch, at the end of each sentence, or nowhere."""
Cite = Literal["best", "all"]
"""Which of the passages that have a stretch are cited."""
Support = Literal["quoted", "supported", "partly", "unsupported"]
"""What the passages have of a sentence: its words, what it says, a part of it, or nothing."""


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
        if self.marker < 1 or not is_inside or not passage_has(self.passage, span, copy):
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


class Sentence(NamedTuple):
    """A sentence of an answer, and what supports it."""

    start: int
    tail: int
    """Where its final punctuation begins; its marker stands here."""
    end: int
    support: Support | None = None
    """None if nobody judged it."""
    markers: tuple[int, ...] = ()
    """The passages that support it."""


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
    """In the order of the text; none reaches over the end of a sentence."""
    sentences: tuple[Sentence, ...] = ()
    typed: tuple[Typed, ...] = ()
    marks: tuple[Mark, ...] = ()

    def runs(self) -> Iterator[Run]:
        """Yield the text with its markers, stretch by stretch."""
        stretches: dict[tuple[int, int], list[Citation]] = {}
        for citation in self.citations:
            where = citation.answer_start, citation.answer_end
            stretches.setdefault(where, []).append(citation)
        marks, at = list(self.marks), 0
        for (start, end), citations in stretches.items():
            yield from self._between(at, start, marks)
            yield Run(self.text[start:end], tuple(citations))
            at = end
        yield from self._between(at, len(self.text), marks)

    def _between(self, start: int, end: int, marks: list[Mark]) -> Iterator[Run]:
        while marks and marks[0].at <= end:
            mark = marks.pop(0)
            # One inside a cited stretch stands behind it.
            at = max(start, mark.at)
            yield Run(self.text[start:at] + mark.space)
            yield from (Run(f"[{marker}]", marker=marker) for marker in mark.markers)
            start = at
        yield Run(self.text[start:end])

    def __str__(self) -> str:
        return "".join(run.text for run in self.runs())

    def is_shown(self, citation: Citation) -> bool:
        """Tell whether the marker of a citation is shown on its sentence."""
        at = citation.answer_start
        spans = [(s.start, s.end) for s in self.sentences if s.start <= at < s.end]
        start, end = spans[0] if spans else (0, len(self.text))
        return any(
            start < mark.at <= end and citation.marker in mark.markers for mark in self.marks
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the citations as JSON can hold them, their ranges in the text with markers."""
        citations, at = [], 0
        for run in self.runs():
            for citation in run.citations:
                names = ("marker", "document", "start", "end", "text")
                span = {"answer_start": at, "answer_end": at + len(run.text)}
                shown = {"shown": self.is_shown(citation)}
                citations.append({name: getattr(citation, name) for name in names} | span | shown)
            at += len(run.text)
        return citations


class Copy(NamedTuple):
    """A phrase that was written, in characters of the text, and where it was found."""

    start: int
    end: int
    sources: tuple[Span, ...]


def find_citations(
    text: str,
    sentences: Sequence[Sentence],
    passages: Sequence[Chunk],
    cite: Cite = "best",
    copies: Sequence[Copy] = (),
) -> tuple[Citation, ...]:
    """Cite what a text has from passages, sentence by sentence.

    Args:
        text: Without markers.
        sentences: Its sentences; no citation reaches over the end of one.
        passages: Numbered from 1 in this order.
        cite: "best" cites one passage for a stretch, "all" each that has it.
        copies: What was written as phrases; of several places those that they name are meant.

    Returns:
        The citations, in the order of the text.
    """
    copied = CopiedPassages(passages)
    runs = [
        CopyRun(sentence.start + run.start, sentence.start + run.end, run.places)
        for sentence in sentences
        for run in copied.runs(text[sentence.start : sentence.tail])
    ]
    places = _every_place if cite == "all" else _meant_places(runs, passages, copies)
    return tuple(
        Citation(
            place.passage + 1,
            passages[place.passage],
            place.start,
            place.end,
            run.start,
            run.end,
            answer=text,
        )
        for run in runs
        for place in places(run)
    )


def _every_place(run: CopyRun) -> list[CopyPlace]:
    """Return the first place in each passage."""
    return list({place.passage: place for place in reversed(run.places)}.values())[::-1]


def _meant_places(
    runs: Sequence[CopyRun], passages: Sequence[Chunk], copies: Sequence[Copy]
) -> Callable[[CopyRun], list[CopyPlace]]:
    """Decide which place each run was copied from, long ones first: they stand in one place.

    Phrases know their places; what they leave open goes to the passage that is being copied
    nearby, and only then to the better ranked one.
    """
    chosen: dict[CopyRun, CopyPlace] = {}

    def preference(run: CopyRun, place: CopyPlace) -> tuple[int, int, int, int]:
        document = passages[place.passage].document
        meant = sum(
            any(
                s.document == document and place.start <= s.start and s.end <= place.end
                for s in copy.sources
            )
            for copy in copies
            if run.start < copy.end and copy.start < run.end
        )
        distance = min(
            (abs(run.start - r.start) for r, p in chosen.items() if p.passage == place.passage),
            default=1 << 30,
        )
        return -meant, distance, place.passage, place.start

    for run in sorted(runs, key=lambda run: (run.start - run.end, run.start)):
        chosen[run] = min(run.places, key=lambda place: preference(run, place))
    return lambda run: [chosen[run]]


def check_choices(style: str, cite: str) -> None:
    """Refuse a style or a choice of passages that does not exist."""
    for name, value, kind in (("style", style, Style), ("cite", cite, Cite)):
        if not isinstance(value, str) or value not in get_args(kind):
            raise OptionError(f"{name} is {shown(value)}. {did_you_mean(value, get_args(kind))}")
