"""What the phrase head costs per step, what prefix sharing saves, and that `verify` is lossless.

    python benchmarks/decode.py                 all sections; writes benchmarks/results/decode.*
    python benchmarks/decode.py --only encode   one section; the others keep their last figures

Every system of a section runs in turn within each round, and ratios are taken within a round:
other work on the machine then slows both sides. The `verify` section resumes where it stopped.
"""

import argparse
import gzip
import json
import random
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers.utils import logging

import univerb
from report import DATA, RESULTS, machine, need_data, read_report, write_report
from timing import UNHEARD, hf_generate, interleaved, ratios
from univerb.decoding.loop import generate
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import Vectors
from univerb.phrase import Document, Phrase

SIZES = (0, 1_000, 10_000, 65_000)
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["overhead", "encode", "verify"], action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prefixes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    need_data("wiki", "wikitext103")
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    lm = univerb.load()
    report = read_report("decode")
    for section in arguments.only or ["overhead", "encode", "verify"]:
        print(f"\n== {section}")
        measured = {
            "overhead": lambda: overhead(lm, arguments.rounds),
            "encode": lambda: encode(lm, max(arguments.rounds // 2, 1)),
            "verify": lambda: verify(lm, arguments.prefixes),
        }[section]()
        report[section] = {"machine": machine(), **measured}
        print(json.dumps(measured, indent=2))
        write(report)


def overhead(lm: DynamicLM, rounds: int, tokens: int = 64) -> dict[str, Any]:
    """Time per step against HF `generate`, with phrases that are scored but never chosen."""
    phrases = list(lm.vocabulary(articles(60)))
    vocabularies = {size: lm.vocabulary(phrases[:size]) for size in SIZES}
    for size, vocabulary in track(vocabularies.items(), "encoding"):
        assert len(vocabulary) == size
        lm.rows(vocabulary)
    prompt = lm.tokenizer.encode(articles(1)[0].text).ids[:32]

    def ours(size: int, mode: str) -> Callable[[], None]:
        def run() -> None:
            result = generate(
                lm,
                prompt,
                vocabularies[size],
                mode=mode,
                max_tokens=tokens,
                **UNHEARD,  # type: ignore[arg-type]
            )
            assert result.stats.steps == tokens - 1

        return run

    systems: dict[str, Callable[[], None]] = {
        "HF generate": partial(hf_generate, lm.model, [prompt], tokens)
    }
    systems |= {f"atomic, P = {size}": ours(size, "atomic") for size in SIZES}
    systems |= {f"unfold, P = {size}": ours(size, "unfold") for size in SIZES[2:]}
    seconds = interleaved(systems, rounds)
    return {
        "what": f"ratio of time per step to HF generate, fp32, {tokens} tokens, median (min-max)",
        "rounds": rounds,
        "hf_ms_per_step": round(1000 * statistics.median(seconds["HF generate"]) / tokens, 1),
        "ratios": {name: ratios(own, seconds["HF generate"]) for name, own in seconds.items()},
    }


def encode(lm: DynamicLM, rounds: int) -> dict[str, Any]:
    """Phrases per second: shared prefixes, unique phrases by length, and padded in given order."""
    phrases = list(lm.vocabulary(chunks(32)))
    by_length = sorted(phrases, key=len)
    shuffled = random.Random(0).sample(phrases, len(phrases))

    def in_batches(given: list[Phrase], encode_batch: Callable[[list[Phrase]], Vectors]) -> None:
        for start in range(0, len(given), BATCH):
            encode_batch(given[start : start + BATCH])

    def shared() -> None:
        # Not through `encode`, which would find them in the cache of earlier requests.
        lm.encode_fresh(phrases)

    def unique() -> None:
        in_batches(by_length, lambda batch: encode_padded(lm, batch))

    def padded() -> None:
        in_batches(shuffled, lambda batch: encode_padded(lm, batch))

    with torch.inference_mode():
        systems = {"prefix-shared": shared, "unique by length": unique, "padded": padded}
        seconds = interleaved(systems, rounds)
    return {
        "what": f"encoding all 2-8-grams of 32 chunks ({len(phrases)} phrases), fp32",
        "rounds": rounds,
        "phrases_per_second": {
            name: round(len(phrases) / statistics.median(own)) for name, own in seconds.items()
        },
        "speedup_of_sharing": {
            name: ratios(own, seconds["prefix-shared"]) for name, own in seconds.items()
        },
    }


def encode_padded(lm: DynamicLM, phrases: list[Phrase]) -> Vectors:
    """Encode a batch as everybody does it: padded on the right, one row per phrase."""
    longest = max(map(len, phrases))
    ids = torch.tensor([[*p.ids, *[0] * (longest - len(p))] for p in phrases])
    lengths = torch.tensor([len(p) for p in phrases])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    is_even = bool(mask.all())
    states = lm.encoder.body(
        inputs_embeds=lm.embeddings.input(ids),
        attention_mask=None if is_even else mask,
        use_cache=False,
    ).last_hidden_state[torch.arange(len(phrases)), lengths - 1]
    last = lm.embeddings.input(ids[torch.arange(len(phrases)), lengths - 1])
    return Vectors(*lm.encoder.heads(states, last, lm.embeddings.output_weight[ids[:, 0]]))


def verify(lm: DynamicLM, prefixes: int, tokens: int = 64) -> dict[str, Any]:
    """Compare `verify` with plain greedy on WikiText-103 prefixes of 128 tokens."""
    partial = RESULTS / "verify.partial.jsonl"
    done = {row["prefix"]: row for row in _read_lines(partial)}
    texts = list(wikitext(prefixes))
    with partial.open("a", encoding="utf-8") as log:
        for number, text in track(list(enumerate(texts)), "verify"):
            if number in done:
                continue
            done[number] = {"prefix": number, **verify_one(lm, text, tokens)}
            log.write(json.dumps(done[number]) + "\n")
            log.flush()
    rows = [done[number] for number in range(len(texts))]
    partial.unlink()
    return {
        "what": f"{len(rows)} WikiText-103 test prefixes of 128 tokens, {tokens} more, greedy fp32",
        "identical": sum(row["is_equal"] for row in rows),
        "of": len(rows),
        "steps_to_plain": round(
            sum(row["steps"] for row in rows) / sum(row["plain_steps"] for row in rows), 3
        ),
    }


def verify_one(lm: DynamicLM, text: str, tokens: int) -> dict[str, Any]:
    ids = lm.tokenizer.encode(text).ids[:128]
    vocabulary = lm.vocabulary([Document(text, "paragraph")], max_phrases=500)
    plain = generate(lm, ids, max_tokens=tokens, ignore_eos=True)
    checked = generate(lm, ids, vocabulary, mode="verify", max_tokens=tokens, ignore_eos=True)
    return {
        "is_equal": plain.text == checked.text,
        "steps": checked.stats.steps,
        "plain_steps": plain.stats.steps,
    }


def articles(count: int) -> list[Document]:
    with gzip.open(DATA / "wiki" / "valid.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return [Document(row["text"], str(row["title"])) for row in rows]


def chunks(count: int, words: int = 128) -> list[Document]:
    """Cut one topic's articles into chunks, as a retriever would return them."""
    found: list[Document] = []
    for article in articles(40):
        split = article.text.split()
        found += [
            Document(" ".join(split[i : i + words]), f"{article.name}#{i}")
            for i in range(0, len(split) - words, words)
        ]
    return found[:count]


def wikitext(count: int) -> Iterator[str]:
    lines = (DATA / "wikitext103" / "wiki.test.tokens").read_text(encoding="utf-8").splitlines()
    long = [line.strip() for line in lines if len(line) > 900 and not line.lstrip().startswith("=")]
    return iter(long[:: max(len(long) // count, 1)][:count])


def write(report: dict[str, Any]) -> None:
    """Keep the figures, and draw a plot where matplotlib is installed."""
    title, command = "Decoding: cost and losslessness", "benchmarks/decode.py"
    write_report("decode", title, command, report)
    if "overhead" in report:
        plot(report["overhead"]["ratios"])


def plot(ratios_by_system: dict[str, list[float]]) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: pip install 'univerb[plots]'")
        return
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    names = list(ratios_by_system)
    middles = [ratios_by_system[name][0] for name in names]
    errors = [
        [m - ratios_by_system[n][1] for n, m in zip(names, middles, strict=True)],
        [ratios_by_system[n][2] - m for n, m in zip(names, middles, strict=True)],
    ]
    axes.barh(names, middles, xerr=errors, color="#2a7f9e", capsize=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("time per step, HF generate = 1 (median, min-max)")
    figure.savefig(RESULTS / "decode.png", dpi=120)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


if __name__ == "__main__":
    main()
