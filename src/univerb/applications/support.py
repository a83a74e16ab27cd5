"""What the passages have of each sentence of an answer.

A sentence that stands in a passage is quoted. Others are held against the passages by the small
entailment judge that ships with univerb. It sees the topic better than the truth, and small LMs put
passages together wrongly: so a sentence must follow its passage's words in their order, too
(docs/decisions/0041-citations-are-copy-runs.md, where the thresholds come from).
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING

from univerb.applications.citations import Citation, Sentence, Support
from univerb.applications.copy_runs import split_words
from univerb.documents.chunks import Chunk
from univerb.documents.sentences import split_sentences
from univerb.phrases.content import content_words

if TYPE_CHECKING:
    from univerb.entailment.scorers import Entailment

_MOST_MARKERS = 3
_JUDGED = 3
"""Passages that a sentence is held against: those that it copies from, then the best ranked."""
_PARTLY = 0.1
"""The judge's probability from which a sentence in its passage's words is partly supported."""
_IN_ORDER = 0.7
"""The share of a sentence's words that its passage has in the same order."""
_FEWEST_CONTENT, _MOST_NEW = 3, 1
"""Content words of a sentence that says something, and those that passage and question lack."""
_TURNS = re.compile(
    r"\b(?:not?|never|nor|neither|nobody|none|nothing|without|unless|except|if|whether|hardly)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_CONDITIONS = re.compile(r"\b(?:unless|except|if|until|provided|without|only)\b", re.IGNORECASE)
"""What a sentence may go on with that makes its beginning alone say more than it does."""


def supported_sentences(
    text: str,
    sentences: Sequence[Sentence],
    citations: Sequence[Citation],
    passages: Sequence[Chunk],
    question: str = "",
    judge: "Entailment | None" = None,
) -> tuple[Sentence, ...]:
    """Return the sentences of a text with what supports them.

    Args:
        text: Without markers.
        sentences: Where its sentences are; their markers, if any, name passages to look at, too.
        citations: What they have from the passages.
        passages: Numbered from 1 in this order.
        question: What the text answers: its words are nothing new.
        judge: Decides about sentences that are no quotes; by default the one that ships.

    Returns:
        The sentences in order.
    """
    judged = []
    for sentence in sentences:
        own = [c for c in citations if sentence.start <= c.answer_start < sentence.end]
        quoting = [c.marker for c in own if _is_quoted(text, sentence, c)]
        if quoting:
            markers = tuple(dict.fromkeys(quoting))[:_MOST_MARKERS]
            judged.append(sentence._replace(support="quoted", markers=markers))
            continue
        named = (*(c.marker for c in own), *sentence.markers, *range(1, len(passages) + 1))
        claim = text[sentence.start : sentence.end]
        alike = [
            number
            for number in list(dict.fromkeys(named))[:_JUDGED]
            if _has_words(passages[number - 1], claim, question)
        ]
        support, markers = _judged(claim, alike, passages, judge)
        judged.append(sentence._replace(support=support, markers=markers))
    return tuple(judged)


def _judged(
    claim: str, numbers: Sequence[int], passages: Sequence[Chunk], judge: "Entailment | None"
) -> tuple[Support, tuple[int, ...]]:
    """Hold a claim against the passages that have its words; the likeliest one is cited."""
    if not numbers:
        return "unsupported", ()
    judge = judge or default_judge()
    pairs = [(_premise(passages[number - 1]), claim) for number in numbers]
    score, best = max(zip(judge.probabilities(pairs), (-n for n in numbers), strict=True))
    if score >= judge.about.threshold:
        return "supported", (-best,)
    return ("partly", (-best,)) if score >= _PARTLY else ("unsupported", ())


def _has_words(passage: Chunk, claim: str, question: str) -> bool:
    """Tell whether a passage has a claim's words, nearly all, in their order and not turned."""
    said, there = _words(claim), _words(_premise(passage))
    blocks = SequenceMatcher(None, there, said, autojunk=False).get_matching_blocks()
    content = [word for word in said if content_words(word)]
    known = {*there, *_words(question)}
    new = [word for word in content if word not in known]
    is_turned = _TURNS.search(claim) and not _TURNS.search(passage.text)
    return (
        len(content) >= _FEWEST_CONTENT
        and len(new) <= _MOST_NEW
        and sum(block.size for block in blocks) >= _IN_ORDER * len(said)
        and not is_turned
    )


def _words(text: str) -> list[str]:
    return [word.text.lower() for word in split_words(text) if not word.is_mark]


def _premise(passage: Chunk) -> str:
    return f"Title: {' '.join(passage.document.split())}\n{passage.text}"


def _is_quoted(text: str, sentence: Sentence, citation: Citation) -> bool:
    """Tell whether a citation is the whole sentence, and its source says it without turning it."""
    spoken = [
        word for word in split_words(text[sentence.start : sentence.tail]) if not word.is_mark
    ]
    if not spoken:
        return False
    edges = sentence.start + spoken[0].start, sentence.start + spoken[-1].end
    if (citation.answer_start, citation.answer_end) != edges:
        return False
    passage, offset = citation.passage.text, citation.passage.start
    begin, end = citation.start - offset, citation.end - offset
    source = list(split_sentences(passage))
    first = max((a for a, _ in source if a <= begin), default=0)
    last = min((b for _, b in source if b >= end), default=len(passage))
    return not (_TURNS.search(passage[first:begin]) or _CONDITIONS.search(passage[end:last]))


@lru_cache(maxsize=1)
def default_judge() -> "Entailment":
    """Load the judge that ships, once: most answers of quotes never need it."""
    from univerb.entailment.scorers import load_entailment

    return load_entailment()
