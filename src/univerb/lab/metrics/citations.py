"""Citation recall and precision as ALCE computes them (METHOD C.8).

Whether a passage supports a claim is for an entailment model to say, which is given as a function:
a report names it, with its accuracy.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Entails = Callable[[str, str], bool]
"""Tells whether a premise (the passages) supports a claim."""
AT_MOST = 3
"""Citations of a sentence that count."""
_CITATION = re.compile(r" ?\[(\d+)")


def answer_line(output: str) -> str:
    """Return what of an output is judged: its first line, without an end marker of the chat."""
    return output.strip().split("\n")[0].replace("<|im_end|>", "")


def without_citations(text: str) -> str:
    """Return a text without markers such as [1], and without any other closing bracket."""
    return _CITATION.sub("", text).replace(" |", "").replace("]", "")


def passage_text(title: str, text: str) -> str:
    """Return a passage as the entailment model reads it."""
    return f"Title: {title}\n{text}"


@dataclass(frozen=True, slots=True)
class CitationScore:
    """How well the sentences of one answer are supported, from 0 to 1."""

    recall: float
    """The share of sentences that their citations support."""
    precision: float
    """The share of citations that are needed; 0 if there are none."""
    sentences: int
    citations: int


class _Verdict(NamedTuple):
    supported: bool = False
    needed: int = 0
    citations: int = 0


def citation_score(
    sentences: Sequence[str], passages: Sequence[str], entails: Entails, at_most: int = AT_MOST
) -> CitationScore | None:
    """Judge an answer.

    Args:
        sentences: Those of `answer_line`, with their markers; numbers begin with 1.
        passages: What the markers point to, as `passage_text` writes it.
        entails: The entailment model.
        at_most: Citations of a sentence that count.

    Returns:
        The score; None for an answer without a sentence.
    """
    if not sentences:
        return None
    each = [_verdict(sentence, passages, entails, at_most) for sentence in sentences]
    citations = sum(own.citations for own in each)
    needed = sum(own.needed for own in each)
    return CitationScore(
        recall=sum(own.supported for own in each) / len(each),
        precision=needed / citations if citations else 0.0,
        sentences=len(each),
        citations=citations,
    )


def _verdict(sentence: str, passages: Sequence[str], entails: Entails, at_most: int) -> _Verdict:
    cited = [int(number) - 1 for number in _CITATION.findall(sentence)]
    # One number that points nowhere discredits the sentence, and its citations do not count.
    if not cited or not all(0 <= own < len(passages) for own in cited):
        return _Verdict()
    cited = cited[:at_most]
    claim = without_citations(sentence).strip()

    def is_enough(chosen: Sequence[int]) -> bool:
        return entails("\n".join(passages[own] for own in chosen), claim)

    if not is_enough(cited):
        return _Verdict(citations=len(cited))
    if len(cited) == 1:
        return _Verdict(True, 1, 1)
    needed = sum(is_enough([own]) or not is_enough(_without(cited, own)) for own in cited)
    return _Verdict(True, needed, len(cited))


def _without(cited: Sequence[int], own: int) -> list[int]:
    rest = list(cited)
    rest.remove(own)
    return rest


@dataclass(frozen=True, slots=True)
class Citations:
    """Means over answers, in percent."""

    recall: float
    precision: float
    answers: int
    empty: int
    """Answers without a sentence: ALCE leaves them out of the means."""


def mean_citations(each: Sequence[CitationScore | None]) -> Citations:
    """Average what `citation_score` found in each answer; zeros if there is none."""
    judged = [own for own in each if own is not None]
    return Citations(
        recall=100.0 * statistics.fmean(own.recall for own in judged) if judged else 0.0,
        precision=100.0 * statistics.fmean(own.precision for own in judged) if judged else 0.0,
        answers=len(each),
        empty=len(each) - len(judged),
    )
