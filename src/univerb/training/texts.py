"""The training text, cut into passages whose order is a function of the seed alone.

Nothing is shuffled in memory and nothing is remembered: passage number i of a run is computed from
(seed, i), so a run can stop anywhere and go on as if it had not.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy
from numpy.typing import NDArray

from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.tokenized import TokenizedText, tokenize_text
from univerb.tokenizer import Tokenizer

# English has a little more than four characters per token, other scripts fewer: the rest is cut.
_CHARACTERS = 4
# How far from an edge a word may begin; where none does, the script has no spaces.
_LONGEST_WORD = 256


class Texts:
    """Documents as passages of at most so many tokens, none of which crosses a document's end."""

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: Tokenizer,
        block: int,
        guards: Guards | None = None,
    ) -> None:
        self._documents = documents
        self._tokenizer = tokenizer
        self._block = block
        self._guards = guards
        self._size = block * _CHARACTERS
        counts = [max(-(-len(document.text) // self._size), 1) for document in documents]
        self._first = numpy.concatenate([[0], numpy.cumsum(counts)])
        if not documents:
            raise DocumentError("there is no text to train on. Name files in data.documents.")

    def __len__(self) -> int:
        """How many passages there are; one after the other they are an epoch."""
        return int(self._first[-1])

    def fingerprint(self) -> str:
        """Return a hash of the texts and of how they are cut."""
        content = hashlib.sha256(f"{self._block} {self._size} {self._guards}".encode())
        for document in self._documents:
            content.update(hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).digest())
        return content.hexdigest()[:16]

    def passage(self, seed: int, index: int) -> TokenizedText:
        """Return the tokens of a passage.

        Args:
            seed: Of the run.
            index: The place in the run; after `len(self)` passages the next epoch begins.

        Returns:
            Tokens as the LM reads them, cut to the block.
        """
        epoch, place = divmod(index, len(self))
        slot = int(_order(seed, epoch, len(self))[place])
        owner = int(numpy.searchsorted(self._first, slot, side="right")) - 1
        document = self._documents[owner]
        begin = (slot - int(self._first[owner])) * self._size
        text = _whole_words(document.text, begin, begin + self._size)
        return _head(
            tokenize_text(text, self._tokenizer, self._guards),
            self._block,
        )


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> NDArray[numpy.int64]:
    return numpy.random.default_rng((seed, epoch)).permutation(size)


def _whole_words(text: str, begin: int, end: int) -> str:
    """Cut a text so that a word at an edge belongs to the passage in which it begins."""
    return text[_edge(text, begin) : _edge(text, end)]


def _edge(text: str, place: int) -> int:
    """Return where the first word begins from a place on, or the place if none is near."""
    if place <= 0 or place >= len(text):
        return min(place, len(text))
    near = range(place, min(place + _LONGEST_WORD, len(text)))
    edges = (at for at in near if text[at - 1].isspace() and not text[at].isspace())
    return next(edges, place if near.stop < len(text) else len(text))


def _head(text: TokenizedText, size: int) -> TokenizedText:
    if len(text.ids) <= size:
        return text
    arrays = (getattr(text, name)[:size] for name in TokenizedText.__slots__ if name != "text")
    return TokenizedText(text.text[: int(text.end[size - 1])], *arrays)
