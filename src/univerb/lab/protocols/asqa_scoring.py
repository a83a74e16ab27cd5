"""Scores of answers to ASQA: citations, short answers, ROUGE-L (docs/method.md, Metrics).

The first line of an answer is scored. Markers count for citations only.
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
from univerb.lab.protocols.asqa_answers import AnswerSystem, AsqaAnswer, Progress
from univerb.lab.protocols.asqa_questions import AsqaQuestion

LEVEL = 0.9
"""Of confidence intervals."""
_MARKER = re.compile(r"\[\d+\]?")
_LEADING = re.compile(r"(?:\[\d+\][\s.,;]*)+")


class AnswerReader(Protocol):
    """Finds short answers in a text."""

    name: str

    def answers(self, questions: Sequence[tuple[str, str]]) -> list[str]:
        """Return the answer to each question in its text; empty if there is none."""
        ...


class Judges(NamedTuple):
    """The models that score answers, and what splits them into sentences."""

    entails: Entails
    split: Splitter
    reader: AnswerReader | None = None


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """The scores of one answer, from 0 to 1."""

    citations: CitationScore | None
    """None for an empty answer, as ALCE leaves it out."""
    cited: float | None
    """The share of sentences with a marker."""
    str_em: AnswerScore
    qa: AnswerScore | None
    """QA-EM and QA-F1; None without a reader."""
    rouge: float
    words: int
    phrase_share: float


_VALUES: dict[str, Callable[[AnswerScores], float | None]] = {
    "Citation_rec": lambda score: 100.0 * score.citations.recall if score.citations else None,
    "Citation_prec": lambda score: 100.0 * score.citations.precision if score.citations else None,
    "QA-EM": lambda score: 100.0 * score.qa.em if score.qa else None,
    "QA-F1": lambda score: 100.0 * (score.qa.f1 or 0.0) if score.qa else None,
    "Rouge-L": lambda score: 100.0 * score.rouge,
    "str-EM": lambda score: 100.0 * score.str_em.em,
    "Words": lambda score: float(score.words),
    "Cited sentences": lambda score: None if score.cited is None else 100.0 * score.cited,
    "Phrase share": lambda score: 100.0 * score.phrase_share,
}
MEASURES = tuple(_VALUES)
"""By name; all but Words in percent."""


@dataclass(frozen=True, slots=True)
class SystemScores:
    """The scores of one system's answers, in the order of the questions."""

    system: AnswerSystem
    answers: tuple[AnswerScores, ...]

    @property
    def empty(self) -> int:
        """Number of answers without a sentence."""
        return sum(answer.citations is None for answer in self.answers)

    def values(self, measure: str) -> list[float | None]:
        """Return a measure of each answer; None where an answer has none."""
        return [_VALUES[measure](answer) for answer in self.answers]

    def means(self, seed: int = 0) -> dict[str, float]:
        """Return the means by measure, over the answers that have it.

        ROUGE-L is the median of bootstrap means, as rouge-score gives it; the seed is theirs.
        """
        known = {name: [v for v in self.values(name) if v is not None] for name in MEASURES}
        means = {name: statistics.fmean(values) for name, values in known.items() if values}
        if self.answers:
            means["Rouge-L"] = mean_rouge([answer.rouge for answer in self.answers], seed)
        return means


