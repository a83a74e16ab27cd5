"""The protocol of `univerb lab phrases`: what an encoder's phrases are worth on held-out text.

Each document is cut in the middle. The first half retrieves chunks, whose n-grams are the
candidates beside its own; the second half is the truth. One pass of the LM over both serves all
measures but the writing.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import TypeAdapter

from univerb._version import __version__
from univerb.config import GenerationConfig
from univerb.corpus.corpus import Corpus
from univerb.decoding.text_scores import PhraseScorer, ReadText
from univerb.errors import DocumentError, OptionError
from univerb.lab.metrics.repetition import words
from univerb.lab.phrases.candidates import CandidatePhrases, candidate_phrases
from univerb.lab.phrases.firing import Firing, firing, pool_firing
from univerb.lab.phrases.halves import Halves, cut
from univerb.lab.phrases.input_side import Divergence, input_side, pool_input_side
from univerb.lab.phrases.reading import Reading
from univerb.lab.phrases.report import PhrasesReport
from univerb.lab.phrases.true_text import TrueText, pool_true_text, true_text
from univerb.lab.phrases.writing import (
    PROFILE,
    RANDOM_DOCUMENTS,
    UNTRAINED,
    Variants,
    WritingPrompt,
    WritingRow,
    WrittenText,
    pool_writing,
    write,
    writing_rows,
)
from univerb.lab.protocols.lm_scorer import Progress
from univerb.lab.protocols.result_cache import ResultCache, results_key, short_hash
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.vocabulary import DynamicVocabulary

_TEXT = "along the true text"
# Documents that are written for in one batch: eight take little longer than one.
_BATCH = 8
_SHOWN = 10
"""Texts that a report prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhrasesProtocol:
    """The settings of a measurement."""

    context: int = 512
    """Tokens of the first half that the LM reads, at most."""
    truth: int = 256
    """Tokens of the second half that are measured, at most."""
    k: int = 32
    """Chunks that the first half retrieves."""
    content: str | None = "en"
    """Stop list of the guard of content words; None for phrases of any words."""
    max_tokens: int = 128
    """Base tokens to write."""
    spans: int = 16
    """Phrases of a document that are fed as one vector, at most."""
    proposals: int = 24
    """Fired phrases of a document whose accepted part is computed, at most."""
    biases: tuple[float, ...] = tuple(float(bias) for bias in range(-8, 9))
    """At which the likelihood of the true text is computed."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TextFigures:
    """What is measured along the true text of one document."""

    true_text: TrueText
    firing: Firing
    input_side: list[Divergence]


def evaluate_phrases(
    lm: DynamicLM,
    documents: Iterable[Document],
    corpus: Corpus | None = None,
    protocol: PhrasesProtocol | None = None,
    *,
    variants: Variants = MappingProxyType({}),
    controls: Sequence[str] = (),
    only_write: bool = False,
    skip: int = 0,
    limit: int = 300,
    limit_writing: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> PhrasesReport:
    """Measure phrases on held-out documents.

    Args:
        lm: The model with its encoder and its profile.
        documents: Held-out text; documents that are too short for two halves are passed over.
        corpus: Where candidates are retrieved; None leaves those of the first halves.
        protocol: The settings.
        variants: The options of decoding that are compared in writing.
        controls: `RANDOM_DOCUMENTS` or `UNTRAINED`: rows beside those of the variants.
        only_write: Measure nothing along the true text.
        skip: Number of documents to leave out at the beginning.
        limit: Maximum number of documents.
        limit_writing: Maximum number of documents that are continued.
        folder: Keep results here document by document: an interrupted run resumes.
        progress: Called with done and total documents.

    Returns:
        The figures over all documents.

    Raises:
        DocumentError: If no document is long enough.
        OptionError: If the LM's context is too short for the protocol.
    """
    protocol = protocol or PhrasesProtocol()
    _check_room(lm, protocol)
    texts = list(documents)
    if corpus and corpus.has_vectors and corpus.fingerprint == lm.fingerprint():
        lm.attach(corpus)
    cache = ResultCache(folder, results_key(lm, corpus, asdict(protocol)))
    evaluation = _Evaluation(lm, corpus, protocol, cache, texts, only_write)
    rows = writing_rows(variants, controls)
    written = min(limit, limit if limit_writing is None else limit_writing) if rows else 0
    names = evaluation.measure_all(texts[skip:], rows, limit, written, progress)
    if not names:
        raise DocumentError(
            f"none of {len(texts[skip:])} documents is long enough to be cut in two. Give longer "
            "ones."
        )
    return evaluation.report(names, rows, names[:written])


def _check_room(lm: DynamicLM, protocol: PhrasesProtocol) -> None:
    for name in ("truth", "max_tokens"):
        if (value := getattr(protocol, name)) >= lm.context_size:
            raise OptionError(
                f"{name} is {value}; the LM sees {lm.context_size} positions, of which the first "
                f"half needs one. Give at most {lm.context_size - 1}."
            )


class _Evaluation:
    """The measures of one model with one protocol."""

    def __init__(
        self,
        lm: DynamicLM,
        corpus: Corpus | None,
        protocol: PhrasesProtocol,
        cache: ResultCache,
        documents: Sequence[Document],
        only_write: bool,
    ) -> None:
        self._lm, self._corpus, self._protocol, self._cache = lm, corpus, protocol, cache
        self._documents = {_name(document): document for document in documents}
        self._only_write = only_write
        self._sizes = corpus.manifest.settings.sizes if corpus else (2, 8)
        config = GenerationConfig().resolved(lm.profile)
        self._bias = config.phrase_bias
        self._eagerness = config.eagerness
        self._tolerance = 1.0 if config.mode == "atomic" else config.tolerance

    def measure_all(
        self,
        documents: Sequence[Document],
        rows: Sequence[WritingRow],
        limit: int,
        written: int,
        progress: Progress | None,
    ) -> list[str]:
        """Measure documents, the first of them in writing; returns the names of those measured."""
        names: list[str] = []
        waiting = iter(documents)
        while len(names) < limit:
            room = written - len(names)
            some = list(islice(waiting, min(_BATCH, room) if room > 0 else 1))
            if not some:
                break
            names += self._measure(some, rows if room > 0 else [])
            if progress:
                progress(len(names), min(limit, len(documents)))
        return names

    def _measure(self, documents: Sequence[Document], rows: Sequence[WritingRow]) -> list[str]:
        """Measure what the cache lacks; returns the names of documents that are long enough."""
        wanted = [*([] if self._only_write else [_TEXT]), *map(self._label, rows)]
        names = {_name(document): document for document in documents}
        prompts: dict[str, WritingPrompt] = {}
        for name, document in list(names.items()):
            missing = [measure for measure in wanted if self._cache.get(name, measure) is None]
            if not missing:
                continue
            halves = self._cut(document)
            if halves is None:
                del names[name]
                continue
            with torch.inference_mode():
                prompts[name] = self._read(name, halves, missing)
        for row in rows:
            label = self._label(row)
            due = {n: p for n, p in prompts.items() if self._cache.get(n, label) is None}
            if row.control == RANDOM_DOCUMENTS:
                due = {name: self._with_other_phrases(name, due[name]) for name in due}
            lm = self._untrained if row.control == UNTRAINED else self._lm
            texts = write(lm, list(due.values()), row.options, self._protocol.max_tokens)
            for name, text in zip(due, texts, strict=True):
                self._cache.put(name, label, asdict(text))
        return list(names)

    def _label(self, row: WritingRow) -> str:
        """Name what the texts of a row depend on: another document, too, if that is a control."""
        names = short_hash(list(self._documents)) if row.control == RANDOM_DOCUMENTS else ""
        return f"{row.label} {names}"

    @cached_property
    def _untrained(self) -> DynamicLM:
        lm = self._lm
        config = lm.encoder.config.model_copy(update={"trained_steps": 0})
        return DynamicLM.wrap(lm.model, lm.hf_tokenizer, config, lm.profile)

    def _with_other_phrases(self, name: str, prompt: WritingPrompt) -> WritingPrompt:
        """Replace the candidates by those of the next document that is long enough."""
        names = list(self._documents)
        place = names.index(name)
        for other in [*names[place + 1 :], *names[:place]]:
            if halves := self._cut(self._documents[other]):
                found = self._candidates(halves)
                return prompt._replace(vocabulary=found.vocabulary, sources=_split(found.sources))
        raise DocumentError(
            f"no other document than {name!r} is long enough to take phrases from. Give more "
            "documents, or leave the random ones out."
        )

    def _candidates(self, halves: Halves) -> CandidatePhrases:
        guards = Guards(content=self._protocol.content)
        return candidate_phrases(
            self._lm, halves, self._corpus, self._sizes, self._protocol.k, guards
        )

    def _cut(self, document: Document) -> Halves | None:
        lm, protocol = self._lm, self._protocol
        room = lm.context_size - max(protocol.truth, protocol.max_tokens)
        context = min(protocol.context, room)
        return cut(document, lm.tokenizer, context, protocol.truth, self._sizes)

    def _read(self, name: str, halves: Halves, missing: Sequence[str]) -> WritingPrompt:
        """Read a document, and measure what needs no writing."""
        reading = Reading(self._lm, halves.context, halves.truth)
        candidates = self._candidates(halves)
        if _TEXT in missing:
            figures = self._along_text(name, halves, reading, candidates.vocabulary)
            self._cache.put(name, _TEXT, asdict(figures))
        is_written = any(measure != _TEXT for measure in missing)
        sources = _split(candidates.sources) if is_written else []
        return WritingPrompt(reading, halves.context, candidates.vocabulary, sources)

    def _along_text(
        self, name: str, halves: Halves, reading: Reading, vocabulary: DynamicVocabulary
    ) -> TextFigures:
        protocol = self._protocol
        states, logits = reading.states[:-1], reading.logits[:-1]
        text = ReadText(halves.context, reading.truth, states, logits)
        scores = PhraseScorer(self._lm, vocabulary).along(text)
        seed = f"{protocol.seed} {name}"
        biases = sorted({*protocol.biases, self._bias})
        return TextFigures(
            true_text(scores, len(halves.second.encode()), biases),
            firing(
                reading,
                scores,
                halves.starts,
                tolerance=self._tolerance,
                bias=self._bias,
                eagerness=self._eagerness,
                samples=protocol.proposals,
                seed=seed,
            ),
            input_side(self._lm, reading, halves.spans, protocol.spans, seed),
        )

    def report(
        self, names: Sequence[str], rows: Sequence[WritingRow], written: Sequence[str]
    ) -> PhrasesReport:
        """Pool the documents."""
        read = TypeAdapter(TextFigures).validate_python
        texts = [] if self._only_write else [read(self._cache.get(name, _TEXT)) for name in names]
        return PhrasesReport(
            about=self._about(len(names), len(written)),
            bias=self._bias,
            true_text=pool_true_text([text.true_text for text in texts]) if texts else None,
            firing=pool_firing([text.firing for text in texts]) if texts else None,
            input_side=pool_input_side([text.input_side for text in texts]) if texts else [],
            writing=[pool_writing(row, self._texts(row, written)) for row in rows if written],
            texts=self._shown(rows, written[:_SHOWN]),
        )

    def _shown(self, rows: Sequence[WritingRow], names: Sequence[str]) -> dict[str, WrittenText]:
        """Return what the profile writes, without a control, for some documents."""
        row = next((row for row in rows if (row.variant, row.control) == (PROFILE, None)), None)
        return dict(zip(names, self._texts(row, names), strict=True)) if row else {}

    def _texts(self, row: WritingRow, names: Sequence[str]) -> list[WrittenText]:
        return [WrittenText(**self._cache.get(name, self._label(row))) for name in names]

    def _about(self, documents: int, written: int) -> dict[str, Any]:
        lm, corpus = self._lm, self._corpus
        is_stored = corpus is not None and corpus.fingerprint == lm.fingerprint()
        adapted = " with the adapter" if lm.adapter else ""
        return {
            "univerb": __version__,
            "model": lm.name + adapted,
            "adapter": lm.adapter is not None,
            "scorer": f"{lm.model.name_or_path}{adapted}, without phrases",
            "encoder": lm.fingerprint(),
            "trained_steps": lm.encoder.config.trained_steps,
            "profile": lm.profile.model_dump(),
            "corpus": corpus.folder.name if corpus else None,
            "corpus_chunks": corpus.manifest.chunks if corpus else 0,
            "vectors": "from the corpus where it has them" if is_stored else "encoded at request",
            "documents": documents,
            "documents_written": written,
            "protocol": asdict(self._protocol),
            "dtype": str(lm.model.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
        }


def _split(texts: Sequence[str]) -> list[list[str]]:
    return [words(text).tokens for text in texts]


def _name(document: Document) -> str:
    """Name a document with a hash of its text."""
    text = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{document.name} {text}"
