"""The protocol of `univerb lab phrases`: what an encoder's phrases are worth on held-out text.

Each document is cut in the middle. The first half retrieves chunks, whose n-grams are the
candidates beside its own; the second half is the truth. One pass of the LM over both serves all
measures but the writing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from univerb.config import GenerationConfig
from univerb.corpus.corpus import Corpus
from univerb.errors import DocumentError, OptionError
from univerb.lab.phrases.candidates import candidates, phrase_sizes
from univerb.lab.phrases.firing import Cell, Firing, firing, pool_firing
from univerb.lab.phrases.halves import Halves, cut
from univerb.lab.phrases.input_side import (
    Divergence,
    InputSide,
    input_side,
    pool_input_side,
    summary,
)
from univerb.lab.phrases.reading import Reading
from univerb.lab.phrases.true_text import TrueText, pool_true_text, true_text
from univerb.lab.phrases.writing import (
    Sources,
    Subject,
    Way,
    Writing,
    Written,
    pool_writing,
    write,
)
from univerb.lab.protocols.result_cache import ResultCache, results_key
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import Key
from univerb.phrase import Document

TRUE_TEXT, FIRING, INPUT_SIDE = "true text", "firing", "input side"
# Documents that are written for in one batch: eight take little longer than one.
_TOGETHER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The settings of a measurement."""

    context: int = 512
    """Tokens of the first half that the LM is given, at most."""
    truth: int = 256
    """Tokens of the second half that are measured, at most."""
    k: int = 32
    """Chunks that the first half retrieves."""
    max_tokens: int = 128
    """Base tokens to write."""
    spans: int = 16
    """Phrases of a document that are fed as one vector, at most."""
    proposals: int = 24
    """Fired phrases of a document whose kept part is computed, at most."""
    biases: tuple[float, ...] = tuple(float(bias) for bias in range(-8, 9))
    tolerances: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PhrasesReport:
    """What was measured, and with what."""

    about: dict[str, Any]
    bias: float
    """The profile's `phrase_bias`."""
    true_text: TrueText | None
    firing: Firing | None
    input_side: InputSide | None
    writing: list[Writing]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        return {
            "about": self.about,
            "true_text": self._true_text(self.true_text) if self.true_text else None,
            "firing": self._firing(self.firing) if self.firing else None,
            "input_side": summary(self.input_side) if self.input_side else None,
            "writing": [asdict(own) for own in self.writing],
        }

    def _true_text(self, found: TrueText) -> dict[str, Any]:
        return {
            "tokens": found.tokens,
            "bytes": found.bytes,
            "bare_bits_per_byte": found.bare_bits,
            "exact_bits_per_byte": found.exact_bits(self.bias),
            "strict_bits_per_byte": found.strict_bits(self.bias),
            "curve": [
                {"bias": b, "exact": found.exact_bits(b), "strict": found.strict_bits(b)}
                for b in found.biases
            ],
        }

    def _firing(self, found: Firing) -> dict[str, Any]:
        names = ("rate", "fitting_share", "kept_precision", "lm_kept_precision")
        shares = {name: getattr(found, name) for name in names}
        own = {"precision": found.profile.precision, "lm_precision": found.profile.lm_precision}
        return asdict(found) | shares | own


