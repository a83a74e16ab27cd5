"""What every recipe needs: a model, a scorer, the data, and what was measured before.

Texts, scores and timings are kept below one folder as they come, in files named after all that
they depend on: a run that was stopped goes on, and tables that share texts write them once.
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
from univerb.lab.data import describe_corpus
from univerb.lab.metrics.latency import Latency, latency
from univerb.lab.protocols.cache import ResultCache, results_key
from univerb.lab.protocols.continuations import GREEDY, Desk, Job, Task, Text
from univerb.lab.protocols.pace import Pacer
from univerb.lab.protocols.passages import (
    ACTS,
    PREFIX,
    TEST_SETS,
    Passage,
    is_kept_out,
    read_passages,
)
from univerb.lab.protocols.quality import Assessor, Quality
from univerb.lab.protocols.scorers import TextScorer
from univerb.lab.tables.measured import Setup
from univerb.modeling.dynamic import DynamicLM

Tell = Callable[[str, int, int], None]
"""Told the stage, how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    greedy: int = 200
    """Passages."""
    nucleus: int = 200
    timed: int = 20
    """Passages that are also written one at a time, with a clock."""
    uncached: int = 2
    """Passages of these that are timed without a cache, too."""

    def of(self, decoding: str) -> int:
        """Return the number of passages for a decoding."""
        return self.greedy if decoding == GREEDY else self.nucleus


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one system on one test set."""

    passages: list[Passage]
    texts: list[Text]
    quality: Quality
    latency: Latency | None
    single: Latency | None = None
    """The same with weights in single precision, as the LM without phrases has them."""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A model at hand, and how it is measured."""

    lm: DynamicLM
    scorer: TextScorer
    """Of perplexity, and of MAUVE's features."""
    data: Path | None
    open_corpus: Callable[[str], Corpus | None]
    """Opens `wiki` or `law`, or builds it."""
    folder: Path
    """Keeps texts and figures."""
    sizes: Sizes = Sizes()
    task: Task = Task()
    k: int | None = None
    """Chunks that a prefix retrieves; by default as many as the paper takes for the test set."""
    training: str = "none"
    """What the LM was fine-tuned on."""
    tell: Tell = lambda stage, done, total: None
    facts: dict[str, str] = field(default_factory=dict)
    """To print in every table."""
    _benches: dict[str, "Bench"] = field(default_factory=dict, init=False)

    def bench(self, test_set: str) -> "Bench":
        """Return the measurements on a test set, made once."""
        if test_set not in self._benches:
            self._benches[test_set] = Bench(self, test_set)
        return self._benches[test_set]


