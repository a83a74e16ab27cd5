"""The passages that a text is about, from documents or a corpus."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache

from univerb.documents.chunks import Chunk, chunked
from univerb.errors import DocumentError, OptionError, shown
from univerb.phrase import Document
from univerb.retrieval.base import Hit, Method, Retriever
from univerb.retrieval.methods import ChunkIndex

_WHOLE_WORDS = 200
"""Documents of at most this many words are passages as they are."""
_RANKED_AGAIN = 24
"""Passages that BM25, or a corpus's own method, leaves for the embedding model to rank."""
_CONSTANT = 60
"""Of reciprocal rank fusion; the larger it is, the more the lower ranks count."""


def find_passages(
    query: str,
    documents: Sequence[Document] | Retriever,
    k: int = 3,
    embedder: Method | None = None,
) -> tuple[Chunk, ...]:
    """Find at most `k` passages that a text is about, the best first.

    Up to `k` short documents are the passages as they are; others are cut into chunks and searched
    with BM25. With an embedding model, that ranks the best of them again, and both ranks count.
    There may be none.
    """
    if not isinstance(k, int) or k < 1:
        raise OptionError(f"k is {shown(k)}; show the LM at least 1 passage.")
    # Told apart by what they can do: a corpus may be a sequence of documents, too.
    if hasattr(documents, "search"):
        return _searched(documents, query, k, embedder)
    if len(documents) <= k and all(len(d.text.split()) <= _WHOLE_WORDS for d in documents):
        starts = [len(d.text) - len(d.text.lstrip()) for d in documents]
        pairs = zip(documents, starts, strict=True)
        return tuple(Chunk(d.name, start, d.text.strip()) for d, start in pairs)
    return _searched(_chunk_index(tuple(documents)), query, k, embedder)


@lru_cache(maxsize=2)
def _chunk_index(documents: tuple[Document, ...]) -> ChunkIndex:
    """Index documents, once for all that is asked of them."""
    # The overlap leaves no sentence alone at an edge.
    return ChunkIndex([chunk for document in documents for chunk in chunked(document, overlap=1)])


def _searched(
    retriever: Retriever, query: str, k: int, embedder: Method | None
) -> tuple[Chunk, ...]:
    hits = retriever.search(query, k if embedder is None else max(k, _RANKED_AGAIN))
    if embedder is not None and len(hits) > 1:
        again = ChunkIndex([hit.chunk for hit in hits], embedder).search(query, len(hits))
        hits = _fused(hits, again)
    return tuple(hit.chunk for hit in hits[:k])


def _fused(first: Sequence[Hit], second: Sequence[Hit]) -> list[Hit]:
    """Order hits by the sum of their reciprocal ranks in both lists."""
    scores: dict[Chunk, float] = defaultdict(float)
    for hits in (first, second):
        for rank, hit in enumerate(hits, 1):
            scores[hit.chunk] += 1 / (_CONSTANT + rank)
    # Of equal ones the first list's best is first: sorting is stable.
    return [Hit(*pair) for pair in sorted(scores.items(), key=lambda pair: -pair[1])]


def check_documents(documents: Sequence[Document] | Retriever) -> None:
    """Refuse what cannot be searched, and documents of one name: a citation could mean any."""
    if hasattr(documents, "search"):
        return
    is_list = isinstance(documents, Sequence) and len(documents) > 0
    if not is_list or not all(isinstance(document, Document) for document in documents):
        raise DocumentError(
            f"documents is {shown(documents)}; give documents, or something with a search() "
            "method. Read files with univerb.read_documents(...)."
        )
    name, count = Counter(document.name for document in documents).most_common(1)[0]
    if count > 1:
        raise DocumentError(
            f"{count} documents are called {name!r}, so a citation could mean any. Give each a "
            "different name: Document(text, name)."
        )