def evaluate_phrases(
    lm: DynamicLM,
    documents: Iterable[Document],
    corpus: Corpus | None = None,
    protocol: Protocol | None = None,
    *,
    measures: Sequence[str] = (TRUE_TEXT, FIRING, INPUT_SIDE),
    ways: Sequence[Way] = (),
    limit: int = 300,
    limit_writing: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PhrasesReport:
    """Measure phrases on held-out documents.

    Args:
        lm: The model with its encoder and its profile.
        documents: Held-out text; documents that are too short for two halves are passed over.
        corpus: Where candidates are retrieved; None leaves those of the first halves.
        protocol: The settings.
        measures: Which of the measures along the true text.
        ways: The ways to write that are compared.
        limit: At most so many documents.
        limit_writing: Write for so many of them only.
        folder: Keep results here document by document: an interrupted run goes on.
        progress: Is told how many documents are done, of how many.

    Returns:
        The figures over all documents.

    Raises:
        DocumentError: If no document is long enough.
        OptionError: If the LM sees too little for the protocol.
    """
    how = protocol or Protocol()
    _check_room(lm, how)
    given = list(documents)
    if corpus and corpus.has_vectors and corpus.fingerprint == lm.fingerprint():
        lm.attach(corpus)
    run = _Run(
        lm, corpus, how, ResultCache(folder, results_key(lm, corpus, dataclasses.asdict(how)))
    )
    known: list[str] = []
    writing = limit if limit_writing is None else limit_writing
    waiting = iter(given)

    def part() -> list[Document]:
        """Take as many as can be written for together; the others come one by one."""
        is_written = ways and len(known) < writing
        most = min(_TOGETHER, writing - len(known)) if is_written else 1
        return list(islice(waiting, min(most, limit - len(known))))

    while some := part():
        own = ways if len(known) < writing else ()
        known += run.measure(some, measures, own)
        if progress:
            progress(len(known), min(limit, len(given)))
    if not known:
        raise DocumentError(
            f"none of {len(given)} documents is long enough to be cut in two. Give longer ones."
        )
    about = _about(lm, corpus, how, len(known), min(writing, len(known)))
    return run.report(about, known, measures, ways, writing)


def _check_room(lm: DynamicLM, protocol: Protocol) -> None:
    for name in ("truth", "max_tokens"):
        if (given := getattr(protocol, name)) >= lm.context_size:
            raise OptionError(
                f"{name} is {given}; the LM sees {lm.context_size} positions, of which the first "
                f"half needs one. Give at most {lm.context_size - 1}."
            )


class _Run:
    """The measures of one model with one protocol."""

    def __init__(
        self, lm: DynamicLM, corpus: Corpus | None, protocol: Protocol, cache: ResultCache
    ) -> None:
        self._lm, self._corpus, self._how, self._cache = lm, corpus, protocol, cache
        resolved = GenerationConfig().resolved(lm.profile)
        self._bias = resolved.phrase_bias
        self._tolerance = 1.0 if resolved.mode == "atomic" else resolved.tolerance

    def measure(
        self, documents: Sequence[Document], measures: Sequence[str], ways: Sequence[Way]
    ) -> list[str]:
        """Measure what is not known yet; returns the names of those that could be measured."""
        wanted = [*measures, *map(_label, ways)]
        names = {_digest(document): document for document in documents}
        subjects: dict[str, Subject] = {}
        for name, document in list(names.items()):
            missing = [measure for measure in wanted if self._cache.get(name, measure) is None]
            if not missing:
                continue
            halves = self._cut(document)
            if halves is None:
                del names[name]
                continue
            with torch.inference_mode():
                subjects[name] = self._follow(name, halves, missing)
        for way in ways:
            label = _label(way)
            due = [name for name in subjects if self._cache.get(name, label) is None]
            texts = write(self._lm, [subjects[name] for name in due], way, self._how.max_tokens)
            for name, text in zip(due, texts, strict=True):
                self._cache.put(name, label, asdict(text))
        return list(names)

    def _cut(self, document: Document) -> Halves | None:
        lm, how = self._lm, self._how
        room = lm.context_size - max(how.truth, how.max_tokens)
        sizes = phrase_sizes(self._corpus)
        return cut(document, lm.tokenizer, min(how.context, room), how.truth, sizes)

    def _follow(self, name: str, halves: Halves, missing: Sequence[str]) -> Subject:
        """Read a document, and measure what needs no writing."""
        lm, how = self._lm, self._how
        reading = Reading(lm, halves.context, halves.truth)
        found = candidates(lm, halves, self._corpus, how.k)
        keys = [phrase.ids for phrase in found.vocabulary.snapshot().phrases]
        seed = f"{how.seed} {name}"
        if {TRUE_TEXT, FIRING} & set(missing):
            view = lm.tensors(found.vocabulary)
            none = reading.logits[:, :0]
            scores = none if view is None else (reading.states @ view.outputs.T + view.bias).float()
            if TRUE_TEXT in missing:
                size = len(halves.second.encode())
                biases = sorted({*how.biases, self._bias})
                self._put(name, TRUE_TEXT, true_text(reading, keys, scores, size, biases))
            if FIRING in missing:
                self._put(name, FIRING, self._fired(reading, keys, scores, halves.starts, seed))
        if INPUT_SIDE in missing:
            fed = input_side(lm, reading, halves.spans, how.spans, seed)
            self._put(name, INPUT_SIDE, fed)
        sources = Sources(found.sources, lm.tokenizer)
        return Subject(reading, halves.context, found.vocabulary, sources)

    def _fired(
        self,
        reading: Reading,
        keys: Sequence[Key],
        scores: Tensor,
        starts: Sequence[int],
        seed: str,
    ) -> Firing:
        return firing(
            reading,
            keys,
            scores,
            starts,
            tolerance=self._tolerance,
            bias=self._bias,
            tolerances=self._how.tolerances,
            biases=self._how.biases,
            most=self._how.proposals,
            seed=seed,
        )

    def _put(self, name: str, measure: str, found: TrueText | Firing | InputSide) -> None:
        self._cache.put(name, measure, asdict(found))

    def report(
        self,
        about: dict[str, Any],
        names: Sequence[str],
        measures: Sequence[str],
        ways: Sequence[Way],
        writing: int,
    ) -> PhrasesReport:
        """Put the documents together."""

        def results(measure: str) -> list[dict[str, Any]]:
            return [self._cache.get(name, measure) for name in names] if measure in measures else []

        texts, fired, fed = results(TRUE_TEXT), results(FIRING), results(INPUT_SIDE)
        return PhrasesReport(
            about=about,
            bias=self._bias,
            true_text=pool_true_text([TrueText(**own) for own in texts]) if texts else None,
            firing=pool_firing([_firing(own) for own in fired]) if fired else None,
            input_side=pool_input_side([_input_side(own) for own in fed]) if fed else None,
            writing=[
                pool_writing(
                    way, [Written(**self._cache.get(name, _label(way))) for name in names[:writing]]
                )
                for way in ways
                if names[:writing]
            ],
        )


def _firing(data: dict[str, Any]) -> Firing:
    cells = {"profile": Cell(**data["profile"]), "grid": [Cell(**own) for own in data["grid"]]}
    return Firing(**data | cells)


def _input_side(data: dict[str, Any]) -> InputSide:
    return InputSide([Divergence(**own) for own in data["each"]])


def _label(way: Way) -> str:
    """Name a way with its options: what `profile` means may change."""
    return f"writing {way.name} {json.dumps(way.options, sort_keys=True)}"


def _digest(document: Document) -> str:
    text = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{document.name} {text}"


def _about(
    lm: DynamicLM, corpus: Corpus | None, protocol: Protocol, documents: int, written: int
) -> dict[str, Any]:
    is_stored = corpus is not None and corpus.fingerprint == lm.fingerprint()
    adapted = " with the adapter" if lm.adapter else ""
    return {
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
        "protocol": dataclasses.asdict(protocol),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
