"""The systems that `univerb lab speed` compares, each as a user finds it.

All write greedily, take the end token for one like any other, and write exactly as many base
tokens as they are told. Nothing here imports torch before it is needed: plain llama.cpp runs
without it, and its memory is measured.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from univerb.errors import MissingExtra, ModelMissing, OptionError, did_you_mean
from univerb.lab.speed.workloads import Case
from univerb.locations import DEFAULT_MODEL, default_gguf

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.vocabulary import DynamicVocabulary

HF, LLAMA = "hf", "llama.cpp"
LOOKUP = 10
"""Tokens that prompt lookup guesses at a time."""


@dataclass(frozen=True, slots=True)
class System:
    """A way to write."""

    kind: Literal["hf", "llama.cpp", "univerb"]
    plain: str
    """The system without phrases that it is to be compared with."""
    options: dict[str, Any]
    mode: str | None = None
    """The decode mode; None writes without phrases."""


def _ours(engine: str, plain: str) -> dict[str, System]:
    options = {} if engine == "torch" else {"engine": engine}
    modes = {"plain": None, "unfold": "unfold", "verify": "verify", "atomic": "atomic"}
    return {
        f"univerb-{engine}-{name}": System("univerb", plain, options, mode)
        for name, mode in modes.items()
    }


SYSTEMS: dict[str, System] = {
    HF: System("hf", HF, {"dtype": "float32"}),
    "hf-bf16": System("hf", HF, {"dtype": "bfloat16"}),
    "hf-prompt-lookup": System("hf", HF, {"dtype": "float32", "lookup": LOOKUP}),
    LLAMA: System("llama.cpp", LLAMA, {}),
    **_ours("torch", HF),
    **_ours("llamacpp", LLAMA),
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
    groups = ("univerb", "univerb-torch", "univerb-llamacpp")
    for name in names:
        if name not in SYSTEMS and name not in groups:
            allowed = [*SYSTEMS, *groups]
            raise OptionError(f"there is no system {name!r}. {did_you_mean(name, allowed)}")
    begin = tuple(f"{name}-" for name in names if name in groups)
    return [own for own in SYSTEMS if not names or own in names or own.startswith(begin)]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all systems have in common."""

    model: str
    """Of univerb: a backbone, or an encoder's folder."""
    backbone: str
    threads: int
    context: int
    """Positions that the longest case takes."""
    offline: bool | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What writing cost; all times are seconds."""

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


class Running(Protocol):
    """A system that is loaded."""

    def write(self, case: Case, max_tokens: int) -> Measured:
        """Continue a prompt by so many base tokens."""
        ...


def load_system(name: str, setting: Setting) -> Running:
    """Load a system into this process.

    Args:
        name: One of `SYSTEMS`.
        setting: What all have in common.

    Returns:
        The system, ready to write.

    Raises:
        MissingExtra: If its package is not installed.
        ModelMissing: If it needs a file that the model does not have.
    """
    system = SYSTEMS[name]
    if system.kind == "llama.cpp":
        return LlamaSystem(setting)
    if system.kind == "hf":
        return HFSystem(setting, **system.options)
    return UniverbSystem(setting, system)


class HFSystem:
    """HF `generate`, with the weights that univerb's torch engine reads."""

    def __init__(self, setting: Setting, dtype: str, lookup: int | None = None) -> None:
        _set_up_torch(setting.threads)
        from univerb.modeling.backbones import load_backbone

        self._model: Any = load_backbone(setting.backbone, dtype=dtype, offline=setting.offline)[0]
        # No end token: each system writes as many tokens as it is told.
        self._model.generation_config.eos_token_id = None
        self._options = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        self._passes: list[float] = []
        self._model.register_forward_hook(lambda *_: self._passes.append(time.perf_counter()))

    def write(self, case: Case, max_tokens: int) -> Measured:
        """Continue a prompt by so many base tokens."""
        import torch

        self._passes.clear()
        began = time.perf_counter()
        prompt = torch.tensor([case.ids])
        written = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            **self._options,
        )
        ids = written[0, len(case.ids) :].tolist()
        ended, first = time.perf_counter(), self._passes[0]
        return Measured(
            ids=ids,
            prepare=0.0,
            prefill=first - began,
            decode=ended - first,
            first=first - began,
            steps=len(self._passes) - 1,
        )


