"""Domain adaptation without training: what held-out text could be written with, before and after.

    python benchmarks/domain.py                 all sections; writes benchmarks/results/domain.*
    python benchmarks/domain.py --only law      one section; the others keep their last figures

Corpora are built without vectors into --folder and kept there; `calibration` needs one with
vectors (--calibrate). Wikipedia articles of 2014 stand in for the train split of WikiText-103; none
of them is a WikiText test article.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers.utils import logging

import univerb
from report import DATA, RESULTS, machine, need_data, read_report, write_report
from univerb.applications.adapt import Measured, measured
from univerb.applications.adapt_plot import plot_adaptation
from univerb.applications.calibrate import calibrate
from univerb.applications.coverage import passages_of
from univerb.corpus import Corpus, open_corpus
from univerb.corpus.build import Builder
from univerb.corpus.manifest import Settings
from univerb.documents.read import read_documents
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import local_workers
from univerb.phrase import Document

SPACED = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" n't", "n't"), (" 's", "'s"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["law", "wikitext", "calibration"], action="append")
    parser.add_argument("--folder", type=Path, default=Path("domain-benchmark"))
    parser.add_argument("--wiki-files", type=int, default=8)
    parser.add_argument("--passages", type=int, default=100)
    parser.add_argument("--calibrate", type=Path, help="A corpus of law with vectors.")
    arguments = parser.parse_args()
    need_data("law", "wiki", "wikitext103")
    logging.disable_progress_bar()
    lm = univerb.load()
    arguments.folder.mkdir(exist_ok=True)
    report = read_report("domain")
    for section in arguments.only or ["law", "wikitext", "calibration"]:
        found = {"law": law, "wikitext": wikitext, "calibration": calibration}[section](
            lm, arguments
        )
        report[section] = {"machine": machine(), **found}
        print(json.dumps(found, indent=2))
        write_report("domain", "Domain adaptation without training", "benchmarks/domain.py", report)


def law_corpus(lm: DynamicLM, folder: Path) -> Corpus:
    paths = [DATA / "law" / "jrc-acquis.en", DATA / "law" / "eurlex.jsonl.gz"]
    return corpus(lm, folder / "law.uv", paths)


def wiki_corpus(lm: DynamicLM, folder: Path, files: int) -> Corpus:
    paths = sorted((DATA / "wiki").glob("train-*.jsonl.gz"))[:files]
    return corpus(lm, folder / f"wiki-{files}.uv", paths)


def corpus(lm: DynamicLM, folder: Path, paths: list[Path]) -> Corpus:
    if not (folder / "manifest.json").is_file():
        with Progress() as bars:
            stages: dict[str, Any] = {}

            def tell(stage: str, done: int, total: int) -> None:
                if stage not in stages:
                    stages[stage] = bars.add_task(f"{folder.name}: {stage}", total=total)
                bars.update(stages[stage], completed=done)

            settings = Settings(vectors=False)
            workers = local_workers(2)
            builder = Builder(folder, lm.tokenizer, settings, workers=workers, progress=tell)
            builder.add(read_documents(*paths))
    return open_corpus(folder)


def law(lm: DynamicLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """LawMT test lines: no phrases, Wikipedia's, the law's."""
    text = (DATA / "law" / "lawmt.test.en").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    held_out = [Document(line, f"lawmt#{number}") for number, line in enumerate(lines)]
    wiki = wiki_corpus(lm, arguments.folder, arguments.wiki_files)
    own = law_corpus(lm, arguments.folder)
    rows = [
        measured(label, one, held_out, lm.tokenizer, k, arguments.passages)
        for label, one, k in (("no phrases", None, 1), ("Wikipedia", wiki, 512), ("law", own, 512))
    ]
    plot_adaptation(RESULTS / "domain-law.png", rows, title="LawMT test")
    return {
        "what": "LawMT test (2,000 lines); law: JRC-Acquis + 1,018 EU acts "
        f"({own.manifest.characters / 1e6:.0f} M characters), Wikipedia: "
        f"{wiki.manifest.characters / 1e6:.0f} M characters; 2-8-token phrases with count >= 2, at "
        "most 2 M; retrieved: 512 chunks per passage, query its first 32 tokens",
        **figures(rows),
    }


def wikitext(lm: DynamicLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """WikiText-103 test paragraphs, as they are and de-tokenized, with Wikipedia's phrases."""
    text = (DATA / "wikitext103" / "wiki.test.tokens").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip() and line[1:2] != "="]
    wiki = wiki_corpus(lm, arguments.folder, arguments.wiki_files)
    spaced = [Document(line, f"wikitext#{number}") for number, line in enumerate(lines)]
    plain = [Document(natural(line), f"wikitext#{number}") for number, line in enumerate(lines)]
    tokenizer, limit = lm.tokenizer, arguments.passages
    rows = [
        measured("no phrases", None, plain, tokenizer, 1, limit),
        measured("Wikipedia, spaced text", wiki, spaced, tokenizer, 32, limit),
        measured("Wikipedia, de-tokenized", wiki, plain, tokenizer, 32, limit),
    ]
    plot_adaptation(RESULTS / "domain-wikitext.png", rows, title="WikiText-103 test")
    return {
        "what": f"WikiText-103 test ({len(lines):,} paragraphs), index: "
        f"{wiki.manifest.characters / 1e6:.0f} M characters of Wikipedia (the train split is not "
        "at hand); retrieved: 32 chunks per passage, query its first 32 tokens",
        **figures(rows),
    }


