"""Documents, and the phrases that they contain.

A phrase is a tuple of the LM's own token ids (its key) and the text they spell. It carries all its
source spans, so that whatever a model writes with it can be traced.
"""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

from univerb.errors import DocumentError, PhraseError, shown

_MAX_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a name; spans point into `text`."""

    text: str
    name: str = "text"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.name, str):
            raise DocumentError(
                f"a document is a text and a name, not {shown(self.text)} and {shown(self.name)}. "
                "Read files with univerb.read_documents(...)."
            )
        if not self.text.strip():
            raise DocumentError(
                f"document {self.name!r} is empty. Leave it out, or check how it was read."
            )


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A span of a document, in characters: `document.text[start:end]`, no leading space."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text span that can be one vocabulary item.

    Two phrases are equal when their ids are: text, sources and weight do not take part.
    """

    ids: tuple[int, ...]
    """The LM's token ids, leading-space token included: the phrase's identity."""
    text: str
    """What the ids spell, including any leading space."""
    sources: tuple[Span, ...] = ()
    """All its occurrences."""
    weight: float = 0.0
    """Added to the phrase's logit; 0 is neutral."""

    def __post_init__(self) -> None:
        if not isinstance(self.ids, tuple) or not self.ids:
            raise PhraseError(
                f"phrase {self.text!r} has no tokens: {shown(self.ids)}. A phrase needs a tuple of "
                "at least one; drop it."
            )
        if not isinstance(self.weight, Real) or not abs(self.weight) <= _MAX_WEIGHT:
            raise PhraseError(
                f"phrase {self.text!r} has the weight {shown(self.weight)}. Give a number between "
                f"-{_MAX_WEIGHT:,.0f} and {_MAX_WEIGHT:,.0f}."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phrase) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __str__(self) -> str:
        return self.text

    def merged(self, *others: Self) -> Self:
        """Return this phrase with the sources of all and the weight of largest magnitude."""
        phrases = (self, *others)
        sources = tuple(dict.fromkeys(span for phrase in phrases for span in phrase.sources))
        weight = max((phrase.weight for phrase in phrases), key=abs)
        return replace(self, sources=sources, weight=weight)

    def cut(self, text: str, ids: tuple[int, ...]) -> Self:
        """Return the prefix of this phrase with this text and these ids, its sources cut to it."""
        length = len(text.strip())
        if not length:
            return replace(self, ids=ids, text=text, sources=())
        sources = tuple(replace(span, end=span.start + length) for span in self.sources)
        return replace(self, ids=ids, text=text, sources=sources)
