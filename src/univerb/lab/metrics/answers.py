"""Correctness of answers as ALCE computes it (docs/method.md, Metrics: answers).

Texts come without citations (`citations.without_citations`). str-EM looks for the short answers in
the text itself. QA-EM and QA-F1 compare what a reader model extracts for each sub-question: a
report names the reader.
"""

import re
import statistics
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and needless space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Tell whether a prediction is one of the answers."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the F1 of a prediction's words against an answer's: the best over answers."""
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    predicted, expected = normalise(prediction).split(), normalise(answer).split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2.0 * shared / (len(predicted) + len(expected))


def string_match(text: str, answers: Sequence[Sequence[str]]) -> float:
    """Return the share of sub-questions with an answer in a text, even inside a word (str-EM).

    `answers` are the right ones to each sub-question; one of them is enough.
    """
    searched = normalise(text)
    is_right = [any(normalise(answer) in searched for answer in right) for right in answers]
    return statistics.fmean(is_right) if is_right else 0.0


class ReaderScore(NamedTuple):
    """Means over the sub-questions of one item, from 0 to 1."""

    em: float
    f1: float


def reader_match(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> ReaderScore:
    """Score a reader's answer to each sub-question against the right ones (QA-EM, QA-F1)."""
    pairs = list(zip(predictions, answers, strict=True))
    if not pairs:
        return ReaderScore(0.0, 0.0)
    return ReaderScore(
        em=statistics.fmean(exact_match(*pair) for pair in pairs),
        f1=statistics.fmean(token_f1(*pair) for pair in pairs),
    )
