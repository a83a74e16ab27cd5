"""The phrases that a request of lm-evaluation-harness may be written with."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from univerb.corpus import open_corpus
from univerb.corpus.corpus import Corpus
from univerb.documents.read import read_documents
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import Key
from univerb.phrase import Document
from univerb.phrases.collection import PhraseItem
from univerb.phrases.lists import read_phrase_list
from univerb.vocabulary import DynamicVocabulary

CONTEXT = "context"
"""In the place of a list of phrases: take those of the text that a request gives."""


class Sources(NamedTuple):
    """Where phrases come from, all together; nothing leaves the LM as it is."""

    items: Sequence[PhraseItem] = ()
    """For every request: documents, whose n-grams are taken, and phrases."""
    corpus: Corpus | None = None
    """Gives the phrases of the chunks that a request's context retrieves."""
    k: int = 32
    """From how many chunks."""
    own_context: bool = False
    """Take the n-grams of a request's context, all of it, even where the LM sees only its end."""

    @property
    def names(self) -> list[str]:
        """What they are, for a report."""
        corpus = [f"corpus {self.corpus.folder.name}, {self.k} chunks"] if self.corpus else []
        items = [f"{len(self.items)} documents and phrases"] if self.items else []
        return items + corpus + [CONTEXT] * self.own_context


def read_sources(
    docs: Sequence[str] = (),
    corpus: str | Path | None = None,
    phrases: str | None = None,
    k: int = 32,
) -> Sources:
    """Read what options name.

    Args:
        docs: Files or folders.
        corpus: A folder that `univerb index` wrote.
        phrases: A file with a list of phrases, or "context".
        k: Chunks to retrieve.

    Returns:
        The sources, read and opened.
    """
    items: list[PhraseItem] = list(read_documents(*docs)) if docs else []
    if phrases and phrases != CONTEXT:
        items += read_phrase_list(Path(phrases))
    return Sources(items, open_corpus(corpus) if corpus else None, k, phrases == CONTEXT)


class Phrases(NamedTuple):
    """Phrases as scoring needs them."""

    vocabulary: DynamicVocabulary
    keys: list[Key]
    outputs: Tensor
    """(P, d)"""
    bias: Tensor
    """(P,), the encoder's and the phrases' own; -inf for what decoding never chooses."""

    def scores(self, states: Tensor) -> Tensor:
        """Return the logits of the phrases, (T, P), without a bias of the decoding."""
        return (states @ self.outputs.T + self.bias).float()


class PhraseSupply:
    """The phrases of one request after another; those of the last are kept for the next."""

    def __init__(self, lm: DynamicLM, sources: Sources) -> None:
        self._lm, self._sources = lm, sources
        self._last: tuple[str, Phrases | None] | None = None
        if sources.corpus and sources.corpus.has_vectors:
            lm.attach(sources.corpus)

    def about(self, context: str) -> Phrases | None:
        """Return the phrases for a context, or None if there are none."""
        is_fixed = not (self._sources.corpus or self._sources.own_context)
        query = "" if is_fixed else context
        if self._last is None or self._last[0] != query:
            self._last = query, self._made(query)
        return self._last[1]

    def _made(self, context: str) -> Phrases | None:
        lm, sources = self._lm, self._sources
        items = list(sources.items)
        if context.strip():
            if sources.corpus:
                items += sources.corpus.select(context, lm.tokenizer, sources.k).phrases
            items += [Document(context, CONTEXT)] * sources.own_context
        vocabulary = lm.vocabulary(items)
        rows = lm.tensors(vocabulary)
        if rows is None:
            return None
        keys = [phrase.ids for phrase in vocabulary.snapshot().phrases]
        # A text ends at its end token, so decoding bars phrases that go on after one.
        ends = [not lm.eos_ids.isdisjoint(key) for key in keys]
        barred = torch.tensor(ends, device=rows.bias.device)
        bias = rows.bias.masked_fill(barred, float("-inf"))
        return Phrases(vocabulary, keys, rows.outputs, bias)
