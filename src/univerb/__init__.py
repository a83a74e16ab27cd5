"""univerb: a causal LM reads and writes whole phrases as single vocabulary items.

    import univerb

    lm = univerb.load()
    vocabulary = lm.vocabulary(univerb.read_documents("lease.txt"))
    print(univerb.generate(lm, "The tenant shall", vocabulary))

Names are loaded when they are first used: importing the package costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from univerb._version import __version__

if TYPE_CHECKING:
    from univerb.applications.answer import answer
    from univerb.decoding.loop import batch, generate, stream
    from univerb.decoding.results import Generation
    from univerb.documents.read import read_documents
    from univerb.loading import load
    from univerb.modeling.dynamic import DynamicLM
    from univerb.phrase import Document, Phrase
    from univerb.vocabulary import DynamicVocabulary

_HOMES = {
    "Document": "univerb.phrase",
    "DynamicLM": "univerb.modeling.dynamic",
    "DynamicVocabulary": "univerb.vocabulary",
    "Generation": "univerb.decoding.results",
    "Phrase": "univerb.phrase",
    "answer": "univerb.applications.answer",
    "batch": "univerb.decoding.loop",
    "generate": "univerb.decoding.loop",
    "load": "univerb.loading",
    "read_documents": "univerb.documents.read",
    "stream": "univerb.decoding.loop",
}

__all__ = [
    "Document",
    "DynamicLM",
    "DynamicVocabulary",
    "Generation",
    "Phrase",
    "__version__",
    "answer",
    "batch",
    "generate",
    "load",
    "read_documents",
    "stream",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (PEP 562: what a name holds is its own matter)
    if name not in _HOMES:
        raise AttributeError(f"module 'univerb' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
