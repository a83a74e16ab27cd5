"""Models that are ready to write, and the systems that run on them.

All systems decode greedily, under the same repetition control, ignore the end token and write
exactly the requested number of base tokens. Nothing is taken over from one request to the next:
neither prefixes nor phrase vectors.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy

from univerb.config import GenerationConfig
from univerb.decoding.repetition import WrittenNGrams, repeated_tokens
from univerb.engines.base import Floats
from univerb.engines.factory import engine_of
from univerb.engines.row_costs import assume
from univerb.errors import MissingExtra, ModelMissing, OptionError
from univerb.lab.speed.simulation import free_rows
from univerb.lab.speed.systems import (
    HALF,
    LOOKUP_NGRAM,
    LOOKUP_TOKENS,
    SINGLE,
    HostName,
    Measurement,
    SystemSettings,
    SystemSpec,
)
from univerb.lab.speed.workloads import Request
from univerb.locations import default_gguf
from univerb.phrase import Document


def load_host(name: HostName, settings: SystemSettings) -> "UniverbHost | LlamaCppPythonHost":
    """Load a model into this process.

    Args:
        name: Which one.
        settings: What all systems have in common.

    Returns:
        The model, ready to write.

    Raises:
        ModelMissing: If it needs a file that is not here.
    """
    from univerb.loading import load

    if name == "llama-cpp-python":
        return LlamaCppPythonHost(settings)
    options: dict[str, Any] = {"threads": settings.threads, "offline": settings.offline}
    if name.startswith("llamacpp"):
        options["engine"] = "llamacpp"
    if name.endswith("no-encoder"):
        options["encoder"] = False
    if name.endswith("as-shipped"):
        options["gguf"] = str(_shipped_gguf())
    return UniverbHost(load(settings.model, **options), settings.no_repeat_ngram_size)


class UniverbHost:
    """An LM of univerb's, with either engine."""

    def __init__(
        self,
        lm: Any,  # noqa: ANN401  (a PhraseModel with its engine's parts)
        no_repeat_ngram_size: int = 0,
    ) -> None:
        self._lm = lm
        self._no_repeat = no_repeat_ngram_size
        self._is_torch = lm.engine == "torch"
        costs = engine_of(lm).row_costs(GenerationConfig(dtype=SINGLE))
        self.row_costs = repr(costs)
        """What drafts are chosen by."""
        self.weights = "" if self._is_torch else gguf_precision(lm.gguf.path)

    def write(self, spec: SystemSpec, request: Request) -> Measurement:
        """Continue a prompt by exactly as many base tokens as the request says."""
        if spec.way == "hf":
            from univerb.lab.speed.hf_model import HFModel

            return HFModel(self._lm, spec, self._no_repeat).write(request)
        with ExitStack() as stack:
            if self._is_torch and spec.dtype == HALF:
                stack.enter_context(_half_precision())
            if spec.width:
                stack.enter_context(assume(free_rows(spec.width)))
            write = self._session if spec.way == "session" else self._decode
            return write(spec, request)

    def _session(self, spec: SystemSpec, request: Request) -> Measurement:
        """Decode without phrases: one pass after the other over a session, drafts or none."""
        config = GenerationConfig(dtype=SINGLE, prefix_cache=False)
        # torch has its prepacked kernels only where there are phrases.
        engine = engine_of(self._lm)
        session = engine.session(config, has_phrases=self._is_torch, needs_states=False)
        began = time.perf_counter()
        [output] = session.prefill([request.ids])
        ids = [self._best(output.logits[-1], request.ids)]
        first = time.perf_counter()
        pass_rows: list[int] = []
        written = WrittenNGrams(self._no_repeat) if self._no_repeat else None
        while len(ids) < request.max_tokens:
            room = request.max_tokens - len(ids) - 1
            draft = prompt_lookup([*request.ids, *ids], written)[:room] if spec.lookup else []
            [output] = session.step([[ids[-1], *draft]])
            accepted = 0
            for logits, drafted in zip(output.logits, [*draft, None], strict=True):
                ids.append(self._best(logits, [*request.ids, *ids]))
                if ids[-1] != drafted:
                    break
                accepted += 1
            session.rewind([len(draft) - accepted])
            pass_rows.append(len(draft) + 1)
        return Measurement.plain(ids, began, first, pass_rows)

    def _best(self, logits: Floats, ids: Sequence[int]) -> int:
        """Return the best token that may follow."""
        if self._no_repeat:
            logits = logits.copy()
            logits[list(repeated_tokens(list(ids), self._no_repeat))] = -numpy.inf
        return int(logits.argmax())

    def _decode(self, spec: SystemSpec, request: Request) -> Measurement:
        """Decode with phrases, as `univerb generate` does."""
        from univerb.decoding.loop import decode_steps

        chunks = enumerate(request.passages)
        documents = [Document(chunk.text, f"{number} {chunk.document}") for number, chunk in chunks]
        vocabulary = self._lm.vocabulary(documents)
        # What another system had encoded would cost this one nothing.
        self._lm._cache.clear()
        options: dict[str, Any] = {"dtype": SINGLE} if self._is_torch else {}
        began = time.perf_counter()
        decoder = decode_steps(
            self._lm,
            [request.ids],
            vocabulary,
            mode=spec.mode,
            max_tokens=request.max_tokens,
            ignore_eos=True,
            prefix_cache=False,
            drafts=True,
            no_repeat_ngram_size=self._no_repeat,
            **options,
        )
        stats = decoder.sequences[0].stats
        ids: list[int] = []
        for pieces in decoder.steps():
            ids += [token for _, piece in pieces for token in piece.ids]
        total = time.perf_counter() - began
        return Measurement(
            ids=ids,
            encode=stats.encode_seconds,
            prefill=stats.prefill_seconds,
            decode=total - stats.encode_seconds - stats.prefill_seconds,
            pass_rows=stats.pass_rows,
            phrases=stats.phrases,
            phrase_tokens=stats.phrase_tokens,
        )


