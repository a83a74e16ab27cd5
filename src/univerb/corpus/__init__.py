"""A corpus on disk: documents, their retrieval index, their phrases and the phrases' vectors."""

from univerb.corpus.read import Corpus, open_corpus

__all__ = ["Corpus", "open_corpus"]
