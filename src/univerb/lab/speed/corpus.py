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
from typing import TypeVar

from univerb.corpus import Corpus, open_corpus
from univerb.corpus.build import build_corpus
from univerb.errors import OptionError
from univerb.lab.speed.timing import Figure, Progress, SpeedTable, spread
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Document

CHUNKS = 32
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
    selected, first, later, again, sizes = (list[float]() for _ in range(5))
    for times in (first, later):
        for query in queries:
            # Nothing is kept of the requests before, as in a process of its own.
            lm.forget()
            milliseconds, vocabulary = _timed(partial(corpus.vocabulary, lm, query, CHUNKS))
            selected.append(milliseconds)
            phrases = vocabulary.snapshot().phrases
            times.append(_timed(partial(lm.vectors, phrases))[0])
            again.append(_timed(partial(lm.vectors, phrases))[0])
            sizes.append(len(phrases))
    stages = {
        "select phrases": selected[len(queries) :],
        "vectors, first request": first,
        "vectors, later process": later,
        "vectors, same process": again[len(queries) :],
    }
    rows: list[tuple[Figure, ...]] = [
        (name, spread(times[1:]), round(_p95(times[1:]), 1)) for name, times in stages.items()
    ]
    about = (
        f"{len(queries) - 1} requests, {CHUNKS} chunks and {round(sum(sizes) / len(sizes)):,} "
        "phrases each; first: what is not stored is encoded; later: it is in the user's cache"
    )
    return SpeedTable("request", about, ("stage", "CPU ms", "p95"), rows)


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = function()
    return 1000 * (time.process_time() - began), result


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