class LlamaCppPythonHost:
    """llama-cpp-python's own loop with its own n-gram drafts, on the file that univerb reads."""

    def __init__(self, settings: SystemSettings) -> None:
        if settings.no_repeat_ngram_size:
            raise OptionError("llama-cpp-python has no no_repeat_ngram_size.")
        try:
            from llama_cpp import Llama
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
        except ImportError:
            raise MissingExtra("llama-cpp-python", "llamacpp-native") from None
        from univerb.loading import load

        path = load(settings.model, engine="llamacpp", offline=settings.offline).gguf.path
        self.weights = gguf_precision(path)
        self.row_costs = "none: it always drafts as much"
        self._llama: Any = Llama(
            str(path),
            n_ctx=settings.context,
            n_threads=settings.threads,
            n_threads_batch=settings.threads,
            draft_model=LlamaPromptLookupDecoding(LOOKUP_NGRAM, LOOKUP_TOKENS),
            verbose=False,
        )
        self._rows: list[int] = []
        evaluate = self._llama.eval

        def counted(tokens: Sequence[int]) -> None:
            self._rows.append(len(tokens))
            evaluate(tokens)

        self._llama.eval = counted

    def write(self, spec: SystemSpec, request: Request) -> Measurement:
        """Continue a prompt by exactly as many base tokens as the request says."""
        self._rows.clear()
        self._llama.reset()
        began = time.perf_counter()
        written = self._llama.generate(list(request.ids), temp=0.0)
        ids = [next(written)]
        first = time.perf_counter()
        ids += [next(written) for _ in range(request.max_tokens - 1)]
        measurement = Measurement.plain(ids, began, first, self._rows[1:])
        written.close()
        return measurement


def prompt_lookup(text: Sequence[int], written: WrittenNGrams | None = None) -> list[int]:
    """Return what followed the last tokens of a text where they occurred first (HF, llama.cpp).

    Under repetition control, whose n-grams `written` has, it ends before a token that would be
    masked, and where nothing is left of it the next occurrence is taken, as in HF.
    """
    ids = numpy.asarray(text)
    if written:
        written.update(text)
    for size in range(min(LOOKUP_NGRAM, len(ids) - 1), 0, -1):
        # The text's end is no occurrence: nothing follows it.
        windows = numpy.lib.stride_tricks.sliding_window_view(ids[:-1], size)
        matches = numpy.flatnonzero((windows == ids[-size:]).all(axis=1))
        for begin in (matches + size).tolist():
            draft = list(text[begin : begin + LOOKUP_TOKENS])
            if allowed := written.count_new(draft) if written else len(draft):
                return draft[:allowed]
    return []


def gguf_precision(path: Path) -> str:
    """Return the quantisation that a GGUF file's name states."""
    match = re.search(r"(?i)\b(i?q\d\w*|b?f16|f32)\b", path.stem)
    return match[0].upper() if match else "GGUF"


@contextmanager
def _replaced(owner: object, **values: object) -> Iterator[None]:
    before = {name: vars(owner)[name] for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _half_precision() -> Any:  # noqa: ANN401  (a context manager)
    """Let every session read half-precision weights, those of `verify` and plain text, too."""
    from univerb.engines.torch import prepacked, session

    return _replaced(session, prepacked_model=lambda lm, _: prepacked.prepacked_model(lm, HALF))


def _shipped_gguf() -> Path:
    path = default_gguf()
    if path is None:
        raise ModelMissing("the default model's GGUF file is not installed: univerb setup.")
    return path
