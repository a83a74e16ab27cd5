"""Passages with what retrieval brings for them, as a user's text has it at run time."""

from typing import NamedTuple

import numpy

from univerb.documents.chunks import Chunk
from univerb.phrase import Document
from univerb.phrases.tokenized import TokenArrays, tokenize_lines
from univerb.retrieval.base import Retriever
from univerb.tokenizer import Tokenizer
from univerb.training.config import FrozenConfig
from univerb.training.training_passages import Passages, TextPassage

_GAP = "\n\n"


class RetrievedText(NamedTuple):
    """A passage as the LM reads it, and the texts that its phrases come from."""

    ids: numpy.typing.NDArray[numpy.int32]
    """(N,) all tokens; before the passage itself there may be retrieved chunks."""
    text: TokenArrays
    """The same, with a break for tokens that no phrase may contain."""
    begin: int
    """The first token of the passage itself."""
    pool: TokenArrays
    """The retrieved chunks."""


class RetrievedPassages:
    """The passages of a run, each with the best chunks of other documents.

    Args:
        passages: The text.
        retriever: Finds chunks.
        tokenizer: The LM's.
        settings: Number of chunks, and how many stand before the text.
        seed: Of the run.
    """

    def __init__(
        self,
        passages: Passages,
        retriever: Retriever,
        tokenizer: Tokenizer,
        settings: FrozenConfig,
        seed: int,
    ) -> None:
        self._passages = passages
        self._retriever = retriever
        self._tokenizer = tokenizer
        self._settings = settings
        self._seed = seed

    def text(self, index: int) -> RetrievedText:
        """Return passage `index` of the run."""
        own = self._passages.text(self._seed, index)
        chunks = self._retrieved(own)
        draw = numpy.random.default_rng((self._seed, index)).random()
        count = self._settings.context_chunks if draw < self._settings.context_share else 0
        before = "".join(chunk.text + _GAP for chunk in chunks[:count])
        tokens = self._passages.tokenized(before + own.text)
        begin = int(numpy.searchsorted(tokens.end, len(before), side="right")) if before else 0
        texts = (Document(chunk.text, chunk.document) for chunk in chunks)
        pools = (tokenize_lines(text, self._tokenizer).arrays() for text in texts)
        pool = TokenArrays.concatenate(pools)
        return RetrievedText(tokens.ids, tokens.arrays(), begin, pool)

    def _retrieved(self, own: TextPassage) -> list[Chunk]:
        """Return the best chunks of other documents for a passage's first words."""
        ids = self._tokenizer.encode(own.text).offsets[: self._settings.first]
        query = own.text[: ids[-1][1]] if ids else ""
        # Some are the document's own.
        count = 2 * self._settings.chunks
        hits = self._retriever.search(query, count) if count and query.strip() else []
        others = [hit.chunk for hit in hits if not _is_of(hit.chunk, own.document)]
        return others[: self._settings.chunks]


def _is_of(chunk: Chunk, document: Document) -> bool:
    """Tell whether a chunk is of a document, be it that a corpus has it by another name."""
    return chunk.document == document.name or chunk.text in document.text
