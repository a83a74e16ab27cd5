"""The systems that answer, and the leading sentences as a control that needs no LM."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from univerb.applications.answer import answer
from univerb.documents.sentences import split_sentences
from univerb.lab.answers.cases import AnswerCase
from univerb.lab.answers.faults import citation_faults
from univerb.lab.protocols.result_cache import ResultCache, short_hash
from univerb.modeling.phrase_model import PhraseModel

SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "quote": {"quote": True},
    "write": {"quote": False},
    "plain": {"quote": False, "phrases": "none"},
}
"""Quotes; the LM with phrases; and the plain LM with the same prompt, retrieval and citing."""
LEADING = "leading sentences"
_SHOWN = 400
"""Characters of a document that a judge sees on each side of a passage."""


class Marker(NamedTuple):
    """A sentence of an answer, and a passage that a marker says supports it."""

    question: str
    sentence: str
    document: str
    context: str
    """The passage, with what stands around it."""


class AnswerRecord(NamedTuple):
    """An answer, and what was found of it."""

    system: str
    case: AnswerCase
    text: str
    """Without markers."""
    rendered: str
    found: bool
    supports: tuple[str, ...]
    """Of each sentence."""
    cited_words: tuple[int, ...]
    """Of each citation."""
    faults: tuple[str, ...]
    markers: tuple[Marker, ...]


def answered(
    lm: PhraseModel,
    case: AnswerCase,
    system: str,
    cache: ResultCache,
    options: Mapping[str, Any],
) -> AnswerRecord:
    """Let a system answer, or take the answer that was kept."""
    key = short_hash([case.question, [(each.name, each.text) for each in case.documents]])
    if cache.get(key, system) is None:
        # An answer must not depend on which ones were kept before.
        lm.forget()
        settings = {**SYSTEMS[system], **options}
        cache.put(key, system, answer(lm, case.question, case.documents, **settings).to_dict())
    return _record(case, system, cache.get(key, system))


def leading(case: AnswerCase, words: int) -> AnswerRecord:
    """Answer with so many words of the documents' first sentences, one of each in turn, cited."""
    spans = [(each, list(split_sentences(each.text))) for each in case.documents]
    most = max((len(own) for _, own in spans), default=0)
    in_turn = ((each, *own[at]) for at in range(most) for each, own in spans if at < len(own))
    markers: list[Marker] = []
    for document, start, end in in_turn:
        if words <= 0:
            break
        said = " ".join(document.text[start:end].split()[:words])
        words -= len(said.split())
        shown = _around(document.text, start, end)
        markers.append(Marker(case.question, said, document.name, shown))
    text = " ".join(marker.sentence for marker in markers)
    cited = tuple(len(marker.sentence.split()) for marker in markers)
    supports = ("quoted",) * len(markers)
    return AnswerRecord(LEADING, case, text, text, True, supports, cited, (), tuple(markers))


def _record(case: AnswerCase, system: str, found: Mapping[str, Any]) -> AnswerRecord:
    documents = {each.name: each.text for each in case.documents}
    return AnswerRecord(
        system=system,
        case=case,
        text=" ".join(sentence["text"] for sentence in found["sentences"]),
        rendered=found["text"],
        found=found["found"],
        supports=tuple(each["support"] for each in found["sentences"]),
        cited_words=tuple(len(each["text"].split()) for each in found["citations"]),
        faults=tuple(citation_faults(found, documents)),
        markers=tuple(_markers(case.question, found, documents)),
    )


def _markers(
    question: str, found: Mapping[str, Any], documents: Mapping[str, str]
) -> Iterator[Marker]:
    for sentence in found["sentences"]:
        for passage in found["passages"]:
            if passage["marker"] in sentence["markers"]:
                name = passage["document"]
                shown = _around(documents[name], passage["start"], passage["end"])
                yield Marker(question, sentence["text"], name, shown)


def _around(text: str, start: int, end: int) -> str:
    begin, stop = max(start - _SHOWN, 0), min(end + _SHOWN, len(text))
    before = "… " if begin else ""
    return before + " ".join(text[begin:stop].split()) + (" …" if stop < len(text) else "")
