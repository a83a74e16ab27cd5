"""What every table needs: a model, a scorer, the data, and what was measured before.

Texts, scores and timings are kept below one folder as they come, in files named after everything
that they depend on: a run that was stopped continues, and tables that share texts generate them
once.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from univerb.corpus.corpus import Corpus
from univerb.errors import DocumentError
from univerb.files import atomic_write
from univerb.lab.data import describe_corpus
from univerb.lab.disk_errors import writing
from univerb.lab.metrics.latency import Latency, latency
from univerb.lab.protocols.generation_runner import (
    GREEDY,
    GeneratedText,
    GenerationJob,
    GenerationRunner,
    GenerationTask,
)
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.lab.protocols.passages import (
    ACTS,
    PREFIX,
    TEST_SETS,
    Passage,
    is_held_out,
    read_passages,
)
from univerb.lab.protocols.result_cache import ResultCache, results_key
from univerb.lab.protocols.system_latency import LatencyTimer
from univerb.lab.protocols.text_quality import QualityMeter, TextQuality
from univerb.lab.tables.table_results import Setup
from univerb.modeling.dynamic import DynamicLM

StageProgress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of passages."""

    greedy: int = 200
    nucleus: int = 200
    timed: int = 20
    """Passages that are also generated one at a time, with a clock."""
    uncached: int = 2
    """Timed passages that are timed without a KV cache, too."""


@dataclass(frozen=True, slots=True)
class SystemMeasurements:
    """What was measured of one system on one test set."""

    texts: list[GeneratedText]
    quality: TextQuality
    latency: Latency | None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, and the settings of its measurement."""

    lm: DynamicLM
    scorer: TextScorer
    """Of perplexity, and of MAUVE's features."""
    data: Path | None
    open_corpus: Callable[[str], Corpus | None]
    """Opens `wiki` or `law`, or builds it."""
    folder: Path
    """Keeps texts and measurements."""
    sizes: Sizes = Sizes()
    task: GenerationTask = GenerationTask()
    k: int | None = None
    """Chunks to retrieve for a prefix; by default the paper's number for the test set."""
    training: str = "none"
    """What the LM was fine-tuned on."""
    progress: StageProgress = lambda stage, done, total: None
    facts: dict[str, str] = field(default_factory=dict)
    """To print in every table."""
    _runs: dict[str, "TestSetRun"] = field(default_factory=dict, init=False)

    def on(self, test_set: str) -> "TestSetRun":
        """Return the measurements on a test set, made once."""
        if test_set not in self._runs:
            self._runs[test_set] = TestSetRun(self, test_set)
        return self._runs[test_set]


