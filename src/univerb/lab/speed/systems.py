"""The systems that are compared, each as a user gets it, in a stated precision.

All decode greedily, ignore the end token and write exactly the requested number of base tokens.
Nothing here imports torch before it is needed: plain llama.cpp runs without it, and its memory is
measured.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from univerb.engines.llamacpp.conversion import as_q8_0
from univerb.errors import MissingExtra, ModelMissing, OptionError, did_you_mean
from univerb.lab.speed.workloads import Request
from univerb.locations import DEFAULT_MODEL, default_gguf
from univerb.phrases.guards import Guards

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.vocabulary import DynamicVocabulary

HF, LLAMA = "hf", "llama.cpp"
SINGLE, HALF = "float32", "float16"
PLAIN_HALF = f"univerb-torch-plain-{HALF}"
NEVER_CHOSEN: dict[str, Any] = {"phrase_bias": -1000.0, "drafts": False}
"""Phrases are scored, and neither chosen nor drafted: every step writes one token."""
_CONTROL = "of the"
"""A phrase for kernels that need one. It is banned: else it would vote on the next token."""
_GROUPS = ("univerb", "univerb-torch", "univerb-llamacpp")


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A way to write; a name that states no precision means float32, or the GGUF file's."""

    kind: Literal["hf", "llama.cpp", "torch", "llamacpp"]
    plain: str
    """The system without phrases, in the same precision, that it is compared with."""
    dtype: str = ""
    """Empty: as the GGUF file has it."""
    mode: str | None = None
    """The decode mode; None writes without phrases."""
    options: dict[str, Any] = field(default_factory=dict)


SYSTEMS: dict[str, SystemSpec] = {
    HF: SystemSpec("hf", HF, SINGLE),
    f"{HF}-bfloat16": SystemSpec("hf", HF, "bfloat16"),
    f"{HF}-prompt-lookup": SystemSpec("hf", HF, SINGLE, options={"prompt_lookup_num_tokens": 10}),
    LLAMA: SystemSpec("llama.cpp", LLAMA),
    "univerb-torch-plain": SystemSpec("torch", HF, SINGLE),
    "univerb-torch-verify": SystemSpec("torch", HF, SINGLE, "verify"),
    "univerb-torch-unfold": SystemSpec("torch", HF, SINGLE, "unfold"),
    "univerb-torch-atomic": SystemSpec("torch", HF, SINGLE, "atomic"),
    PLAIN_HALF: SystemSpec("torch", PLAIN_HALF, HALF, options=NEVER_CHOSEN | {"ban": [_CONTROL]}),
    f"univerb-torch-unfold-{HALF}": SystemSpec("torch", PLAIN_HALF, HALF, "unfold"),
    "univerb-llamacpp-plain": SystemSpec("llamacpp", LLAMA),
    "univerb-llamacpp-verify": SystemSpec("llamacpp", LLAMA, mode="verify"),
    "univerb-llamacpp-unfold": SystemSpec("llamacpp", LLAMA, mode="unfold"),
    "univerb-llamacpp-atomic": SystemSpec("llamacpp", LLAMA, mode="atomic"),
}


def choose_systems(names: Sequence[str]) -> list[str]:
    """Return the systems to run.

    Args:
        names: Those asked for; `univerb-torch` means all that begin so. None means all.

    Returns:
        Their names, in the order of `SYSTEMS`.

    Raises:
        OptionError: If one is unknown.
    """
    for name in names:
        if name not in SYSTEMS and name not in _GROUPS:
            allowed = [*SYSTEMS, *_GROUPS]
            raise OptionError(f"there is no system {name!r}. {did_you_mean(name, allowed)}")
    prefixes = tuple(f"{name}-" for name in names if name in _GROUPS)
    return [name for name in SYSTEMS if not names or name in names or name.startswith(prefixes)]


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """What all systems have in common."""

    model: str
    """For univerb: a backbone, or an encoder's folder."""
    backbone: str
    threads: int
    context: int
    """Positions that the longest request takes."""
    offline: bool | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one request cost; all times are seconds."""

    ids: list[int]
    prepare: float
    """Retrieval, selection of phrases, and their vectors."""
    prefill: float
    decode: float
    first: float
    """From the request to the first token that a user sees, `prepare` included."""
    steps: int
    """Passes after the prefill."""
    phrases: int = 0
    phrase_tokens: int = 0
    peak_mb: float = 0.0
    """Of the process since it began, the loading of the model included."""

    @property
    def total(self) -> float:
        """From the request to the last token."""
        return self.prepare + self.prefill + self.decode


class LoadedSystem(Protocol):
    """A system that is ready to write."""

    precision: str
    """Of its weights, as the report states it."""

    def write(self, request: Request, max_tokens: int) -> Measurement:
        """Continue a prompt by exactly `max_tokens` base tokens."""
        ...


def load_system(name: str, settings: SystemSettings) -> LoadedSystem:
    """Load a system into this process.

    Args:
        name: One of `SYSTEMS`.
        settings: What all have in common.

    Returns:
        The system, ready to write.

    Raises:
        MissingExtra: If its package is not installed.
        ModelMissing: If it needs a file that the model does not have.
    """
    spec = SYSTEMS[name]
    if spec.kind == LLAMA:
        return LlamaSystem(settings)
    return HFSystem(settings, spec) if spec.kind == HF else UniverbSystem(settings, spec)


class HFSystem:
    """HF `generate`, with the weights that univerb's torch engine reads."""

    def __init__(self, settings: SystemSettings, spec: SystemSpec) -> None:
        _set_up_torch(settings.threads)
        from univerb.modeling.backbones import load_backbone

        self.precision = spec.dtype
        self._model: Any = load_backbone(
            settings.backbone, dtype=spec.dtype, offline=settings.offline
        )[0]
        self._model.generation_config.eos_token_id = None
        self._options = spec.options
        self._passes: list[float] = []
        self._model.register_forward_hook(lambda *_: self._passes.append(time.perf_counter()))

    def write(self, request: Request, max_tokens: int) -> Measurement:
        """Continue a prompt by exactly `max_tokens` base tokens."""
        import torch

        self._passes.clear()
        began = time.perf_counter()
        prompt = torch.tensor([request.ids])
        written = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            **self._options,
        )
        ids = written[0, len(request.ids) :].tolist()
        return _without_phrases(ids, began, self._passes[0], len(self._passes) - 1)


