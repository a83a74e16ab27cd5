"""The phrases of passages that an answer may be written with."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from univerb.documents.chunks import Chunk
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.ngrams import PhraseSource
from univerb.tokenizer import Tokenizer

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, eq=False)
class MarkedPhrase(Phrase):
    """A phrase with its passage's marker in its key and its text, but not in its sources."""

    bare: int = 0
    """How much of the text is the phrase itself."""

    def cut(self, text: str, ids: tuple[int, ...]) -> Self:
        """Return the part that begins it; what the marker has of that part is not sourced."""
        return replace(Phrase.cut(self, text[: self.bare], ids), text=text)


def citable_phrases(
    passages: Sequence[Chunk],
    source: PhraseSource,
    tokenizer: Tokenizer,
    encode_marker: bool = False,
) -> Iterator[Phrase]:
    """Find the phrases of passages that can be cited.

    Args:
        passages: Numbered from 1 in this order.
        source: How to find the phrases of a document.
        tokenizer: The LM's.
        encode_marker: Make the passage's marker the end of each phrase's key.

    Yields:
        Phrases whose sources are spans of the passages' documents. Left out are those that a
        passage does not have letter by letter, because the tokenizer or the source changed them,
        and those with square brackets, which could be taken for markers.
    """
    for number, passage in enumerate(passages, 1):
        if not passage.text.strip():
            continue
        for phrase in source(Document(passage.text, passage.document), tokenizer):
            text = phrase.text.strip()
            moved = [
                replace(span, start=span.start + passage.start, end=span.end + passage.start)
                for span in phrase.sources
            ]
            sources = tuple(span for span in moved if passage_has(passage, span, text))
            if sources and not {"[", "]"} & set(text):
                citable = replace(phrase, sources=sources)
                yield _marked(citable, number, tokenizer) if encode_marker else citable


def passage_has(passage: Chunk, span: Span, text: str) -> bool:
    """Tell whether a passage has a text at a span of its document; any white space is a space."""
    is_inside = passage.start <= span.start < span.end <= passage.end
    source = passage.text[span.start - passage.start : span.end - passage.start]
    if span.document != passage.document or not is_inside:
        return False
    return _SPACE.sub(" ", source) == _SPACE.sub(" ", text)


def _marked(phrase: Phrase, number: int, tokenizer: Tokenizer) -> Phrase:
    # Behind a line break, so that nothing is put before the bracket or merged with it.
    anchor = "\n"
    marker = f"[{number}]"
    ids = tokenizer.encode(anchor + marker).ids[len(tokenizer.encode(anchor).ids) :]
    key, text = (*phrase.ids, *ids), phrase.text + marker
    if tokenizer.decode(key) != text:
        return phrase
    return MarkedPhrase(key, text, phrase.sources, phrase.weight, bare=len(phrase.text))
