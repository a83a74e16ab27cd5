"""The phrases that a document's second half may be written with, and the texts they come from."""

from collections.abc import Sequence
from typing import NamedTuple

from univerb.corpus.corpus import Corpus
from univerb.lab.phrases.halves import Halves
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.ngrams import ngrams
from univerb.retrieval.base import Hit
from univerb.vocabulary import DynamicVocabulary

SIZES = (2, 8)
"""Shortest and longest phrase without a corpus, in tokens."""


class Candidates(NamedTuple):
    """Phrases, and where they may have been copied from."""

    vocabulary: DynamicVocabulary
    sources: list[str]
    """The retrieved chunks, neighbours of one document joined, and the first half."""


def phrase_sizes(corpus: Corpus | None) -> tuple[int, int]:
    """Return the shortest and the longest phrase, in tokens."""
    return corpus.manifest.settings.sizes if corpus else SIZES


def candidates(lm: DynamicLM, halves: Halves, corpus: Corpus | None, k: int = 32) -> Candidates:
    """Gather all n-grams of the chunks that the first half retrieves, and of the first half.

    Args:
        lm: The model.
        halves: The document.
        corpus: Where to retrieve; None for the first half alone.
        k: How many chunks.

    Returns:
        The phrases and their sources. N-grams that the corpus does not store are among them.
    """
    own = Document(halves.first, halves.name)
    source = ngrams(phrase_sizes(corpus))
    if corpus is None:
        return Candidates(lm.vocabulary([own], source=source), [own.text])
    found = corpus.select(halves.first, lm.tokenizer, k, others=True)
    vocabulary = lm.vocabulary([*found.phrases, own], source=source)
    return Candidates(vocabulary, [*_joined(found.hits), own.text])


def _joined(hits: Sequence[Hit]) -> list[str]:
    """Return the texts of chunks, those that follow each other in a document as one."""
    chunks = sorted((h.chunk for h in hits), key=lambda c: (c.document, c.start))
    texts: list[str] = []
    before = None
    for chunk in chunks:
        gap = chunk.start - before.end if before and before.document == chunk.document else -1
        # Only space can stand between neighbours; what overlaps stays apart.
        if 0 <= gap <= 1:
            texts[-1] += " " * gap + chunk.text
        else:
            texts.append(chunk.text)
        before = chunk
    return texts
