"""Whether a text gives the right answers, as ALCE computes it (METHOD C.9).

Texts come without citations (`citations.without_citations`). str-EM looks for the short answers in
the text itself. QA-EM and QA-F1 are about what a reader model found there for each sub-question: a
report names the reader.
"""

import re
import statistics
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and needless space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Tell whether a prediction is one of the answers."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return how far a prediction's words are those of an answer: the best over answers."""
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    ours, theirs = normalise(prediction).split(), normalise(answer).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2.0 * shared / (len(ours) + len(theirs))


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The sub-questions of one item, or means over items; from 0 to 1."""

    em: float
    f1: float | None
    """None where answers are only looked for."""
    hit: float
    """The share of items with every answer right."""


def string_match(text: str, pairs: Sequence[Sequence[str]]) -> AnswerScore:
    """Look for short answers in a text (str-EM).

    Args:
        text: Without citations.
        pairs: For each sub-question its answers; one of them is enough.

    Returns:
        The share of sub-questions whose answer is somewhere in the text, even inside a word.
    """
    own = normalise(text)
    return _score([any(normalise(answer) in own for answer in answers) for answers in pairs])


def reader_match(predictions: Sequence[str], pairs: Sequence[Sequence[str]]) -> AnswerScore:
    """Judge what a reader found in a text (QA-EM, QA-F1, QA-Hit).

    Args:
        predictions: The reader's answer to each sub-question.
        pairs: For each the answers that are right.

    Returns:
        The means over sub-questions.
    """
    both = list(zip(predictions, pairs, strict=True))
    found = [token_f1(prediction, answers) for prediction, answers in both]
    return _score([exact_match(prediction, answers) for prediction, answers in both], found)


def _score(right: Sequence[bool], f1: Sequence[float] | None = None) -> AnswerScore:
    em = sum(right) / len(right) if right else 0.0
    mean = None if f1 is None else (statistics.fmean(f1) if f1 else 0.0)
    return AnswerScore(em, mean, float(bool(right) and all(right)))


def mean_answers(each: Sequence[AnswerScore]) -> AnswerScore:
    """Average items: each counts once, however many sub-questions it has.

    Args:
        each: All from `string_match`, or all from `reader_match`.

    Returns:
        The means; zeros if there is no item.
    """
    found = [own.f1 for own in each if own.f1 is not None]
    return AnswerScore(
        em=statistics.fmean(own.em for own in each) if each else 0.0,
        f1=statistics.fmean(found) if found else None,
        hit=statistics.fmean(own.hit for own in each) if each else 0.0,
    )
