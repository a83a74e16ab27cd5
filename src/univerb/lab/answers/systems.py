"""The systems that answer, and two controls that need no LM."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from univerb.applications.answer import NOT_FOUND, answer
from univerb.documents.chunks import Chunk
from univerb.documents.sentences import split_sentences
from univerb.lab.answers.cases import AnswerCase
from univerb.lab.answers.faults import citation_faults
from univerb.lab.protocols.result_cache import ResultCache, short_hash
from univerb.modeling.phrase_model import PhraseModel
from univerb.retrieval.embedder import default_embedder
from univerb.retrieval.methods import ChunkIndex

SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "quote": {"quote": True},
    "write": {"quote": False},
    "plain": {"quote": False, "phrases": "none"},
}
"""Quotes; the LM with phrases; and the plain LM with the same prompt, retrieval and citing."""
LEADING, RETRIEVED = "leading sentences", "retrieved sentences"
_RETRIEVED = 8
"""Sentences that the second control may take."""
_SHOWN = 400
"""Characters of a document that a judge sees on each side of a passage."""


class Marker(NamedTuple):
    """A sentence of an answer, and a passage that a marker says supports it."""

    question: str
    sentence: str
    document: str
    context: str
    """The passage in ⟦brackets⟧, with what stands around it."""


class AnswerRecord(NamedTuple):
    """An answer, and what was found of it."""

    system: str
    case: AnswerCase
    text: str
    """Without markers."""
    rendered: str
    supports: tuple[str, ...]
    """Of each sentence."""
    cited_words: tuple[int, ...]
    """Of each citation."""
    faults: tuple[str, ...]
    markers: tuple[Marker, ...]

    @property
    def words(self) -> int:
        """Its length; 0 if it says that nothing was found."""
        return len(self.text.split()) if self.text != NOT_FOUND else 0


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
    sentences = [_sentences(each.name, each.text) for each in case.documents]
    most = max(map(len, sentences), default=0)
    in_turn = (own[at] for at in range(most) for own in sentences if at < len(own))
    return _cited(LEADING, case, in_turn, words)


def retrieved(case: AnswerCase, words: int) -> AnswerRecord:
    """Answer with so many words of the sentences that retrieval alone finds nearest, cited.

    By the embedding model if it is installed, otherwise by BM25.
    """
    sentences = [one for each in case.documents for one in _sentences(each.name, each.text)]
    hits = ChunkIndex(sentences, default_embedder()).search(case.question, _RETRIEVED)
    return _cited(RETRIEVED, case, (hit.chunk for hit in hits), words)


def _sentences(name: str, text: str) -> list[Chunk]:
    return [Chunk(name, start, text[start:end]) for start, end in split_sentences(text)]


def _cited(system: str, case: AnswerCase, sentences: Iterable[Chunk], words: int) -> AnswerRecord:
    """Answer with the first words of some sentences, each cited."""
    documents = {each.name: each.text for each in case.documents}
    markers: list[Marker] = []
    for sentence in sentences:
        if words <= 0:
            break
        said = " ".join(sentence.text.split()[:words])
        words -= len(said.split())
        shown = _around(documents[sentence.document], sentence.start, sentence.end)
        markers.append(Marker(case.question, said, sentence.document, shown))
    text = " ".join(marker.sentence for marker in markers)
    cited = tuple(len(marker.sentence.split()) for marker in markers)
    return AnswerRecord(
        system, case, text, text, ("quoted",) * len(markers), cited, (), tuple(markers)
    )


def _record(case: AnswerCase, system: str, found: Mapping[str, Any]) -> AnswerRecord:
    documents = {each.name: each.text for each in case.documents}
    return AnswerRecord(
        system=system,
        case=case,
        text=" ".join(sentence["text"] for sentence in found["sentences"]),
        rendered=found["text"],
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
    """Show a passage where it stands; what is around it tells who "she" is."""
    begin, stop = max(start - _SHOWN, 0), min(end + _SHOWN, len(text))
    parts = (text[begin:start], f"⟦{text[start:end]}⟧", text[end:stop])
    before = "… " if begin else ""
    return before + " ".join("".join(parts).split()) + (" …" if stop < len(text) else "")
