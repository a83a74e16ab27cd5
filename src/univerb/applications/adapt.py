"""Domain adaptation without training: index the domain's text, then measure what that brings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from univerb.applications.calibrate import Calibration, calibrate, save_profile
from univerb.applications.coverage import (
    Coverage,
    passages_of,
    retrieved_coverage,
    table_coverage,
)
from univerb.corpus.build import OnProgress, build_corpus
from univerb.corpus.corpus import Corpus, open_corpus
from univerb.corpus.manifest import MANIFEST, CorpusSettings
from univerb.corpus.shards import digest
from univerb.documents.chunks import chunked
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import Workers
from univerb.phrase import Document
from univerb.tokenizer import Tokenizer

_EVERY = 10
_EACH = 16
"""Passages of one held-out document."""
_MOST = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """What the phrases of a corpus, or of none, can write of held-out text."""

    label: str
    all_phrases: Coverage
    """With every phrase of the corpus as a candidate."""
    retrieved: Coverage
    """With the phrases of the chunks that a passage's beginning retrieves."""

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return {
            "label": self.label,
            "all_phrases": self.all_phrases.to_dict(),
            "retrieved": self.retrieved.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A corpus, how to decode with it, and what it brings."""

    corpus: Corpus
    calibration: Calibration | None
    """None for a corpus without vectors."""
    before: Measured
    after: Measured

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        found = self.calibration.to_dict() if self.calibration else None
        rows = {"before": self.before.to_dict(), "after": self.after.to_dict()}
        return {"corpus": str(self.corpus.folder), "calibration": found, **rows}


def adapt(
    lm: DynamicLM,
    documents: Sequence[Document],
    folder: str | Path,
    held_out: Sequence[Document] | None = None,
    *,
    before: Corpus | None = None,
    settings: CorpusSettings | None = None,
    k: int = 32,
    limit: int = 32,
    workers: Workers | None = None,
    progress: OnProgress | None = None,
) -> Adaptation:
    """Index documents, calibrate on held-out text, and measure before and after.

    Args:
        lm: The model; it is not trained.
        documents: Text of the domain.
        folder: Where the corpus goes.
        held_out: Text of the domain that is not indexed. By default a tenth of the documents, which
            is set apart while it is measured and indexed afterwards.
        before: A corpus to compare with; by default no phrases at all.
        settings: How to build the corpus.
        k: From how many chunks a passage takes its phrases.
        limit: On how many passages to calibrate and to measure retrieval.
        workers: Who builds.
        progress: Is told how far it is.

    Returns:
        The corpus and the figures. The calibrated values are kept with the corpus.
    """
    indexed, kept_out = (documents, held_out) if held_out else split_held_out(documents)
    _check_unknown(folder, held_out or documents)
    build = partial(build_corpus, folder, lm=lm, workers=workers, progress=progress)
    corpus = build(documents=indexed, settings=settings)
    passages = passages_of(kept_out, lm.tokenizer, limit=limit, each=_EACH)
    if not passages:
        raise DocumentError(
            "the held-out text has no passage of more than 33 tokens. Give more: --held-out FILE."
        )
    found = None
    if corpus.has_vectors:
        tell = _stage(progress, "calibration")
        found = calibrate(lm, corpus, passages, k, progress=tell)
        save_profile(corpus, lm, found)
    rows = [
        measured(label, one, kept_out, lm.tokenizer, k, limit)
        for label, one in (("before", before), ("after", corpus))
    ]
    if not held_out:
        # It was set apart for the measurement only: users get all of their documents.
        corpus = build(documents=documents)
    return Adaptation(corpus, found, *rows)


def measured(
    label: str,
    corpus: Corpus | None,
    held_out: Sequence[Document],
    tokenizer: Tokenizer,
    k: int = 32,
    limit: int | None = None,
) -> Measured:
    """Measure what a corpus brings for held-out text.

    Args:
        label: What to call it.
        corpus: The corpus, or None for no phrases.
        held_out: The text.
        tokenizer: The LM's.
        k: From how many chunks a passage takes its phrases.
        limit: At most so many passages for retrieval.

    Returns:
        Oracle compression and coverage.
    """
    passages = passages_of(held_out, tokenizer, limit=limit, each=_EACH)
    if corpus is None:
        rests = [rest for _, rest in passages]
        return Measured(label, *(_plain(texts, tokenizer) for texts in (held_out, rests)))
    return Measured(
        label,
        table_coverage(corpus, held_out, tokenizer),
        retrieved_coverage(corpus, passages, tokenizer, k),
    )


def split_held_out(
    documents: Sequence[Document],
) -> tuple[list[Document], list[Document]]:
    """Set a tenth of the text apart: of many documents every tenth, of few the end of each.

    Args:
        documents: At least one.

    Returns:
        What to index, and what to measure on.

    Raises:
        DocumentError: If there is too little text to set any apart.
    """
    if len(documents) >= _EVERY:
        chosen = set(range(_EVERY - 1, len(documents), _EVERY)[:_MOST])
        kept = [d for i, d in enumerate(documents) if i not in chosen]
        return kept, [documents[i] for i in sorted(chosen)]
    cut = [(document, _tenth(document)) for document in documents]
    long = [(document, at) for document, at in cut if at]
    if not long:
        raise DocumentError("there is too little text to hold some out. Give --held-out FILE.")
    kept = [Document(d.text[:at] if at else d.text, d.name) for d, at in cut]
    return kept, [Document(d.text[at:], f"{d.name}#held-out") for d, at in long]


def _check_unknown(folder: str | Path, held_out: Sequence[Document]) -> None:
    """Refuse to measure on text that the corpus has already."""
    path = Path(folder).expanduser()
    if not (path / MANIFEST).is_file():
        return
    listed = open_corpus(path).listed()
    names, digests = ({one[key] for one in listed} for key in ("name", "digest"))
    for document in held_out:
        if document.name in names or digest(document.text) in digests:
            raise DocumentError(
                f"{document.name!r} is in {str(path)!r} already, so nothing would be held out. "
                "Give other text with --held-out, or a new folder."
            )


def _tenth(document: Document) -> int:
    """Return where the last tenth of a document begins, at a chunk; 0 if it is too short."""
    chunks = chunked(document)
    return chunks[-max(len(chunks) // 10, 1)].start if len(chunks) > 1 else 0


def _plain(texts: Sequence[Document], tokenizer: Tokenizer) -> Coverage:
    count = sum(len(tokenizer.encode_inside(document.text).ids) for document in texts)
    return Coverage(tokens=count, units=count, passages=len(texts))


def _stage(progress: OnProgress | None, name: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(name, done, total)) if progress else None
