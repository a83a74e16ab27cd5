"""Retrieval methods by name, and an index over a few chunks in memory."""

import hashlib
import re
from collections.abc import Sequence

from univerb.documents.chunks import Chunk
from univerb.errors import OptionError, did_you_mean
from univerb.retrieval.base import Hit, Method
from univerb.retrieval.bm25 import BM25
from univerb.retrieval.dense import Dense, Static
from univerb.retrieval.hybrid import Hybrid

_FORMS = ("bm25", "dense:FOLDER", "static:FOLDER", "hybrid:NAME+NAME")


def method_named(name: str) -> Method:
    """Return the method that a name describes; the inverse of `Method.name`.

    Args:
        name: "bm25", "dense:FOLDER", "static:FOLDER", or two of them as "hybrid:NAME+NAME".

    Returns:
        The method. Models are loaded on first use.
    """
    method = _parsed(name)
    if method is None:
        raise OptionError(
            f"no retrieval method is called {name!r}. {did_you_mean(name, _FORMS)} A corpus that "
            "univerb 0.1 built with other options is built again by: univerb index DOCS -o FOLDER"
        )
    return method


def _parsed(name: str) -> Method | None:
    kind, _, rest = name.partition(":")
    if name == "bm25":
        return BM25()
    if kind == "dense" and rest:
        return Dense(rest)
    if kind == "static" and rest:
        return Static(rest)
    return _hybrid(rest) if kind == "hybrid" else None


def _hybrid(names: str) -> Hybrid | None:
    # A folder's name may contain a plus, too: the first split that gives two methods counts.
    for plus in re.finditer(r"\+", names):
        first, second = _parsed(names[: plus.start()]), _parsed(names[plus.end() :])
        if first is not None and second is not None:
            return Hybrid(first, second)
    return None


class ChunkIndex:
    """A retriever over chunks in memory."""

    def __init__(self, chunks: Sequence[Chunk], method: Method | None = None) -> None:
        self.chunks = tuple(chunks)
        """Ties are broken in this order."""
        self._method = method = method or BM25()
        self._index = method.index([method.features([chunk.text for chunk in self.chunks])])

    @property
    def content(self) -> str:
        """A hash of the chunks, and of the method's name."""
        texts = "\0".join([self._method.name, *(chunk.text for chunk in self.chunks)])
        return hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest()

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` chunks, best first."""
        if k < 1:
            raise OptionError(f"k is {k}; ask for at least 1 chunk.")
        return [Hit(self.chunks[number], score) for number, score in self._index.rank(query, k)]
