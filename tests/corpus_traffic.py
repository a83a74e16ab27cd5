"""Readers of a corpus in processes of their own, while writers change it."""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy

from conftest import TEXT
from univerb.corpus import Corpus, encode, open_corpus, shards
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

QUERY = "tenant landlord rent clause"


def document(number: int) -> Document:
    return Document(f"{TEXT} Clause {number} of {number}: {'rent ' * (number % 7)}", f"d{number}")


def parts(corpus: Corpus) -> dict[str, Callable[[], Any]]:
    """Return everything that reads files, each of which may be the first to touch its own."""
    every = numpy.arange(len(corpus.phrases))
    return {
        "search": lambda: len(corpus.search(QUERY, 5)),
        "documents": lambda: len(list(corpus.documents())) - corpus.manifest.documents,
        "vectors": lambda: len(corpus.vectors(corpus.phrases.ids(every))[0]) - len(every),
        "listed": lambda: len(corpus.listed()) - corpus.manifest.documents,
        "verify": lambda: corpus.verify() and 0,
    }


def read(folder: Path, end: Event, seed: int, results: Any, holds: bool) -> None:
    """Read until the end: a corpus that is opened each time, or one that is held for long."""
    choose, counts = random.Random(seed), Counter()
    while not end.is_set() or not counts["reads"]:
        try:
            corpus = open_corpus(folder)
            for _ in range(choose.randrange(5, 40) if holds else 1):
                name, part = choose.choice(list(parts(corpus).items()))
                answer = part()
                assert answer == 0 or name == "search" and answer == 5, (name, answer)
                counts["reads"] += 1
                time.sleep(choose.random() / 20 if holds else 0)
            counts["opened"] += 1
        except Exception as error:
            counts[f"failed: {type(error).__name__} {error}"] += 1
    results.put(counts)


def write(folder: Path, lm: DynamicLM, end: Event, seed: int, results: Any) -> None:
    """Add, replace and remove documents until the end."""
    shards.SHARD_CHARACTERS, encode.BATCH = 900, 32
    choose, counts = random.Random(seed), Counter()
    # A loaded machine may take longer: at least one change of each kind.
    while not end.is_set() or not (counts["added"] and counts["removed"]):
        try:
            builder = CorpusBuilder(folder, lm.tokenizer, lm=lm)
            if choose.random() < 0.5:
                builder.add([document(choose.randrange(5, 15))])
                counts["added"] += 1
            else:
                names = [d["name"] for d in open_corpus(folder).listed()]
                builder.remove(choose.sample([n for n in names if int(n[1:]) > 4], 1))
                counts["removed"] += 1
        except (CorpusError, ValueError) as error:
            if isinstance(error, CorpusError) and "being written" not in str(error):
                counts[f"failed: {type(error).__name__} {error}"] += 1
        except Exception as error:
            # Another writer has removed it first.
            if "has no document" not in str(error):
                counts[f"failed: {type(error).__name__} {error}"] += 1
        time.sleep(choose.random() / 50)
    results.put(counts)


def traffic(folder: Path, lm: DynamicLM, readers: int, writers: int, seconds: float) -> Counter:
    """Let readers and writers work on one corpus for a while; return what they did, added up."""
    settings = CorpusSettings(max_words=20, sizes=(2, 4))
    build_corpus(folder, [document(number) for number in range(8)], lm, settings)
    context = multiprocessing.get_context("fork")
    end, results = context.Event(), context.Queue()
    reading = [
        context.Process(target=read, args=(folder, end, seed, results, seed % 2 == 0))
        for seed in range(readers)
    ]
    writing = [
        context.Process(target=write, args=(folder, lm, end, 100 + seed, results))
        for seed in range(writers)
    ]
    for process in (*reading, *writing):
        process.start()
    time.sleep(seconds)
    end.set()
    total: Counter = sum((results.get(timeout=600) for _ in (*reading, *writing)), Counter())
    for process in (*reading, *writing):
        process.join(60)
    return total
