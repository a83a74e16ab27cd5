"""Domain adaptation without training: index the domain's text, then measure what that brings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from univerb.applications.before_after import BeforeAfter, write_before_after
from univerb.applications.calibrate import Calibration, calibrate, save_profile
from univerb.applications.coverage import (
    Coverage,
    passages_of,
    retrieved_coverage,
    spread,
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

PASSAGES_PER_DOCUMENT = 16
_CONTINUATIONS = 5
_HOLD_OUT_EVERY = 10
_MOST_HELD_OUT = 50


@dataclass(frozen=True, slots=True)
class CorpusCoverage:
    """What the phrases of a corpus, or of none, can write of held-out text."""

    all_phrases: Coverage
    """With every phrase of the corpus as a candidate."""
    retrieved: Coverage
    """With the phrases of the chunks that a passage's beginning retrieves."""

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return {"all_phrases": self.all_phrases.to_dict(), "retrieved": self.retrieved.to_dict()}


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A corpus, how to decode with it, and what it brings."""

    corpus: Corpus
    calibration: Calibration | None
    """None for a corpus without vectors."""
    before: CorpusCoverage
    after: CorpusCoverage
    continuations: tuple[BeforeAfter, ...]
    """Of held-out text, written while it was in no corpus."""

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return {
            "corpus": str(self.corpus.folder),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "continuations": [each.to_dict() for each in self.continuations],
        }


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
        k: Number of chunks that a passage takes its phrases from.
        limit: Number of passages to calibrate on and to measure retrieval with.
        workers: Who builds.
        progress: Called with the stage, what is done of it, and all of it.

    Returns:
        The corpus, the figures and five continuations. The calibrated values are stored with the
        corpus; a NoChangeWarning says so if they leave the text as the plain LM writes it.
    """
    indexed, measured = (documents, held_out) if held_out else split_held_out(documents)
    _check_not_indexed(folder, held_out or documents)
    build = partial(build_corpus, folder, lm=lm, workers=workers, progress=progress)
    corpus = build(documents=indexed, settings=settings)
    passages = passages_of(measured, lm.tokenizer, limit=limit, per_document=PASSAGES_PER_DOCUMENT)
    if not passages:
        raise DocumentError(
            "the held-out text has no passage of more than 33 tokens. Give more as held_out."
        )
    calibration = None
    if corpus.has_vectors:
        report = partial(progress, "calibration") if progress else None
        calibration = calibrate(lm, corpus, passages, k, progress=report)
        save_profile(corpus, lm, calibration)
    report = partial(progress, "continuations") if progress else None
    prompts = _prompts(measured, passages, lm.tokenizer)
    continuations = write_before_after(lm, prompts, before, corpus, k, report)
    coverage = partial(_coverage, held_out=measured, passages=passages, tokenizer=lm.tokenizer, k=k)
    before_coverage, after_coverage = coverage(before), coverage(corpus)
    if not held_out:
        # It was set apart for the measurement only: users get all of their documents.
        corpus = build(documents=documents)
    return Adaptation(corpus, calibration, before_coverage, after_coverage, continuations)


def _prompts(
    held_out: Sequence[Document], seen: Sequence[tuple[str, Document]], tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    """Choose beginnings to continue: those that calibration has not seen come first."""
    every = passages_of(held_out, tokenizer, per_document=2 * PASSAGES_PER_DOCUMENT)
    unseen = spread([passage for passage in every if passage not in seen], _CONTINUATIONS)
    chosen = unseen + spread(seen, _CONTINUATIONS - len(unseen))
    return [(_whole_words(beginning, rest.text), rest.name) for beginning, rest in chosen]


def _whole_words(beginning: str, rest: str) -> str:
    """Leave out the last word of a beginning if it goes on after it, and spaces around the rest."""
    is_cut = beginning[-1].isalnum() and rest[0].isalnum()
    return (beginning.rsplit(maxsplit=1)[0] if is_cut else beginning).strip()


def _coverage(
    corpus: Corpus | None,
    held_out: Sequence[Document],
    passages: Sequence[tuple[str, Document]],
    tokenizer: Tokenizer,
    k: int,
) -> CorpusCoverage:
    if corpus is None:
        rests = [rest for _, rest in passages]
        return CorpusCoverage(_uncovered(held_out, tokenizer), _uncovered(rests, tokenizer))
    return CorpusCoverage(
        table_coverage(corpus, held_out, tokenizer),
        retrieved_coverage(corpus, passages, tokenizer, k),
    )


def split_held_out(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Set a tenth of the text apart: of many documents every tenth, of few the end of each."""
    if len(documents) >= _HOLD_OUT_EVERY:
        chosen = set(range(_HOLD_OUT_EVERY - 1, len(documents), _HOLD_OUT_EVERY)[:_MOST_HELD_OUT])
        indexed = [d for i, d in enumerate(documents) if i not in chosen]
        return indexed, [documents[i] for i in sorted(chosen)]
    cuts = [(document, _last_tenth(document)) for document in documents]
    if not any(cut for _, cut in cuts):
        raise DocumentError("there is too little text to hold some out. Give some as held_out.")
    return (
        [Document(d.text[: cut or None], d.name) for d, cut in cuts],
        [Document(d.text[cut:], f"{d.name}#held-out") for d, cut in cuts if cut],
    )


def _check_not_indexed(folder: str | Path, held_out: Sequence[Document]) -> None:
    """Refuse to measure on text that the corpus has already."""
    path = Path(folder).expanduser()
    if not (path / MANIFEST).is_file():
        return
    listed = open_corpus(path).listed()
    names, digests = ({document[key] for document in listed} for key in ("name", "digest"))
    for document in held_out:
        if document.name in names or digest(document.text) in digests:
            raise DocumentError(
                f"{document.name!r} is in {str(path)!r} already, so nothing would be held out. "
                "Give other text as held_out, or a new folder."
            )


def _last_tenth(document: Document) -> int:
    """Return where the last tenth of a document begins, at a chunk; 0 if it is too short."""
    chunks = chunked(document)
    return chunks[-max(len(chunks) // 10, 1)].start if len(chunks) > 1 else 0


def _uncovered(texts: Sequence[Document], tokenizer: Tokenizer) -> Coverage:
    count = sum(len(tokenizer.encode_inside(document.text).ids) for document in texts)
    return Coverage(tokens=count, units=count, passages=len(texts))
