"""The phrases of a request of lm-evaluation-harness."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from univerb.corpus import open_corpus
from univerb.corpus.corpus import Corpus
from univerb.decoding.text_scores import PhraseScorer
from univerb.documents.read import read_documents
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.collection import PhraseItem
from univerb.phrases.lists import read_phrase_list

CONTEXT = "context"
"""Instead of a list of phrases: the n-grams of a request's context."""


class PhraseSources(NamedTuple):
    """Where phrases come from, all together; none leaves the LM as it is."""

    items: Sequence[PhraseItem] = ()
    """For every request: phrases, and documents for their n-grams."""
    corpus: Corpus | None = None
    """Gives the phrases of the chunks that a request's context retrieves."""
    k: int = 32
    """Number of chunks."""
    uses_context: bool = False
    """The n-grams of a request's whole context, even where the LM sees only its end."""

    @property
    def names(self) -> list[str]:
        """For a report."""
        corpus = [f"corpus {self.corpus.folder.name}, {self.k} chunks"] if self.corpus else []
        items = [f"{len(self.items)} documents and phrases"] if self.items else []
        return items + corpus + [CONTEXT] * self.uses_context


def read_sources(
    docs: Sequence[str] = (),
    corpus: str | Path | None = None,
    phrases: str | None = None,
    k: int = 32,
) -> PhraseSources:
    """Read files or folders, open a corpus, and read a list of phrases (or "context")."""
    items: list[PhraseItem] = list(read_documents(*docs)) if docs else []
    if phrases and phrases != CONTEXT:
        items += read_phrase_list(Path(phrases))
    return PhraseSources(items, open_corpus(corpus) if corpus else None, k, phrases == CONTEXT)


class RequestPhrases:
    """The phrases of one request after another; the last ones are cached."""

    def __init__(self, lm: DynamicLM, sources: PhraseSources) -> None:
        self._lm, self._sources = lm, sources
        self._cached: tuple[str, PhraseScorer] | None = None
        if sources.corpus and sources.corpus.has_vectors:
            lm.attach(sources.corpus)

    def for_context(self, context: str) -> PhraseScorer:
        """Return the phrases for a context, maybe none."""
        depends_on_context = self._sources.corpus or self._sources.uses_context
        query = context if depends_on_context else ""
        if self._cached is None or self._cached[0] != query:
            self._cached = query, self._select(query)
        return self._cached[1]

    def _select(self, context: str) -> PhraseScorer:
        lm, sources = self._lm, self._sources
        items = list(sources.items)
        if context.strip():
            if sources.corpus:
                items += sources.corpus.select(context, lm.tokenizer, sources.k).phrases
            items += [Document(context, CONTEXT)] * sources.uses_context
        return PhraseScorer(lm, lm.vocabulary(items))
