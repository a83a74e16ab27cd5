"""Documents to phrases at scale: mining, matching, building a corpus, answering a request from it.

    python benchmarks/corpus.py                  all sections; writes benchmarks/results/corpus.*
    python benchmarks/corpus.py --only request   one section; the others keep their last figures

CPU seconds (user and system, children included) are the figures to trust; one thread each. The
corpus is 1,018 EU acts. `request` needs a corpus with vectors, built once by `build --vectors`
into --folder and kept there.
"""

import argparse
import gzip
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.progress import track

import univerb
from report import DATA, machine, need_data, read_report, write_report
from univerb.corpus import open_corpus
from univerb.corpus.build import Builder
from univerb.corpus.manifest import Settings
from univerb.documents.read import read_documents
from univerb.parallel import local_workers
from univerb.phrase import Document
from univerb.phrases.fmm import FMMTable, words_of
from univerb.phrases.hashing import KeyIndex
from univerb.phrases.mining import count_ngrams
from univerb.phrases.tokens import END, START, Run, tokens
from univerb.tokenizer import Tokenizer

WIKITEXT_103 = 540_000_000
PAPER_HOURS = 15
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["mining", "build", "request"], action="append")
    parser.add_argument("--folder", type=Path, default=Path("law.uv"))
    parser.add_argument("--max-phrases", type=int, default=1_000_000)
    arguments = parser.parse_args()
    need_data("law/eurlex.jsonl.gz")
    torch.set_num_threads(1)
    report = read_report("corpus")
    for section in arguments.only or ["mining", "build", "request"]:
        print(f"\n== {section}")
        measured = {
            "mining": mining,
            "build": build,
            "request": lambda: request(arguments.folder, arguments.max_phrases),
        }[section]()
        report[section] = {"machine": machine(), **measured}
        print(json.dumps(measured, indent=2))
        write_report("corpus", "Corpus: mining, building, requests", "benchmarks/corpus.py", report)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def best(work: Any, rounds: int = ROUNDS) -> float:  # noqa: ANN401
    """Return the CPU seconds of the fastest of some runs, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times[1:])


def acts(characters: int) -> list[Document]:
    found: list[Document] = []
    with gzip.open(DATA / "law" / "eurlex.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if sum(len(d.text) for d in found) >= characters:
                break
            row = json.loads(line)
            found.append(Document(row["text"], row["celex"]))
    return found


def tokenizer() -> Tokenizer:
    return univerb.load().tokenizer


def mining() -> dict[str, Any]:
    """Counting and matching on 20 MB of law, one thread, the tokens given."""
    documents = acts(20_000_000)
    characters = sum(len(document.text) for document in documents)
    own = tokenizer()
    began = time.process_time()
    run = Run.joined(tokens(document, own).run() for document in track(documents, "tokens"))
    tokenizing = time.process_time() - began
    count = int((run.ids >= 0).sum())
    keys = words_of(run).keys
    words = KeyIndex(numpy.unique(keys[keys > 0])).find(keys).astype(numpy.int32)
    starts, ends = run.has(START), run.has(END)
    seconds = {
        "words 2-16, count >= 5 (FMM table)": best(lambda: count_ngrams(words, (2, 16), 5)),
        "tokens 2-5, count >= 5": best(lambda: count_ngrams(run.ids, (2, 5), 5, starts, ends)),
        "tokens 2-8, count >= 2 (store)": best(
            lambda: count_ngrams(run.ids, (2, 8), 2, starts, ends)
        ),
        "whole FMM table, words made too": best(lambda: FMMTable.mine(run)),
    }
    matching = {}
    for size, least in ((100_000, 5), (1_000_000, 2)):
        table = FMMTable.mine(run, min_count=least, cap=size)
        table.match(Run(run.ids[:1000], run.flags[:1000]))
        matching[f"{len(table):,} phrases"] = characters / best(partial(table.match, run), 3) / 1e6
    whole = tokenizing + seconds["whole FMM table, words made too"]
    return {
        "what": f"{characters / 1e6:.0f} MB of EU law, {count:,} tokens, one thread, CPU time, "
        f"best of {ROUNDS}",
        "tokenizing_mb_per_s": characters / tokenizing / 1e6,
        "counting_million_tokens_per_s": {name: count / s / 1e6 for name, s in seconds.items()},
        "matching_mb_per_s": matching,
        "fmm_table_of_540_mb_minutes_extrapolated": whole * WIKITEXT_103 / characters / 60,
        "paper_hours": PAPER_HOURS,
    }


def build() -> dict[str, Any]:
    """Retrieval index and phrase tables of all EU acts, without vectors, two processes."""
    folder = Path("build-benchmark.uv")
    shutil.rmtree(folder, ignore_errors=True)
    own = tokenizer()
    began, wall = cpu_seconds(), time.perf_counter()
    documents = read_documents(DATA / "law" / "eurlex.jsonl.gz")
    settings = Settings(vectors=False)
    builder = Builder(folder, own, settings, workers=local_workers(2))
    manifest = builder.add(documents)
    built = cpu_seconds() - began
    mined = cpu_seconds()
    shards = open_corpus(folder).shards
    table = FMMTable.mine(Run.joined(shard.run() for shard in shards))
    fmm_seconds = cpu_seconds() - mined
    elapsed = time.perf_counter() - wall
    size = sum(sum(entry.sizes.values()) for entry in manifest.entries())
    shutil.rmtree(folder)
    return {
        "what": f"{manifest.documents:,} EU acts, {manifest.characters:,} characters, 2 processes "
        "on 2 cores: chunks, BM25 index, 2-8-token phrases and FMM table; CPU time",
        "cpu_seconds": built + fmm_seconds,
        "cpu_minutes_per_core": (built + fmm_seconds) / 2 / 60,
        "of_which_fmm_table_seconds": fmm_seconds,
        "wall_seconds": elapsed,
        "chunks": manifest.chunks,
        "tokens": manifest.tokens,
        "stored_phrases": manifest.phrase_count,
        "fmm_phrases": len(table),
        "megabytes_on_disk": size / 1e6,
        "wikitext_103_cpu_minutes_extrapolated": (built + fmm_seconds)
        * WIKITEXT_103
        / manifest.characters
        / 60,
        "paper_hours": PAPER_HOURS,
    }


_REQUEST = """
import gc, json, resource, sys, time
import torch
import univerb
from univerb.corpus import open_corpus
torch.set_num_threads(2)
lm = univerb.load()
lm.fingerprint()
gc.freeze()  # as the command line does

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

