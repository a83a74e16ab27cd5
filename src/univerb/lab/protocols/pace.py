"""How long systems take, one text at a time, in turns (METHOD C.4).

Preparation is what the published figures leave out: retrieval, the choice of phrases and their
vectors. Decoding without a cache, as those figures were made, is timed by reading the units that
were written again: a whole pass for each.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.decoding.results import Generation
from univerb.lab.metrics.latency import Timing
from univerb.lab.protocols.cache import ResultCache
from univerb.lab.protocols.continuations import DECODINGS, Desk, Job, Task
from univerb.lab.protocols.passages import Passage
from univerb.modeling.dynamic import DynamicLM
from univerb.vocabulary import DynamicVocabulary

WARM_UPS = 3
Progress = Callable[[int, int], None]


class Pacer:
    """Times systems.

    Args:
        lm: The model.
        desk: Finds the phrases.
        task: What all systems have in common.
        cache: Where timings are kept, as texts are.
    """

    def __init__(self, lm: DynamicLM, desk: Desk, task: Task, cache: ResultCache) -> None:
        self._lm, self._desk, self._task, self._cache = lm, desk, task, cache

    def time(
        self,
        passages: Sequence[Passage],
        jobs: Sequence[Job],
        uncached: int = 0,
        progress: Progress | None = None,
    ) -> list[list[Timing]]:
        """Time each system on each passage; the systems take turns.

        Args:
            passages: What to go on from.
            jobs: Who writes.
            uncached: Time so many passages without a cache, too.
            progress: Is told how many passages are done, of how many.

        Returns:
            The timings of each job.
        """
        found: list[list[Timing]] = [[] for _ in jobs]
        is_warm = False
        what = f"time, {torch.get_num_threads()} threads, {self._lm.model.device}:"
        for number, passage in enumerate(passages):
            for own, job in zip(found, jobs, strict=True):
                label = f"{what} {'and uncached ' if number < uncached else ''}{job.label}"
                known = self._cache.get(passage.name, label)
                if known is None:
                    is_warm = is_warm or self._warm_up(passages, jobs)
                    known = asdict(self._timed(passage, job, number < uncached))
                    self._cache.put(passage.name, label, known)
                own.append(Timing(**known))
            if progress:
                progress(number + 1, len(passages))
        return found

    def _warm_up(self, passages: Sequence[Passage], jobs: Sequence[Job]) -> bool:
        for passage in passages[-WARM_UPS:]:
            for job in jobs:
                self._timed(passage, job, False)
        return True

    def _timed(self, passage: Passage, job: Job, is_uncached: bool) -> Timing:
        # Vectors that a system before encoded would cost nothing.
        self._lm.forget()
        began = time.perf_counter()
        names, growth = None, None
        if job.writer.has_phrases:
            found = self._desk.phrases(passage, job.writer)
            [names], growth = self._desk.vocabularies([found], job.writer)
        prompt = self._desk.prompt(passage)
        ready = time.perf_counter()
        made = generate(
            self._lm,
            prompt,
            names,
            max_tokens=self._task.max_tokens,
            ignore_eos=True,
            seed=self._task.seed,
            growth=growth,
            # A prefix that was read before would cost nothing.
            prefix_cache=False,
            **{**job.writer.options, **DECODINGS[job.decoding]},
        )
        ended = time.perf_counter()
        # Vectors are made when phrases are first used; those that come later are part of writing.
        encoding = made.stats.encode_seconds - made.stats.growth_seconds
        config = GenerationConfig(**job.writer.options).resolved(self._lm.profile)
        is_atomic = config.mode == "atomic"
        return Timing(
            prepare=ready - began + encoding,
            decode=ended - ready - encoding,
            tokens=made.stats.base_tokens,
            steps=made.stats.units,
            decode_uncached=uncached_seconds(self._lm, prompt, made, names, is_atomic)
            if is_uncached
            else None,
        )


@torch.inference_mode()
def uncached_seconds(
    lm: DynamicLM,
    prefix: Sequence[int],
    made: Generation,
    vocabulary: DynamicVocabulary | None,
    is_atomic: bool,
) -> float:
    """Return what a text would have taken without a cache: for each unit a pass over all before it.

    Args:
        lm: The model.
        prefix: What was given.
        made: What was written.
        vocabulary: The phrases, scored in each pass.
        is_atomic: Whether a phrase is read as one vector; otherwise as its tokens.

    Returns:
        Seconds.
    """
    view = lm.tensors(vocabulary) if vocabulary is not None else None
    rows = _token_rows(lm, prefix)
    total = 0.0
    for piece in made.pieces:
        began = time.perf_counter()
        states = lm.model.base_model(inputs_embeds=rows[None], use_cache=False).last_hidden_state
        lm.embeddings.output(states[:, -1])
        if view is not None:
            states[0, -1] @ view.outputs.T + view.bias
        total += time.perf_counter() - began
        ids = piece.ids[-1:] if is_atomic else piece.ids
        rows = torch.cat([rows, _token_rows(lm, ids)])
    return total


def _token_rows(lm: DynamicLM, ids: Sequence[int]) -> Tensor:
    given = torch.tensor(list(ids), dtype=torch.long, device=lm.model.device)
    vectors: Tensor = lm.embeddings.input(given)
    return vectors
