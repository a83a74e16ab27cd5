"""Sentences of ASQA's passages: a judge of citations must know them in the passage itself.

A sentence and its light changes are supported by their own passage; a negated one or one with
another year is not, nor is a sentence by a passage of another question. Another passage of the
same question may well support it.
"""

import random
import re
from collections.abc import Iterator, Sequence

from univerb.documents.sentences import Splitter
from univerb.lab.metrics.citations import passage_text
from univerb.lab.protocols.asqa_questions import AsqaDocument, AsqaQuestion

CHANGED = (
    "without its parenthesis",
    "title for its pronoun",
    "joined with the next",
    "without its last clause",
)
"""Supported by their passage, as a rule."""
FALSE = ("negated", "with another year", "by another question's passage")
"""Not supported."""
Case = tuple[str, str, str]
"""A kind of claim, the passage, and the claim."""
_FEWEST_WORDS = 6


def cases(
    questions: Sequence[AsqaQuestion], split: Splitter, count: int, changed_every: int = 1
) -> Iterator[Case]:
    """Draw `count` sentences, and yield them with their own passages and with others."""
    draw = random.Random(0)
    passages = [
        (number, document, sentences)
        for number, question in enumerate(questions)
        for document in question.documents
        if (sentences := _sentences(document.text, split))
    ]
    for index, (number, document, sentences) in enumerate(draw.choices(passages, k=count)):
        at = draw.randrange(len(sentences))
        claim, own = sentences[at], _premise(document)
        yield "verbatim", own, claim
        if not index % changed_every:
            for kind, changed in _changes(claim, document.title, sentences[at + 1 : at + 2]):
                yield kind, own, changed
        others = [each for n, each, _ in passages if n != number]
        yield "by another question's passage", _premise(draw.choice(others)), claim
        beside = [each for n, each, _ in passages if n == number and claim not in each.text]
        if beside:
            yield "by another passage of the question", _premise(draw.choice(beside)), claim


def _changes(claim: str, title: str, following: Sequence[str]) -> Iterator[tuple[str, str]]:
    without = re.sub(r" ?\([^()]*\)", "", claim)
    if without != claim:
        yield "without its parenthesis", without
    if pronoun := re.match(r"(?:He|She|It|They)\b", claim):
        yield "title for its pronoun", title + claim[pronoun.end() :]
    for other in following:
        yield "joined with the next", f"{claim.rstrip('.!? ')}, and {other}"
    if ", " in claim:
        yield "without its last clause", claim.rpartition(", ")[0] + "."
    if verb := re.search(r"\b(?:is|was|are|were)\b", claim):
        yield "negated", f"{claim[: verb.end()]} not{claim[verb.end() :]}"
    if year := re.search(r"\b(?:1[5-9]|20)\d\d\b", claim):
        yield "with another year", f"{claim[: year.start()]}{int(year[0]) - 7}{claim[year.end() :]}"


def _sentences(text: str, split: Splitter) -> list[str]:
    found = (text[start:end].strip() for start, end in split(text))
    return [sentence for sentence in found if len(sentence.split()) >= _FEWEST_WORDS]


def _premise(document: AsqaDocument) -> str:
    return passage_text(document.title, document.text)