began = time.perf_counter()
corpus = open_corpus(sys.argv[1])
opened = time.perf_counter() - began
lm.attach(corpus)
queries = json.loads(sys.argv[2])
rows = []
for query in queries:
    before = resident()
    start = time.perf_counter()
    hits = corpus.search(query, 32)
    searched = time.perf_counter()
    vocabulary = corpus.vocabulary(lm, query, 32)
    selected = time.perf_counter()
    view = lm.rows(vocabulary)
    done = time.perf_counter()
    width = 2 * 2 * corpus.manifest.width
    rows.append({
        "search_ms": 1000 * (searched - start), "select_ms": 1000 * (selected - searched),
        "vectors_ms": 1000 * (done - selected), "total_ms": 1000 * (done - searched),
        "phrases": len(vocabulary), "row_bytes": len(vocabulary) * width,
        "rss_growth": resident() - before,
    })
    del vocabulary, view
print(json.dumps({"open_ms": 1000 * opened, "rows": rows}))
"""


def request(folder: Path, max_phrases: int) -> dict[str, Any]:
    """Retrieve top-32, select phrases and open their vectors; nothing is encoded."""
    documents = read_documents(DATA / "law" / "eurlex.jsonl.gz")
    if not (folder / "manifest.json").is_file():
        lm = univerb.load()
        settings = Settings(max_phrases=max_phrases)
        began = time.process_time()
        Builder(folder, lm.tokenizer, settings, lm=lm).add(documents)
        print(f"built {folder} in {time.process_time() - began:.0f} CPU seconds")
    long = [document.text for document in documents if len(document.text) > 10_000]
    queries = [" ".join(text[5000:5150].split()) for text in long[:: len(long) // 24]][:24]
    command = [sys.executable, "-c", _REQUEST, str(folder), json.dumps(queries)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = json.loads(output.splitlines()[-1])
    manifest = open_corpus(folder).manifest
    # Warm-up: imports, the look-up tables, the retrieval index; then each query is new.
    warm = result["rows"][4:]

    def middle(name: str) -> list[float]:
        values = [row[name] for row in warm]
        return [round(v, 1) for v in (statistics.median(values), min(values), max(values))]

    allowed = [4 * row["row_bytes"] + 20e6 for row in warm]
    growth = [row["rss_growth"] for row in warm]
    return {
        "what": f"{len(warm)} new queries on a corpus of {manifest.phrase_count:,} phrases with "
        "vectors, after 4 to warm up, 2 threads in torch, median (min-max)",
        "stored_phrases": manifest.phrase_count,
        "open_ms": result["open_ms"],
        "first_request_ms": result["rows"][0]["total_ms"],
        "total_ms": middle("total_ms"),
        "search_ms": middle("search_ms"),
        "search_and_select_ms": middle("select_ms"),
        "vectors_ms": middle("vectors_ms"),
        "phrases": statistics.median(row["phrases"] for row in warm),
        "largest_rss_growth_mb": max(growth) / 1e6,
        "largest_share_of_allowed_rss": max(g / a for g, a in zip(growth, allowed, strict=True)),
    }


if __name__ == "__main__":
    main()
