"""The phrases that a document's second half may be written with, and the texts they come from."""

from collections.abc import Sequence
from typing import NamedTuple

from univerb.corpus.corpus import Corpus
from univerb.lab.phrases.halves import Halves
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import ngrams
from univerb.retrieval.base import Hit
from univerb.vocabulary import DynamicVocabulary


class CandidatePhrases(NamedTuple):
    """Phrases, and the texts that they may have been copied from."""

    vocabulary: DynamicVocabulary
    sources: list[str]
    """The retrieved chunks, neighbours of one document joined, and the first half."""


def candidate_phrases(
    lm: DynamicLM,
    halves: Halves,
    corpus: Corpus | None,
    sizes: tuple[int, int] = (2, 8),
    k: int = 32,
    guards: Guards | None = None,
) -> CandidatePhrases:
    """Gather all n-grams of the chunks that the first half retrieves, and of the first half.

    Args:
        lm: The model.
        halves: The document.
        corpus: Where to retrieve; None for the first half alone.
        sizes: Shortest and longest phrase, in tokens.
        k: Number of chunks.
        guards: Which of them may be phrases, by default as users get them; a corpus may have been
            built with others, as in the paper.

    Returns:
        The phrases and their sources. N-grams that the corpus does not store are among them.
    """
    first = Document(halves.first, halves.name)
    guards = guards or Guards()
    source = ngrams(sizes, guards)
    if corpus is None:
        vocabulary = lm.vocabulary([first], source=source, max_phrases=None)
        return CandidatePhrases(vocabulary, [first.text])
    selection = corpus.select(halves.first, lm.tokenizer, k, others=True, guards=guards)
    vocabulary = lm.vocabulary([*selection.phrases, first], source=source, max_phrases=None)
    return CandidatePhrases(vocabulary, [*_joined(selection.hits), first.text])


def _joined(hits: Sequence[Hit]) -> list[str]:
    """Return the texts of chunks, those that follow each other in a document as one."""
    chunks = sorted((hit.chunk for hit in hits), key=lambda chunk: (chunk.document, chunk.start))
    texts: list[str] = []
    previous = None
    for chunk in chunks:
        follows = previous is not None and previous.document == chunk.document
        gap = chunk.start - previous.end if previous and follows else -1
        # Only a space can stand between neighbours; what overlaps stays apart.
        if 0 <= gap <= 1:
            texts[-1] += " " * gap + chunk.text
        else:
            texts.append(chunk.text)
        previous = chunk
    return texts
