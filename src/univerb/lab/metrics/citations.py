"""Citation recall and precision as ALCE computes them (docs/method.md, Metrics: citations).

An entailment model, passed as a function, decides whether a passage supports a claim: a report
names it, with its accuracy.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Entails = Callable[[tuple[str, ...], str], bool]
"""Tells whether passages support a claim, together."""
MAX_CITATIONS = 3
"""Citations of a sentence that count."""
_CITATION = re.compile(r" ?\[(\d+)")


def answer_line(output: str) -> str:
    """Return the part of an output that is scored: its first line, without a chat's end marker."""
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
    citations: int


class _SentenceScore(NamedTuple):
    supported: bool = False
    needed: int = 0
    citations: int = 0


def citation_score(
    sentences: Sequence[str], passages: Sequence[str], entails: Entails
) -> CitationScore | None:
    """Score an answer; None for one without a sentence, which ALCE leaves out of means.

    Sentences are those of `answer_line`, with their markers, whose numbers begin with 1 and point
    to passages as `passage_text` writes them.
    """
    if not sentences:
        return None
    scores = [_sentence_score(sentence, passages, entails) for sentence in sentences]
    citations = sum(score.citations for score in scores)
    needed = sum(score.needed for score in scores)
    return CitationScore(
        recall=sum(score.supported for score in scores) / len(scores),
        precision=needed / citations if citations else 0.0,
        citations=citations,
    )


def _sentence_score(sentence: str, passages: Sequence[str], entails: Entails) -> _SentenceScore:
    cited = [int(number) - 1 for number in _CITATION.findall(sentence)]
    # A number out of range discredits the sentence, and its citations do not count.
    if not cited or not all(0 <= index < len(passages) for index in cited):
        return _SentenceScore()
    cited = cited[:MAX_CITATIONS]
    claim = without_citations(sentence).strip()

    def supports(indices: Sequence[int]) -> bool:
        return entails(tuple(passages[index] for index in indices), claim)

    if not supports(cited):
        return _SentenceScore(citations=len(cited))
    if len(cited) == 1:
        return _SentenceScore(True, 1, 1)
    needed = 0
    for index in cited:
        others = list(cited)
        others.remove(index)
        needed += supports([index]) or not supports(others)
    return _SentenceScore(True, needed, len(cited))