def score_answer(
    question: AsqaQuestion, text: str, phrase_share: float, judges: Judges
) -> AnswerScores:
    """Score an answer.

    Args:
        question: With its documents and references.
        text: The whole output, with markers.
        phrase_share: The share of it that was generated as phrases.
        judges: The models that score.

    Returns:
        The scores.
    """
    line = answer_line(text)
    plain = without_citations(line)
    sentences = _cited_sentences(line, judges.split)
    documents = [passage_text(each.title, each.text) for each in question.documents]
    short_answers = [each.answers for each in question.sub_questions]
    qa = None
    if judges.reader is not None:
        # As ALCE: a reader cannot read an empty text.
        asked = [(each.question, plain or " ") for each in question.sub_questions]
        qa = reader_match(judges.reader.answers(asked), short_answers)
    is_cited = [bool(_MARKER.search(sentence)) for sentence in sentences]
    references = [_sentences(each.text, judges.split) for each in question.long_answers]
    return AnswerScores(
        citations=citation_score(sentences, documents, judges.entails),
        cited=statistics.fmean(is_cited) if is_cited else None,
        str_em=string_match(plain, short_answers),
        qa=qa,
        rouge=rouge_l(_sentences(plain, judges.split), references),
        words=len(plain.split()),
        phrase_share=phrase_share,
    )


def score_all(
    questions: Sequence[AsqaQuestion],
    answers: Mapping[str, Sequence[AsqaAnswer]],
    systems: Sequence[AnswerSystem],
    judges: Judges,
    progress: Progress | None = None,
) -> list[SystemScores]:
    """Score the answers of systems; a pair of premise and claim is judged once.

    Args:
        questions: The questions.
        answers: By name of system, in the order of the questions.
        systems: The systems to score.
        judges: The models that score.
        progress: Called with the number of answers that are scored, and of all.

    Returns:
        The scores of each system.
    """
    judges = judges._replace(entails=cache(judges.entails))
    done, scores = 0, []
    for system in systems:
        of_system = []
        for question, answer in zip(questions, answers[system.name], strict=True):
            text = answer.texts[system.markers]
            of_system.append(score_answer(question, text, answer.phrase_share, judges))
            done += 1
            if progress:
                progress(done, len(questions) * len(systems))
        scores.append(SystemScores(system, tuple(of_system)))
    return scores


class Interval(NamedTuple):
    """A value, and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def difference(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Compare the means of two systems over the same questions, by a paired bootstrap.

    Args:
        ours: A measure of each answer; None counts for no mean.
        theirs: The other system's, for the same questions.
        resamples: Number of bootstrap samples.
        seed: Of the sampling.

    Returns:
        Our mean minus theirs, with a 90 % interval.

    Raises:
        OptionError: If the two are not of the same questions, or one has no value at all.
    """
    both = numpy.array([ours, theirs], dtype=float) if len(ours) == len(theirs) else None
    if both is None or numpy.isnan(both).all(axis=1).any():
        raise OptionError(
            f"{len(ours)} and {len(theirs)} answers cannot be compared in pairs. Give values of "
            "the same questions, at least one on each side."
        )
    draws = numpy.random.default_rng(seed).integers(len(ours), size=(resamples, len(ours)))
    tail = 50.0 * (1.0 - LEVEL)
    # A draw can miss every question that a system has a value for.
    low, high = numpy.nanpercentile(_mean_gaps(both[:, draws]), [tail, 100.0 - tail])
    return Interval(float(_mean_gaps(both)), float(low), float(high))


def _mean_gaps(both: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return the difference of the means over the last axis; NaN where a side has no value."""
    counts = (~numpy.isnan(both)).sum(axis=-1)
    sums = numpy.nansum(both, axis=-1)
    means = numpy.divide(sums, counts, out=numpy.full_like(sums, numpy.nan), where=counts > 0)
    gaps: NDArray[numpy.float64] = means[0] - means[1]
    return gaps


def _sentences(text: str, split: Splitter) -> list[str]:
    stripped = (text[start:end].strip() for start, end in split(text))
    return [sentence for sentence in stripped if sentence]


def _cited_sentences(text: str, split: Splitter) -> list[str]:
    """Return sentences with their markers: one behind a full stop belongs to what it ends."""
    sentences: list[str] = []
    for sentence in _sentences(text, split):
        lead = _LEADING.match(sentence)
        if sentences and lead:
            sentences[-1] += "".join(_MARKER.findall(lead.group()))
            sentence = sentence[lead.end() :]
        if sentence:
            sentences.append(sentence)
    return sentences
