"""What the passages have of each sentence of an answer.

A sentence that stands in a passage is quoted. Others are held against the passages by the small
entailment judge that ships with univerb. It sees the topic better than the truth, and small LMs put
passages together wrongly: so a sentence must follow its passage's words in their order, too
(docs/decisions/0041-citations-are-copy-runs.md, where the thresholds come from).
"""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING

from univerb.applications.citations import Citation, Cite, Sentence, Support
from univerb.applications.copy_runs import Word, split_words
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
_CONDITIONS = re.compile(r"\b(?:unless|except|if|until|provided|without|only)\b", re.IGNORECASE)
"""What a sentence may go on with that makes its beginning alone say more than it does."""
_TURNS = re.compile(
    rf"(?P<no>\b(?:not|cannot)\b|n['’]t\b)|{_CONDITIONS.pattern}"
    r"|\b(?:no|never|nor|neither|nobody|none|nothing|whether|hardly|seldom|rarely|(?<!\ba )few"
    r"|false(?:ly)?|untrue|wrong(?:ly)?|fail(?:s|ed|ing)?|refus(?:es?|ed|ing)|refrain(?:s|ed|ing)?"
    r"|(?:rather|other) than|instead of|den(?:y|ies|ied)|doubt(?:s|ed)?|forbid(?:s|den)?)\b"
    r"|[不没沒未非无無]|ない|ません|ไม่",
    re.IGNORECASE,
)
_FACTS = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen"
    r"|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty"
    r"|ninety|hundred|thousand|million|billion|dozen|half|double|twice|once|first|second|third|last"
    r"|before|after|until|since|above|below|over|under|more|less|most|least|fewer|minimum|maximum"
    r"|earlier|later|always|all|every|some|must|may)\b"
)
"""Numbers, relations and modal verbs: one that is new or left out makes another claim."""
_CLAUSE = re.compile(r"(?:^|[,;:.\"“‘«(\[–—•*，；：、。「『（]|^\W|^\W*\w{1,3}\))\s*\Z")
"""What stands before the beginning of a sentence or a clause."""


def supported_sentences(
    text: str,
    sentences: Sequence[Sentence],
    citations: Sequence[Citation],
    passages: Sequence[Chunk],
    question: str = "",
    judge: "Entailment | None" = None,
    cite: Cite = "best",
) -> tuple[Sentence, ...]:
    """Return the sentences of a text with what supports them.

    Args:
        text: Without markers.
        sentences: Where its sentences are; their markers, if any, name passages to look at, too.
        citations: What they have from the passages.
        passages: Numbered from 1 in this order.
        question: What the text answers: its words are nothing new.
        judge: Decides about sentences that are no quotes; by default the one that ships.
        cite: "best" names the likeliest passage for these, "all" each that is likely enough.

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
        support, markers = _judged(claim, alike, passages, judge, cite)
        judged.append(sentence._replace(support=support, markers=markers))
    return tuple(judged)


def _judged(
    claim: str,
    numbers: Sequence[int],
    passages: Sequence[Chunk],
    judge: "Entailment | None",
    cite: Cite,
) -> tuple[Support, tuple[int, ...]]:
    """Hold a claim against the passages that have its words."""
    if not numbers:
        return "unsupported", ()
    judge = judge or default_judge()
    pairs = [(_premise(passages[number - 1]), claim) for number in numbers]
    scores = dict(zip(numbers, judge.probabilities(pairs), strict=True))
    best = max(sorted(scores), key=scores.__getitem__)
    is_supported = scores[best] >= judge.about.threshold
    needed = judge.about.threshold if is_supported else _PARTLY
    likely = [number for number in sorted(scores) if scores[number] >= needed]
    if not likely:
        return "unsupported", ()
    return "supported" if is_supported else "partly", tuple(likely) if cite == "all" else (best,)


def _has_words(passage: Chunk, claim: str, question: str) -> bool:
    """Tell whether a passage has a claim's words, nearly all, in their order and not turned."""
    spoken, sources = _spoken(claim), _spoken(_premise(passage))
    said, there = _lower(spoken), _lower(sources)
    content = {word for word in said if content_words(word)}
    blocks = SequenceMatcher(None, there, said, autojunk=False).get_matching_blocks()
    copied = [block.a + at for block in blocks for at in range(block.size)]
    if (
        len(copied) < _IN_ORDER * len(said)
        or sum(map(content.__contains__, said)) < _FEWEST_CONTENT
    ):
        return False
    left = {*said} - {there[at] for at in copied}
    skipped = {there[at] for at in {*range(copied[0], copied[-1])}.difference(copied)}
    names = {word.text.lower() for word in spoken[1:] if word.text[0].isupper()}
    used = [sources[at] for at in copied if there[at] in content]
    return (
        len((left & content).difference(there, _lower(_spoken(question)))) <= _MOST_NEW
        # What the passage has elsewhere is in another role; a name that it lacks is another fact.
        and (left & content).isdisjoint(there)
        and left.isdisjoint(names)
        # Without a number or a relation that stands between, two facts become one.
        and not any(map(_FACTS.search, left | skipped))
        and _turns(claim) == _turns(_sentences_with(used, passage))
    )


def _turns(text: str) -> list[str]:
    """Return what turns the sense of a text, in order; all forms of "not" are one."""
    return ["not" if match["no"] else match[0].lower() for match in _TURNS.finditer(text)]


def _sentences_with(words: Iterable[Word], passage: Chunk) -> str:
    """Return the sentences of a passage that have some words of its premise."""
    offset = len(_premise(passage)) - len(passage.text)
    starts = {word.start - offset for word in words}
    spans = split_sentences(passage.text)
    return " ".join(passage.text[a:b] for a, b in spans if not starts.isdisjoint(range(a, b)))


def _spoken(text: str) -> list[Word]:
    return [word for word in split_words(text) if not word.is_mark]


def _lower(words: Iterable[Word]) -> list[str]:
    return [word.text.lower() for word in words]


def _premise(passage: Chunk) -> str:
    return f"Title: {' '.join(passage.document.split())}\n{passage.text}"


def _is_quoted(text: str, sentence: Sentence, citation: Citation) -> bool:
    """Tell whether a citation is the whole sentence, and its source says it without turning it."""
    spoken = _spoken(text[sentence.start : sentence.tail])
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
    if not _CLAUSE.search(passage[first:begin]):
        return False
    rest = passage[end:last]
    is_limited = _CONDITIONS.search(rest) or _TURNS.search(re.split("[,;:]", rest)[0])
    return not (_TURNS.search(passage[first:begin]) or is_limited)


@lru_cache(maxsize=1)
def default_judge() -> "Entailment":
    """Load the judge that ships, once: most answers of quotes never need it."""
    from univerb.entailment.scorers import load_entailment

    return load_entailment()
