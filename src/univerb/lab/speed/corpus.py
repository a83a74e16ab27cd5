"""A corpus timed by itself: what building costs, and what a request takes from it.

CPU time of the process, all threads: what other work a machine has then matters little.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple, TypeVar

from univerb.corpus import Corpus, open_corpus
from univerb.corpus.build import build_corpus
from univerb.errors import OptionError
from univerb.lab.speed.timing import Figure, Progress, SpeedTable, spread
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Document

CHUNKS = 32
OTHERS = 5
"""Requests that also have phrases that are not stored: each encodes thousands."""
T = TypeVar("T")


def time_corpus(
    lm: PhraseModel,
    documents: Sequence[Document],
    queries: Sequence[str],
    corpus: Path | None = None,
    progress: Progress | None = None,
) -> list[SpeedTable]:
    """Build a corpus with vectors, and select phrases from it.

    Args:
        lm: Its encoder makes the vectors.
        documents: What to index.
        queries: Each is a request; the first is a warm-up.
        corpus: One that exists; then nothing is built.
        progress: Called while the corpus is built.

    Returns:
        What the corpus is, and what a request costs.
    """
    with tempfile.TemporaryDirectory() as folder, _own_cache(folder):
        began = time.process_time()
        path = corpus or Path(folder) / "corpus.uv"
        if corpus is None:
            if not isinstance(lm, DynamicLM):
                raise OptionError("a corpus is built with the torch engine. Leave --engine out.")
            build_corpus(path, documents, lm, progress=progress)
        built = time.process_time() - began
        opened = open_corpus(path)
        lm.attach(opened)
        return [_facts(opened, None if corpus else built), _requests(lm, opened, queries)]


@contextmanager
def _own_cache(folder: str) -> Iterator[None]:
    """Let requests find no vectors that others had to encode."""
    before = os.environ.get("UNIVERB_CACHE")
    os.environ["UNIVERB_CACHE"] = folder
    try:
        yield
    finally:
        os.environ.pop("UNIVERB_CACHE")
        os.environ.update({"UNIVERB_CACHE": before} if before is not None else {})


def _facts(corpus: Corpus, seconds: float | None) -> SpeedTable:
    manifest = corpus.manifest
    size = sum(file.stat().st_size for file in corpus.folder.rglob("*") if file.is_file())
    rows: list[tuple[Figure, ...]] = [
        ("text, million characters", manifest.characters / 1e6),
        ("chunks", manifest.chunks),
        ("phrases", manifest.phrase_count),
        ("stored vectors", int((corpus.phrases.rows >= 0).sum())),
        ("CPU seconds", None if seconds is None else round(seconds, 1)),
        ("megabytes on disk", round(size / 1e6, 1)),
    ]
    return SpeedTable("build", "one process, vectors included", ("what", "figure"), rows)


def _requests(lm: PhraseModel, corpus: Corpus, queries: Sequence[str]) -> SpeedTable:
    stored, few = (_Requests(lm, corpus, q) for q in (queries, queries[: 1 + OTHERS]))
    first = stored.times(others=False)
    with_others = few.times(others=True)
    later = few.times(others=True)
    stages = {
        "select phrases": first.select,
        "their vectors": first.vectors,
        "select phrases, with others": with_others.select,
        "their vectors, first request": with_others.vectors,
        "their vectors, later process": later.vectors,
    }
    rows: list[tuple[Figure, ...]] = [
        (name, spread(times[1:]), round(_p95(times[1:]), 1)) for name, times in stages.items()
    ]
    about = (
        f"{len(queries) - 1} requests, {CHUNKS} chunks and {first.phrases:,} phrases each; with "
        f"others {len(few.queries) - 1} requests, {with_others.phrases:,} phrases each, encoded "
        "by the first and found in the user's cache later"
    )
    return SpeedTable("request", about, ("stage", "CPU ms", "p95"), rows)


class _Times(NamedTuple):
    """Milliseconds of each request, and the number of phrases of one."""

    select: list[float]
    vectors: list[float]
    phrases: int


class _Requests(NamedTuple):
    lm: PhraseModel
    corpus: Corpus
    queries: Sequence[str]

    def times(self, others: bool) -> _Times:
        select, vectors, total = list[float](), list[float](), 0
        for query in self.queries:
            # Nothing is left of the requests before, as in a process of its own.
            self.lm.forget()
            search = partial(self.corpus.select, query, self.lm.tokenizer, CHUNKS, others=others)
            milliseconds, selection = _timed(search)
            select.append(milliseconds)
            vectors.append(_timed(partial(self.lm.vectors, selection.phrases))[0])
            total += len(selection.phrases)
        return _Times(select, vectors, total // len(self.queries))


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = function()
    return 1000 * (time.process_time() - began), result


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