class TestSetRun:
    """One test set, and everything that is measured on it."""

    __test__ = False
    """Not a test, whatever pytest thinks of its name."""

    def __init__(self, experiment: Experiment, name: str) -> None:
        self._experiment, self.name, self.test_set = experiment, name, TEST_SETS[name]
        lm, limit = experiment.lm, max(experiment.sizes.greedy, experiment.sizes.nucleus)
        self._passages = read_passages(name, experiment.data, lm.tokenizer, limit)
        self.corpus = experiment.open_corpus(self.test_set.corpus)
        if name == ACTS and self.corpus:
            check_held_out(self.corpus)
        self._task = replace(experiment.task, k=experiment.k or self.test_set.k)
        protocol = asdict(self._task) | {"test_set": name, "prefix": PREFIX}
        self._cache = ResultCache(experiment.folder, results_key(lm, self.corpus, protocol))
        self._runner = GenerationRunner(lm, self.corpus, self._task, self._cache)
        progress = self._stage("score")
        self._meter = QualityMeter(experiment.scorer, lm.tokenizer, self._cache, progress)

    def passages(self, decoding: str) -> list[Passage]:
        """Return the passages for a decoding."""
        sizes = self._experiment.sizes
        return self._passages[: sizes.greedy if decoding == GREEDY else sizes.nucleus]

    def generate(
        self, jobs: Sequence[GenerationJob], limit: int | None = None
    ) -> list[list[GeneratedText]]:
        """Return the texts of each job, for at most `limit` passages."""
        texts: dict[str, list[GeneratedText]] = {}
        for decoding in dict.fromkeys(job.decoding for job in jobs):
            together = [job for job in jobs if job.decoding == decoding]
            passages = self.passages(decoding)[:limit]
            progress = self._stage(f"generate, {decoding}")
            generated = self._runner.generate(passages, together, progress)
            texts |= {job.key: new for job, new in zip(together, generated, strict=True)}
        return [texts[job.key] for job in jobs]

    def measure(self, jobs: Sequence[GenerationJob]) -> list[SystemMeasurements]:
        """Generate and measure the texts of each job."""
        all_texts, latencies = self.generate(jobs), self._latencies(jobs)
        measured = []
        for job, texts, seconds in zip(jobs, all_texts, latencies, strict=True):
            quality = self._meter.measure(self.passages(job.decoding), texts)
            measured.append(SystemMeasurements(texts, quality, seconds))
            self._export(job, texts)
        return measured

    def _export(self, job: GenerationJob, texts: Sequence[GeneratedText]) -> None:
        """Write texts where people and judges can read them."""
        decode = self._experiment.lm.tokenizer.decode
        rows = (
            {
                "prompt": decode(passage.prefix),
                "text": text.text,
                "reference": decode(passage.reference),
                "units": text.units,
                "phrase_lengths": text.phrase_lengths,
            }
            for passage, text in zip(self._passages, texts, strict=False)
        )
        folder = self._experiment.folder.parent / "texts"
        name = f"{self.name}, {job.system.name}, {job.decoding}".replace(" ", "_")
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with writing(folder, "Name another --out."):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / f"{name}.jsonl", content)

    def _latencies(self, jobs: Sequence[GenerationJob]) -> Sequence[Latency | None]:
        sizes = self._experiment.sizes
        if not sizes.timed:
            return [None] * len(jobs)
        timer = LatencyTimer(self._experiment.lm, self._runner, self._task, self._cache)
        passages = self._passages[: sizes.timed]
        timings = timer.time(passages, jobs, sizes.uncached, self._stage("time"))
        return [latency(of_job) for of_job in timings]

    def _stage(self, name: str) -> Callable[[int, int], None]:
        return lambda done, total: self._experiment.progress(f"{self.name}: {name}", done, total)

    @property
    def facts(self) -> dict[str, str]:
        """What tables print about the run and its phrases."""
        if self.corpus is None:
            return self._experiment.facts
        about = describe_corpus(self.corpus, False)
        offered = "offered are the phrases of the chunks that the corpus holds, not all n-grams"
        return self._experiment.facts | {"corpus": f"{self.test_set.corpus}: {about}; {offered}"}

    def setup(self, n: int, **changes: Any) -> Setup:  # noqa: ANN401  (fields of different types)
        """Return the settings of measurements on `n` passages, with changes for some of them."""
        experiment, corpus = self._experiment, self.corpus
        lm, scorer = experiment.lm, experiment.scorer.name
        setup = Setup(
            model=lm.model.name_or_path,
            data=self.test_set.about,
            n=n,
            seed=experiment.task.seed,
            training=experiment.training,
            threads=torch.get_num_threads(),
            timed="decode",
            scorer=scorer,
            featuriser=scorer,
            encoder=lm.fingerprint()[:12],
            retriever=corpus.manifest.settings.method if corpus else "",
            documents=self._task.k if corpus else None,
            prefix=PREFIX,
            budget=experiment.task.max_tokens,
            tokenizer=lm.trained_from or lm.model.name_or_path,
            device=str(lm.model.device),
        )
        return replace(setup, **changes)


def check_held_out(corpus: Corpus) -> None:
    """Raise DocumentError if a corpus of law has acts that passages are read from."""
    names = [d["name"] for d in corpus.listed() if is_held_out(d["name"])]
    if names:
        raise DocumentError(
            f"{str(corpus.folder)!r} has {len(names)} acts that passages are read from, such as "
            f"{names[0]!r}. Remove them with `univerb index --remove`, or leave the corpus out: "
            "one is built without them."
        )