def calibration(lm: DynamicLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """`phrase_bias` and `tolerance` for a corpus of law, on LawMT dev."""
    if arguments.calibrate is None:
        raise SystemExit("calibration needs a corpus with vectors: --calibrate law.uv")
    own = open_corpus(arguments.calibrate)
    text = (DATA / "law" / "lawmt.dev.en").read_text(encoding="utf-8")
    held_out = [Document(line, "dev") for line in text.splitlines() if line.strip()]
    passages = passages_of(held_out, lm.tokenizer, limit=arguments.passages)
    found = calibrate(lm, own, passages)
    return {
        "what": f"{found.passages} passages of LawMT dev ({found.tokens:,} tokens), corpus of "
        f"{own.manifest.phrase_count:,} phrases of EU acts, untrained encoder",
        "phrase_bias": found.phrase_bias,
        "tolerance": found.tolerance,
        "passes_per_token": found.best.passes_per_token,
        "error_rate": found.best.error_rate,
        "plain_error_rate": found.plain_error_rate,
        "plain_bits_per_byte": found.plain_bits_per_byte,
        "bits_per_byte_by_bias": {f"{b:g}": v for b, v in found.bits_per_byte.items()},
    }


def figures(rows: list[Measured]) -> dict[str, Any]:
    """Lay out the figures of several corpora, one table per kind."""
    tables: dict[str, Any] = {}
    for kind in ("all_phrases", "retrieved"):
        own = {row.label: getattr(row, kind) for row in rows}
        tables[f"{kind}: units per base token"] = {n: c.compression for n, c in own.items()}
        tables[f"{kind}: share of tokens inside phrases"] = {n: c.share for n, c in own.items()}
        for name, coverage in own.items():
            if coverage.windows:
                shares = coverage.to_dict()["candidate_share_by_length"]
                tables[f"{kind}: share of n-grams that are candidates, {name}"] = shares
        counts = {name: (c.passages, c.tokens) for name, c in own.items()}
        tables[f"{kind}: passages and tokens"] = {n: f"{p} / {t}" for n, (p, t) in counts.items()}
    return tables


def natural(line: str) -> str:
    """Undo WikiText's spacing, as well as rules can."""
    for spaced, plain in SPACED:
        line = line.replace(spaced, plain)
    line = re.sub(r" ([,.;:!?)\]])", r"\1", line)
    line = re.sub(r"([(\[]) ", r"\1", line)
    return re.sub(r'" ([^"]*) "', r'"\1"', line)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
