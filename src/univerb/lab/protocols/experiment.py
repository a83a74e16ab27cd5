"""What every table needs: a model, a scorer, the data, and what was measured before.

Texts, scores and timings are kept below one folder as they come, in files named after everything
that they depend on: a run that was stopped continues, and tables that share texts generate them
once.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from univerb.corpus.corpus import Corpus
from univerb.errors import DocumentError, OptionError
from univerb.files import atomic_write
from univerb.lab.data import describe_corpus
from univerb.lab.disk_errors import writing
from univerb.lab.metrics.latency import Latency, latency
from univerb.lab.protocols.featuriser import Featuriser
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
from univerb.lab.protocols.result_cache import ResultCache, results_key, weights_hash
from univerb.lab.protocols.system_latency import LatencyTimer
from univerb.lab.protocols.text_quality import QualityMeter, TextQuality
from univerb.lab.tables.table_results import Setup
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.hf_inputs import device_name, short_name

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
    """Of perplexity."""
    featuriser: Featuriser | None = None
    """Of MAUVE's features; without one, MAUVE is not measured."""
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
    bare: DynamicLM | None = None
    """The backbone as it was before that; None if it is the model at hand, or not known."""
    transformer: DynamicLM | None = None
    """An LM that was fine-tuned without phrases, apart from the model at hand."""
    progress: StageProgress = lambda stage, done, total: None
    facts: dict[str, str] = field(default_factory=dict)
    """To print in every table."""
    _runs: dict[str, "TestSetRun"] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for lm in (self.bare, self.transformer):
            if lm and lm.tokenizer.fingerprint() != self.lm.tokenizer.fingerprint():
                raise OptionError(
                    f"{lm.name!r} has another tokenizer than {self.lm.name!r}, so their texts have "
                    "other lengths. Give an LM that was trained from the same backbone."
                )

    @property
    def is_tuned(self) -> bool:
        """Whether the LM itself was trained, not only its encoder."""
        return self.training != "none"

    @cached_property
    def others(self) -> dict[str, DynamicLM]:
        """The LMs besides the model at hand, by a hash of their weights."""
        lms = [lm for lm in (self.bare, self.transformer) if lm]
        return {weights_hash(lm.model): lm for lm in lms}

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
        self._set = read_passages(name, experiment.data, lm.tokenizer, limit)
        self._passages = self._set.passages
        self.corpus = experiment.open_corpus(self.test_set.corpus)
        if name == ACTS and self.corpus:
            check_held_out(self.corpus)
        self._task = replace(experiment.task, k=experiment.k or self.test_set.k)
        protocol = asdict(self._task) | {"test_set": name, "prefix": PREFIX}
        self._cache = ResultCache(experiment.folder, results_key(lm, self.corpus, protocol))
        others = experiment.others
        self._runner = GenerationRunner(lm, self.corpus, self._task, self._cache, others)
        models, progress = (experiment.scorer, experiment.featuriser), self._stage("score")
        self._meter = QualityMeter(*models, lm.tokenizer, self._cache, progress)

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
        experiment = self._experiment
        scorer, featuriser = experiment.scorer, experiment.featuriser
        is_own = scorer.weights == weights_hash(experiment.lm.model)
        facts = experiment.facts | {
            "passages": str(self._set),
            "scorer = generator": "yes: the LM judges its own texts" if is_own else "no",
            "PPL": f"{scorer.name}, {scorer.precision}",
        }
        if featuriser:
            about = f"{featuriser.name}, {featuriser.precision}, {featuriser.pooling}"
            facts["MAUVE"] = about
        if self.corpus is None:
            return facts
        about = describe_corpus(self.corpus, False)
        return facts | {"corpus": f"{self.test_set.corpus}: {about}"}

    @property
    def _offered(self) -> str:
        assert self.corpus is not None
        if self._task.offered == "stored":
            return "those that the corpus holds"
        return "all n-grams of {}-{} tokens".format(*self.corpus.manifest.settings.sizes)

    def setup(self, n: int, **changes: Any) -> Setup:  # noqa: ANN401  (fields of different types)
        """Return the settings of measurements on `n` passages, with changes for some of them."""
        experiment, corpus = self._experiment, self.corpus
        lm = experiment.lm
        setup = Setup(
            model=short_name(lm.model.name_or_path),
            data=self.test_set.about,
            n=n,
            seed=experiment.task.seed,
            training=experiment.training,
            threads=torch.get_num_threads(),
            timed="decode",
            scorer=experiment.scorer.name,
            featuriser=experiment.featuriser.name if experiment.featuriser else "",
            encoder=lm.fingerprint()[:12],
            retriever=corpus.manifest.settings.method if corpus else "",
            documents=self._task.k if corpus else None,
            phrases=self._offered if corpus else "",
            prefix=PREFIX,
            budget=experiment.task.max_tokens,
            tokenizer=short_name(lm.trained_from or lm.model.name_or_path),
            device=device_name(lm.model.device),
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
