"""Scores of answers to ASQA: citations, short answers, ROUGE-L (docs/method.md).

The first line of an answer is scored. Markers count for citations only.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from univerb.documents.sentences import Splitter
from univerb.lab.judging.reader import Reader
from univerb.lab.metrics.answers import reader_match, string_match
from univerb.lab.metrics.citations import (
    Entails,
    answer_line,
    citation_score,
    passage_text,
    without_citations,
)
from univerb.lab.metrics.rouge import mean_rouge, rouge_l
from univerb.lab.protocols.asqa_answers import AnswerSystem, AsqaAnswer, Progress
from univerb.lab.protocols.asqa_questions import AsqaQuestion

_MARKER = re.compile(r"\[\d+\]?")
_LEADING = re.compile(r"(?:\[\d+\][\s.,;]*)+")


class Judges(NamedTuple):
    """The models that score answers, and what splits them into sentences."""

    entails: Entails
    split: Splitter
    reader: Reader | None = None


Scores = dict[str, float]
"""The measures that an answer has, by name; all but Words in percent.

An empty answer has no citation scores, as ALCE leaves it out; without a reader there is no QA.
"""


@dataclass(frozen=True, slots=True)
class SystemScores:
    """The scores of one system's answers, in the order of the questions."""

    system: AnswerSystem
    answers: tuple[Scores, ...]

    @property
    def empty(self) -> int:
        """Number of answers without a sentence."""
        return sum("Citation_rec" not in answer for answer in self.answers)

    def values(self, measure: str) -> list[float | None]:
        """Return a measure of each answer; None where an answer has none."""
        return [answer.get(measure) for answer in self.answers]

    def means(self, seed: int = 0) -> Scores:
        """Return the means over the answers that have a measure.

        ROUGE-L is the median of bootstrap means, as rouge-score gives it; the seed is theirs.
        """
        names = dict.fromkeys(name for answer in self.answers for name in answer)
        known = {name: [v for v in self.values(name) if v is not None] for name in names}
        means = {name: statistics.fmean(values) for name, values in known.items()}
        means["Rouge-L"] = mean_rouge([value / 100.0 for value in known["Rouge-L"]], seed)
        return means


def leading_sentences(question: AsqaQuestion, split: Splitter) -> str:
    """Return the first sentences of documents 1 and 2, each cited: a control that needs no LM."""
    firsts = (_sentences(each.text, split)[:1] for each in question.documents[:2])
    return " ".join(
        f"{' '.join(sentence.split()).rstrip('.')} [{number}]."
        for number, found in enumerate(firsts, 1)
        for sentence in found
    )


def score_answer(question: AsqaQuestion, text: str, phrase_share: float, judges: Judges) -> Scores:
    """Score the whole output of a system, with its markers."""
    line = answer_line(text)
    plain = without_citations(line)
    sentences = _cited_sentences(line, judges.split)
    documents = [passage_text(each.title, each.text) for each in question.documents]
    references = [_sentences(each.text, judges.split) for each in question.long_answers]
    right = [each.answers for each in question.sub_questions]
    scores = {
        "Rouge-L": 100.0 * rouge_l(_sentences(plain, judges.split), references),
        "str-EM": 100.0 * string_match(plain, right),
        "Words": float(len(plain.split())),
        "Phrase share": 100.0 * phrase_share,
    }
    if citations := citation_score(sentences, documents, judges.entails):
        scores["Citation_rec"] = 100.0 * citations.recall
        scores["Citation_prec"] = 100.0 * citations.precision
        cited = [bool(_MARKER.search(sentence)) for sentence in sentences]
        scores["Cited sentences"] = 100.0 * statistics.fmean(cited)
    if judges.reader:
        # As ALCE: a reader cannot read an empty text.
        asked = [(each.question, plain or " ") for each in question.sub_questions]
        match = reader_match(judges.reader.answers(asked), right)
        scores |= {"QA-EM": 100.0 * match.em, "QA-F1": 100.0 * match.f1}
    return scores


def score_all(
    questions: Sequence[AsqaQuestion],
    answers: Mapping[str, Sequence[AsqaAnswer]],
    systems: Sequence[AnswerSystem],
    judges: Judges,
    progress: Progress | None = None,
) -> list[SystemScores]:
    """Score the answers (by name of system); a pair of premise and claim is judged once."""
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