class LlamaSystem:
    """Plain llama.cpp through llama-cpp-python's own loop, on the file that univerb computes with.

    By default it keeps what it has read, and reads only what differs from the last prompt.
    """

    def __init__(self, settings: SystemSettings) -> None:
        try:
            from llama_cpp import Llama
        except ImportError:
            raise MissingExtra("llama-cpp-python", "llamacpp-native") from None
        path = default_gguf() if settings.backbone == DEFAULT_MODEL else None
        if path is None:
            raise ModelMissing(
                f"{Path(settings.backbone).name!r} has no GGUF file here. Use {DEFAULT_MODEL!r}."
            )
        path = as_q8_0(path).path
        self.precision = gguf_precision(path)
        self._llama: Any = Llama(
            str(path),
            n_ctx=settings.context,
            n_threads=settings.threads,
            n_threads_batch=settings.threads,
            logits_all=False,
            verbose=False,
        )

    def write(self, request: Request, max_tokens: int) -> Measurement:
        """Continue a prompt by exactly `max_tokens` base tokens."""
        began = time.perf_counter()
        written = self._llama.generate(list(request.ids), temp=0.0)
        ids = [next(written)]
        first = time.perf_counter()
        ids += [next(written) for _ in range(max_tokens - 1)]
        measurement = _without_phrases(ids, began, first, max_tokens - 1)
        written.close()
        return measurement


class UniverbSystem:
    """univerb with one engine in one mode, or without phrases."""

    def __init__(self, settings: SystemSettings, spec: SystemSpec) -> None:
        from univerb.loading import load

        self._options: dict[str, Any] = spec.options | ({"mode": spec.mode} if spec.mode else {})
        loading: dict[str, Any] = {"offline": settings.offline}
        if spec.kind == "torch":
            _set_up_torch(settings.threads)
            # Explicit: the profile may choose half precision.
            self._options["dtype"] = spec.dtype
        else:
            loading |= {"engine": "llamacpp", "threads": settings.threads}
        self._lm: Any = load(settings.model, **loading)
        self.precision = spec.dtype or gguf_precision(self._lm.gguf.path)
        self._has_phrases = spec.mode is not None
        # Half-precision weights are read only where there are phrases: one that is never chosen.
        self._control = self._lm.vocabulary([_CONTROL]) if spec.options else None
        self._corpora: dict[str, Corpus] = {}

    def write(self, request: Request, max_tokens: int) -> Measurement:
        """Continue a prompt by exactly `max_tokens` base tokens."""
        from univerb.decoding.loop import decode_steps

        began = time.perf_counter()
        vocabulary = self._phrases(request) if self._has_phrases else self._control
        if vocabulary is not None:
            self._lm.encode(vocabulary)
        prepare = time.perf_counter() - began
        decoder = decode_steps(
            self._lm,
            [request.ids],
            vocabulary,
            max_tokens=max_tokens,
            ignore_eos=True,
            **self._options,
        )
        stats = decoder.sequences[0].stats
        ids: list[int] = []
        first = 0.0
        for pieces in decoder.steps():
            if pieces and not ids:
                first = time.perf_counter() - began
            ids += [token for _, piece in pieces for token in piece.ids]
        total = time.perf_counter() - began
        return Measurement(
            ids=ids,
            prepare=prepare,
            prefill=stats.prefill_seconds,
            decode=total - prepare - stats.prefill_seconds,
            first=first,
            steps=stats.steps,
            phrases=stats.phrases,
            phrase_tokens=stats.phrase_tokens,
        )

    def _phrases(self, request: Request) -> "DynamicVocabulary":
        """Choose the phrases as `univerb generate` and `univerb answer` do."""
        if request.corpus:
            # The lab's own corpora are built as in the paper, without these guards.
            corpus = self._corpus(request.corpus)
            return corpus.vocabulary(self._lm, request.query, guards=Guards())
        from univerb.applications.citations import citable_phrases
        from univerb.phrases.ngrams import ngrams

        phrases = citable_phrases(request.passages, ngrams(), self._lm.tokenizer)
        vocabulary: DynamicVocabulary = self._lm.vocabulary(phrases)
        return vocabulary

    def _corpus(self, folder: str) -> "Corpus":
        """Open a corpus once; the warm-up does that."""
        from univerb.corpus import open_corpus

        if folder not in self._corpora:
            corpus = self._corpora[folder] = open_corpus(folder)
            if corpus.has_vectors:
                self._lm.attach(corpus)
        return self._corpora[folder]


def _without_phrases(ids: list[int], began: float, first: float, steps: int) -> Measurement:
    """Return the measurement of a request that ends now and had nothing to prepare."""
    prefill, decode = first - began, time.perf_counter() - first
    return Measurement(ids, prepare=0.0, prefill=prefill, decode=decode, first=prefill, steps=steps)


def gguf_precision(path: Path) -> str:
    """Return the quantisation that a GGUF file's name states."""
    match = re.search(r"(?i)\b(i?q\d\w*|b?f16|f32)\b", path.stem)
    return f"GGUF {match[0].upper()}" if match else "GGUF"


def _set_up_torch(threads: int) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