class Bench:
    """One test set, and everything that is measured on it."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab, self.name, self.about = lab, name, TEST_SETS[name]
        most = max(lab.sizes.greedy, lab.sizes.nucleus)
        self._all = read_passages(name, lab.data, lab.lm.tokenizer, most)
        self.corpus = lab.open_corpus(self.about.corpus)
        if name == ACTS and self.corpus:
            check_kept_out(self.corpus)
        self._task = replace(lab.task, k=lab.k or self.about.k)
        protocol = asdict(self._task) | {"test_set": name, "prefix": PREFIX}
        self._cache = ResultCache(lab.folder, results_key(lab.lm, self.corpus, protocol))
        self._desk = Desk(lab.lm, self.corpus, self._task, self._cache)

    def passages(self, decoding: str) -> list[Passage]:
        """Return the passages for a decoding."""
        return self._all[: self._lab.sizes.of(decoding)]

    def write(self, jobs: Sequence[Job], limit: int | None = None) -> list[list[Text]]:
        """Have systems write, those of one decoding together.

        Args:
            jobs: Who writes, and how.
            limit: Fewer passages than the lab's sizes say.

        Returns:
            The texts of each job.
        """
        found: dict[int, list[Text]] = {}
        for decoding in dict.fromkeys(job.decoding for job in jobs):
            places = [place for place, job in enumerate(jobs) if job.decoding == decoding]
            own = [jobs[place] for place in places]
            passages = self.passages(decoding)[:limit]
            texts = self._desk.write(passages, own, self._stage(f"write, {decoding}"))
            found |= dict(zip(places, texts, strict=True))
        return [found[place] for place in range(len(jobs))]

    def measure(self, jobs: Sequence[Job]) -> list[Figures]:
        """Have systems write, and measure the texts.

        Args:
            jobs: Who writes, and how.

        Returns:
            The figures of each job.
        """
        texts = self.write(jobs)
        timed = self._timed(jobs)
        found = []
        for job, own in zip(jobs, texts, strict=True):
            passages = self.passages(job.decoding)
            quality = self._assessor.assess(passages, own)
            pace, single = timed.get(job.label), timed.get(_in_single(job).label)
            found.append(Figures(passages, own, quality, pace, single))
            self._lay_out(job, own)
        return found

    def _lay_out(self, job: Job, texts: Sequence[Text]) -> None:
        """Write texts where people and `univerb lab judge` can read them."""
        decode = self._lab.lm.tokenizer.decode
        lines = (
            {
                "prompt": decode(passage.prefix),
                "text": text.text,
                "reference": decode(passage.reference),
                "units": text.units,
                "phrase_lengths": text.phrase_lengths,
            }
            for passage, text in zip(self._all, texts, strict=False)
        )
        folder = self._lab.folder.parent / "texts"
        name = f"{self.name}, {job.writer.name}, {job.decoding}".replace(" ", "_")
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.jsonl").write_text(content, encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"texts cannot be written to {str(folder)!r}: {error.strerror}. Name another --out."
            ) from error

    def _timed(self, jobs: Sequence[Job]) -> dict[str, Latency]:
        """Time systems as they are, and those with phrases in single precision besides."""
        sizes = self._lab.sizes
        if not sizes.timed:
            return {}
        pacer = Pacer(self._lab.lm, self._desk, self._task, self._cache)
        passages = self._all[: sizes.timed]
        all_jobs = [*jobs, *(_in_single(job) for job in jobs if job.writer.has_phrases)]
        found = pacer.time(passages, all_jobs, sizes.uncached, self._stage("time"))
        return {job.label: latency(own) for job, own in zip(all_jobs, found, strict=True)}

    @cached_property
    def _assessor(self) -> Assessor:
        lab = self._lab
        return Assessor(lab.scorer, lab.lm.tokenizer, self._cache, self._stage("score"))

    def _stage(self, name: str) -> Callable[[int, int], None]:
        return lambda done, total: self._lab.tell(f"{self.name}: {name}", done, total)

    @property
    def facts(self) -> dict[str, str]:
        """What tables print about the run and its phrases."""
        if self.corpus is None:
            return self._lab.facts
        about = describe_corpus(self.corpus, False)
        offered = "offered are the phrases of the chunks that the corpus holds, not all n-grams"
        return self._lab.facts | {"corpus": f"{self.about.corpus}: {about}; {offered}"}

    def setup(self, n: int, **more: Any) -> Setup:  # noqa: ANN401  (fields of different types)
        """Return what figures on this test set are made with.

        Args:
            n: Passages.
            **more: Other fields, or other values.

        Returns:
            The setup.
        """
        lab, corpus = self._lab, self.corpus
        own: dict[str, Any] = {
            "model": lab.lm.model.name_or_path,
            "data": self.about.about,
            "n": n,
            "seed": lab.task.seed,
            "training": lab.training,
            "threads": torch.get_num_threads(),
            "timed": "decode",
            "scorer": lab.scorer.name,
            "featuriser": lab.scorer.name,
            "encoder": lab.lm.fingerprint()[:12],
            "retriever": corpus.manifest.settings.method if corpus else "",
            "documents": self._task.k if corpus else None,
            "prefix": PREFIX,
            "budget": lab.task.max_tokens,
            "tokenizer": lab.lm.model.name_or_path,
            "device": str(lab.lm.model.device),
        }
        return Setup(**own | more)


def _in_single(job: Job) -> Job:
    """Return a job with the weights of the LM without phrases, which are not made smaller."""
    options = {**job.writer.options, "weights": "single"}
    return replace(job, writer=replace(job.writer, options=options))


def check_kept_out(corpus: Corpus) -> None:
    """Refuse a corpus that has the acts that passages are taken of.

    Args:
        corpus: Of law.

    Raises:
        DocumentError: If it has one.
    """
    known = [one["name"] for one in corpus.listed() if is_kept_out(one["name"])]
    if known:
        raise DocumentError(
            f"{str(corpus.folder)!r} has {len(known)} acts that passages are taken of, such as "
            f"{known[0]!r}. Take them away with `univerb index --remove`, or leave the corpus out: "
            "one is built without them."
        )
