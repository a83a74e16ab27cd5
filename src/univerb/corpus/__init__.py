"""A corpus on disk: documents, their retrieval index, their phrases and the phrases' vectors."""

from univerb.corpus.corpus import Corpus, open_corpus

__all__ = ["Corpus", "open_corpus"]
