"""The training text, cut into passages whose order is a function of the seed alone.

Nothing is shuffled in memory and nothing is carried over: passage i of a run is computed from
(seed, i), so a run can resume anywhere.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.tokenized import TokenizedText, tokenize_text
from univerb.tokenizer import Tokenizer

# English has a little more than four characters per token, other scripts fewer: the rest is cut.
_CHARACTERS_PER_TOKEN = 4
# How far from an edge a word may begin; where none does, the script has no spaces.
_LONGEST_WORD = 256


class TextPassage(NamedTuple):
    """A stretch of a document."""

    text: str
    """May be empty."""
    document: Document
    """All of it."""


class Passages:
    """Documents as passages of at most `block` tokens, none of which crosses a document's end.

    A passage begins as a prompt does, with the special tokens that the LM wants before a text.
    `guards` say where phrases may be.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: Tokenizer,
        block: int,
        guards: Guards | None = None,
    ) -> None:
        if not documents:
            raise DocumentError("there is no text to train on. Name files in data.documents.")
        self._documents = documents
        self._tokenizer = tokenizer
        self._begin = numpy.array(tokenizer.begin_ids, dtype=numpy.int32)
        self._block = block
        self._guards = guards or Guards()
        self._characters = block * _CHARACTERS_PER_TOKEN
        counts = [max(-(-len(document.text) // self._characters), 1) for document in documents]
        self._first = numpy.concatenate([[0], numpy.cumsum(counts)])

    def __len__(self) -> int:
        """Number of passages in an epoch."""
        return int(self._first[-1])

    def fingerprint(self) -> str:
        """Return a hash of the texts, of how they are cut and of where phrases may be."""
        begin = self._begin.tolist()
        settings = f"{self._block} {self._characters} {begin} {self._guards}"
        content = hashlib.sha256(settings.encode())
        for document in self._documents:
            content.update(hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).digest())
        return content.hexdigest()[:16]

    def text(self, seed: int, index: int) -> TextPassage:
        """Return passage `index` of a run; of a document's last words none may be left for it.

        After `len(self)` of them the next epoch begins.
        """
        epoch, number = divmod(index, len(self))
        passage = int(_order(seed, epoch, len(self))[number])
        owner = int(numpy.searchsorted(self._first, passage, side="right")) - 1
        document = self._documents[owner]
        begin = (passage - int(self._first[owner])) * self._characters
        start, end = (_word_start(document.text, at) for at in (begin, begin + self._characters))
        return TextPassage(document.text[start:end], document)

    def tokens(self, seed: int, index: int) -> TokenizedText:
        """Return the tokens of passage `index`, as many as a passage may have."""
        return self.tokenized(self.text(seed, index).text)

    def tokenized(self, text: str) -> TokenizedText:
        """Return a text as a passage, cut where it is too long."""
        tokens = tokenize_text(text, self._tokenizer, self._guards)
        return _prepend(self._begin, _truncate(tokens, self._block - len(self._begin)))


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> NDArray[numpy.int64]:
    return numpy.random.default_rng((seed, epoch)).permutation(size)


def _word_start(text: str, index: int) -> int:
    """Return where the first word begins from `index` on, or `index` if none is near."""
    if index <= 0 or index >= len(text):
        return min(index, len(text))
    near = range(index, min(index + _LONGEST_WORD, len(text)))
    starts = (at for at in near if text[at - 1].isspace() and not text[at].isspace())
    return next(starts, index if near.stop < len(text) else len(text))


def _truncate(text: TokenizedText, size: int) -> TokenizedText:
    if len(text.ids) <= size:
        return text
    arrays = (getattr(text, name)[:size] for name in TokenizedText.__slots__ if name != "text")
    return TokenizedText(text.text[: int(text.end[size - 1])], *arrays)


def _prepend(ids: NDArray[numpy.int32], text: TokenizedText) -> TokenizedText:
    """Put special tokens before a text, unless it is empty; no phrase may contain them."""
    if not len(ids) or not len(text.ids):
        return text
    names = [name for name in TokenizedText.__slots__ if name != "text"]
    before = {name: numpy.zeros(len(ids), getattr(text, name).dtype) for name in names}
    before |= {"ids": ids, "is_masked": numpy.ones(len(ids), dtype=bool)}
    columns = {name: numpy.concatenate([before[name], getattr(text, name)]) for name in names}
    return TokenizedText(text.text, **columns)
