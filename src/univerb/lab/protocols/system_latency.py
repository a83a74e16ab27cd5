"""Times systems, one text at a time, in turns (docs/method.md, Metrics: latency).

All systems compute in single precision: the LM without phrases does so, whatever the profile says.
Preparation is what the published values leave out: retrieval, the choice of phrases and their
vectors. Decoding without a cache, as those values were measured, is timed by reading the generated
units again: a whole pass for each.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.decoding.results import Generation
from univerb.lab.metrics.latency import Timing
from univerb.lab.protocols.generation_runner import (
    GenerationJob,
    GenerationRunner,
    GenerationTask,
    Progress,
)
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache
from univerb.modeling.dynamic import DynamicLM
from univerb.vocabulary import DynamicVocabulary

WARM_UPS = 3


class LatencyTimer:
    """Times systems; the runner retrieves their phrases, and timings are kept as texts are."""

    def __init__(
        self, lm: DynamicLM, runner: GenerationRunner, task: GenerationTask, cache: ResultCache
    ) -> None:
        self._lm, self._runner, self._task, self._cache = lm, runner, task, cache

    def time(
        self,
        passages: Sequence[Passage],
        jobs: Sequence[GenerationJob],
        uncached: int = 0,
        progress: Progress | None = None,
    ) -> list[list[Timing]]:
        """Time each system on each passage, and return the timings of each; systems take turns.

        The first `uncached` passages are timed without a KV cache, too.
        """
        timings: list[list[Timing]] = [[] for _ in jobs]
        is_warm = False
        machine = f"time, {torch.get_num_threads()} threads, {self._lm.model.device}:"
        for number, passage in enumerate(passages):
            is_uncached = number < uncached
            for of_job, job in zip(timings, jobs, strict=True):
                key = f"{machine} {'and uncached ' if is_uncached else ''}{job.key}"
                if self._cache.get(passage.name, key) is None:
                    is_warm = is_warm or self._warm_up(passages, jobs)
                    timing = self._timed(passage, job, is_uncached)
                    self._cache.put(passage.name, key, asdict(timing))
                of_job.append(Timing(**self._cache.get(passage.name, key)))
            if progress:
                progress(number + 1, len(passages))
        return timings

    def _warm_up(self, passages: Sequence[Passage], jobs: Sequence[GenerationJob]) -> bool:
        for passage in passages[-WARM_UPS:]:
            for job in jobs:
                self._timed(passage, job, is_uncached=False)
        return True

    def _timed(self, passage: Passage, job: GenerationJob, is_uncached: bool) -> Timing:
        lm = self._runner.lm_of(job.system)
        # Vectors that another system encoded would cost nothing.
        lm.forget()
        began = time.perf_counter()
        vocabulary, growth = None, None
        if job.system.has_phrases:
            phrases = self._runner.phrases(passage, job.system)
            [vocabulary], growth = self._runner.vocabularies([phrases], job.system)
        prompt = self._runner.prompt(passage)
        ready = time.perf_counter()
        generation = generate(
            lm,
            prompt,
            vocabulary,
            max_tokens=self._task.max_tokens,
            overshoot=self._task.overshoot,
            ignore_eos=True,
            seed=self._task.seed,
            growth=growth,
            **{**job.options, "dtype": "float32"},
        )
        ended = time.perf_counter()
        stats = generation.stats
        # Vectors are made when phrases are first used; those added later are part of decoding.
        encoding = stats.encode_seconds - stats.growth_seconds
        without_cache = None
        if is_uncached:
            config = GenerationConfig(**job.system.options).resolved(lm.profile)
            is_atomic = config.mode == "atomic"
            without_cache = uncached_seconds(lm, prompt, generation, vocabulary, is_atomic)
        return Timing(
            prepare=ready - began + encoding,
            decode=ended - ready - encoding,
            tokens=stats.base_tokens,
            steps=stats.units,
            decode_uncached=without_cache,
        )


@torch.inference_mode()
def uncached_seconds(
    lm: DynamicLM,
    prompt: Sequence[int],
    generation: Generation,
    vocabulary: DynamicVocabulary | None,
    is_atomic: bool,
) -> float:
    """Return the seconds for a text without a KV cache: for each unit a pass over all before it.

    All phrases are scored in each pass. If `is_atomic`, a phrase is read as one vector, otherwise
    as its tokens.
    """
    table = lm.tensors(vocabulary) if vocabulary is not None else None
    rows, seconds = _token_rows(lm, prompt), 0.0
    for piece in generation.pieces:
        began = time.perf_counter()
        states = lm.model.base_model(inputs_embeds=rows[None], use_cache=False).last_hidden_state
        logits = lm.embeddings.output(states[:, -1])
        if table is not None:
            table.unit_logits(logits, states[:, -1])
        if rows.device.type != "cpu":
            torch.accelerator.synchronize(rows.device)
        seconds += time.perf_counter() - began
        ids = piece.ids[-1:] if is_atomic else piece.ids
        rows = torch.cat([rows, _token_rows(lm, ids)])
    return seconds


def _token_rows(lm: DynamicLM, ids: Sequence[int]) -> Tensor:
    tokens = torch.tensor(list(ids), dtype=torch.long, device=lm.model.device)
    vectors: Tensor = lm.embeddings.input(tokens)
    return vectors