class LlamaSystem:
    """Plain llama.cpp through llama-cpp-python's own loop, on the GGUF file of the default model.

    It keeps what it has read and reads only what differs from the last prompt, as it does by
    default.
    """

    def __init__(self, setting: Setting) -> None:
        try:
            from llama_cpp import Llama
        except ImportError:
            raise MissingExtra("llama-cpp-python", "llamacpp") from None
        path = default_gguf() if setting.backbone == DEFAULT_MODEL else None
        if path is None:
            raise ModelMissing(
                f"{Path(setting.backbone).name!r} has no GGUF file here. Use {DEFAULT_MODEL!r}."
            )
        self._llama: Any = Llama(
            str(path),
            n_ctx=setting.context,
            n_threads=setting.threads,
            n_threads_batch=setting.threads,
            logits_all=False,
            verbose=False,
        )

    def write(self, case: Case, max_tokens: int) -> Measured:
        """Continue a prompt by so many base tokens."""
        began = time.perf_counter()
        written = self._llama.generate(list(case.ids), temp=0.0)
        ids = [next(written)]
        first = time.perf_counter()
        ids += [next(written) for _ in range(max_tokens - 1)]
        ended = time.perf_counter()
        written.close()
        return Measured(
            ids=ids,
            prepare=0.0,
            prefill=first - began,
            decode=ended - first,
            first=first - began,
            steps=max_tokens - 1,
        )


class UniverbSystem:
    """univerb with one engine in one mode, or without phrases."""

    def __init__(self, setting: Setting, system: System) -> None:
        from univerb.loading import load

        options = dict(system.options)
        if options:
            options["threads"] = setting.threads
        else:
            _set_up_torch(setting.threads)
        self._lm: Any = load(setting.model, offline=setting.offline, **options)
        self._mode = system.mode
        self._corpora: dict[str, Corpus] = {}

    def write(self, case: Case, max_tokens: int) -> Measured:
        """Continue a prompt by so many base tokens."""
        from univerb.decoding.loop import decode_steps

        options: Any = {"mode": self._mode} if self._mode else {}
        began = time.perf_counter()
        vocabulary = self._phrases(case) if self._mode else None
        prepare = time.perf_counter() - began
        decoder = decode_steps(
            self._lm, [case.ids], vocabulary, max_tokens=max_tokens, ignore_eos=True, **options
        )
        stats = decoder.sequences[0].stats
        written: list[int] = []
        first = 0.0
        for pieces in decoder.steps():
            if pieces and not written:
                first = time.perf_counter() - began
                # Vectors are made when phrases are first used; looking for new ones is decoding.
                prepare += stats.encode_seconds
            written += [token for _, piece in pieces for token in piece.ids]
        total = time.perf_counter() - began
        return Measured(
            ids=written,
            prepare=prepare,
            prefill=stats.prefill_seconds,
            decode=total - prepare - stats.prefill_seconds,
            first=first,
            steps=stats.steps,
            phrases=stats.phrases,
            phrase_tokens=stats.phrase_tokens,
        )

    def _phrases(self, case: Case) -> "DynamicVocabulary":
        """Choose the phrases as `univerb generate` and `univerb answer` do."""
        if case.corpus:
            return self._corpus(case.corpus).vocabulary(self._lm, case.query)
        from univerb.applications.citations import citable_phrases
        from univerb.phrases.ngrams import ngrams

        found = citable_phrases(case.passages, ngrams(), self._lm.tokenizer)
        vocabulary: DynamicVocabulary = self._lm.vocabulary(found)
        return vocabulary

    def _corpus(self, folder: str) -> "Corpus":
        """Open a corpus once; the warm-up does that."""
        from univerb.corpus import open_corpus

        if folder not in self._corpora:
            corpus = self._corpora[folder] = open_corpus(folder)
            if corpus.has_vectors:
                self._lm.attach(corpus)
        return self._corpora[folder]


def _set_up_torch(threads: int) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
