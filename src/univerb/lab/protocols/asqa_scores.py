"""Scores of answers to ASQA: citations, short answers, ROUGE-L (METHOD C.8, C.9).

What is judged is an answer's first line. Markers count for citations only.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from univerb.documents.sentences import Splitter
from univerb.errors import OptionError
from univerb.lab.metrics.answers import AnswerScore, reader_match, string_match
from univerb.lab.metrics.citations import (
    CitationScore,
    Entails,
    answer_line,
    citation_score,
    passage_text,
    without_citations,
)
from univerb.lab.metrics.rouge import mean_rouge, rouge_l
from univerb.lab.protocols.asqa import Item, Reply, System

_MARKER = re.compile(r"\[\d+\]?")
_LEADING = re.compile(r"(?:\[\d+\][\s.,;]*)+")


class Reader(Protocol):
    """Finds short answers in a text."""

    def __call__(self, questions: Sequence[str], context: str) -> list[str]:
        """Return what the text answers to each question; nothing where it has no answer."""
        ...


class Judges(NamedTuple):
    """Who decides what models have to decide, and what finds sentences."""

    entails: Entails
    split: Splitter
    reader: Reader | None = None

    def remembering(self) -> "Judges":
        """Return the same judges, whom a pair is shown only once."""
        return self._replace(entails=cache(self.entails))


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """What one answer is worth; shares are from 0 to 1."""

    citations: CitationScore | None
    """None for an empty answer, as ALCE leaves it out."""
    cited: float | None
    """The share of sentences with a marker."""
    found: AnswerScore
    """str-EM."""
    read: AnswerScore | None
    """QA-EM and QA-F1; None without a reader."""
    rouge: float
    words: int
    phrase_share: float


_VALUES: dict[str, Callable[[AnswerScores], float | None]] = {
    "Citation_rec": lambda own: 100.0 * own.citations.recall if own.citations else None,
    "Citation_prec": lambda own: 100.0 * own.citations.precision if own.citations else None,
    "QA-EM": lambda own: 100.0 * own.read.em if own.read else None,
    "QA-F1": lambda own: 100.0 * (own.read.f1 or 0.0) if own.read else None,
    "Rouge-L": lambda own: 100.0 * own.rouge,
    "str-EM": lambda own: 100.0 * own.found.em,
    "Words": lambda own: float(own.words),
    "Cited sentences": lambda own: None if own.cited is None else 100.0 * own.cited,
    "Phrase share": lambda own: 100.0 * own.phrase_share,
}
MEASURES = tuple(_VALUES)
"""By name; all but Words in percent."""


@dataclass(frozen=True, slots=True)
class SystemScores:
    """The answers of one system, in the order of the questions."""

    system: System
    each: tuple[AnswerScores, ...]

    @property
    def empty(self) -> int:
        """How many answers have no sentence."""
        return sum(own.citations is None for own in self.each)

    def values(self, measure: str) -> list[float | None]:
        """Return a measure of each answer; None where an answer has none."""
        return [_VALUES[measure](own) for own in self.each]

    def means(self, seed: int = 0) -> dict[str, float]:
        """Average the answers that have a measure.

        Args:
            seed: Of the draws whose middle ROUGE-L is, as rouge-score gives it.

        Returns:
            The means by measure, without those that no answer has.
        """
        known = {name: [v for v in self.values(name) if v is not None] for name in MEASURES}
        means = {name: statistics.fmean(values) for name, values in known.items() if values}
        if self.each:
            means["Rouge-L"] = mean_rouge([own.rouge for own in self.each], seed)
        return means


def score_answer(item: Item, text: str, phrase_share: float, judges: Judges) -> AnswerScores:
    """Judge an answer.

    Args:
        item: The question.
        text: The whole output, with markers.
        phrase_share: How much of it was written as phrases.
        judges: Who decides.

    Returns:
        The scores.
    """
    line = answer_line(text)
    plain = without_citations(line)
    sentences = _cited_sentences(line, judges.split)
    passages = [passage_text(*own) for own in item.passages]
    answers = [own.answers for own in item.pairs]
    read = None
    if judges.reader is not None:
        # As ALCE: a reader cannot be shown nothing.
        predictions = judges.reader([own.question for own in item.pairs], plain or " ")
        read = reader_match(predictions, answers)
    is_cited = [bool(_MARKER.search(sentence)) for sentence in sentences]
    return AnswerScores(
        citations=citation_score(sentences, passages, judges.entails),
        cited=statistics.fmean(is_cited) if is_cited else None,
        found=string_match(plain, answers),
        read=read,
        rouge=rouge_l(
            _sentences(plain, judges.split),
            [_sentences(own, judges.split) for own in item.long_answers],
        ),
        words=len(plain.split()),
        phrase_share=phrase_share,
    )


def score_all(
    items: Sequence[Item],
    replies: Mapping[str, Sequence[Reply]],
    systems: Sequence[System],
    judges: Judges,
    progress: Callable[[int, int], object] | None = None,
) -> list[SystemScores]:
    """Judge the answers of systems; a pair of premise and claim is judged once.

    Args:
        items: The questions.
        replies: By name of system, in the order of the items.
        systems: Whom to judge.
        judges: Who decides.
        progress: Is told how many answers are judged, of how many.

    Returns:
        The scores of each system.
    """
    wise, done, found = judges.remembering(), 0, []
    for system in systems:
        each = []
        for item, reply in zip(items, replies[system.name], strict=True):
            each.append(score_answer(item, reply.texts[system.markers], reply.phrase_share, wise))
            done += 1
            if progress:
                progress(done, len(items) * len(systems))
        found.append(SystemScores(system, tuple(each)))
    return found


class Interval(NamedTuple):
    """A figure, and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def difference(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    level: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Compare the means of two systems over the same questions, by a paired bootstrap.

    Args:
        ours: A measure of each answer; None counts for no mean.
        theirs: The other system's, for the same questions.
        level: How sure the interval is.
        resamples: How often questions are drawn.
        seed: Of the drawing.

    Returns:
        Our mean minus theirs, with the middle part of the drawn differences.

    Raises:
        OptionError: If the two are not about the same questions, or one has no value at all.
    """
    both = numpy.array([ours, theirs], dtype=float) if len(ours) == len(theirs) else None
    if both is None or numpy.isnan(both).all(axis=1).any():
        raise OptionError(
            f"{len(ours)} and {len(theirs)} answers cannot be compared in pairs. Give values of "
            "the same questions, at least one on each side."
        )
    draws = numpy.random.default_rng(seed).integers(len(ours), size=(resamples, len(ours)))
    tail = 50.0 * (1.0 - level)
    # A draw can miss every question that a system has a value for.
    low, high = numpy.nanpercentile(_gaps(both[:, draws]), [tail, 100.0 - tail])
    return Interval(float(_gaps(both)), float(low), float(high))


def _gaps(both: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return how far apart the means over the last axis are; NaN where a side has no value."""
    counts = (~numpy.isnan(both)).sum(axis=-1)
    sums = numpy.nansum(both, axis=-1)
    means = numpy.divide(sums, counts, out=numpy.full_like(sums, numpy.nan), where=counts > 0)
    gaps: NDArray[numpy.float64] = means[0] - means[1]
    return gaps


def _sentences(text: str, split: Splitter) -> list[str]:
    found = (text[start:end].strip() for start, end in split(text))
    return [sentence for sentence in found if sentence]


def _cited_sentences(text: str, split: Splitter) -> list[str]:
    """Return sentences with their markers: one behind a full stop belongs to what it ends."""
    found: list[str] = []
    for sentence in _sentences(text, split):
        lead = _LEADING.match(sentence)
        if found and lead:
            found[-1] += "".join(_MARKER.findall(lead.group()))
            sentence = sentence[lead.end() :]
        if sentence:
            found.append(sentence)
    return found
