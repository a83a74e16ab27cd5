"""What a step costs as the vocabulary grows, what a short-list misses, whether engines agree.

    python benchmarks/head.py --corpus law.uv       writes benchmarks/results/head.*

The corpus must hold a million phrases with vectors, such as that of `univerb index
eurlex.jsonl.gz --max-phrases 1000000`. Every size runs in turn within each round; ratios are taken
within a round. Batches: eight prompts with eight vocabularies, against HF `generate` on the same.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.progress import track
from transformers.utils import logging
from univerb.corpus.read import Corpus
from univerb.decoding.options import Decoding
from univerb.engines.llamacpp.phrase_rows import NumpyRows
from univerb.engines.torch.phrase_rows import TorchRows

import univerb
from report import DATA, machine, need_data, read_report, write_report
from timing import UNHEARD, hf_generate, interleaved, ratios
from univerb.corpus import open_corpus
from univerb.decoding.loop import batch, generate
from univerb.decoding.phrase_head import ActivePhrases, Scored
from univerb.engines.factory import engine_of
from univerb.lab.speed.workloads import wikitext_articles
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

TOKENS = 48
SECTIONS = ["torch", "llamacpp", "misses", "batch", "agreement"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", choices=SECTIONS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    need_data("law")
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    corpus, lm = open_corpus(arguments.corpus), univerb.load()
    report = read_report("head")
    fast = partial(univerb.load, engine="llamacpp", threads=arguments.threads)
    for section in arguments.only or SECTIONS:
        measured = {
            "torch": lambda: sizes(lm, corpus, arguments.rounds),
            "llamacpp": lambda: sizes(fast(), corpus, arguments.rounds),
            "misses": lambda: misses(lm, corpus),
            "batch": lambda: batches(lm, corpus, arguments.rounds),
            "agreement": lambda: agreement(lm, fast()),
        }[section]()
        report[section] = {"machine": machine(), **measured}
        print(section, measured)
        write_report("head", "The phrase head", "benchmarks/head.py", report)


def sizes(lm: PhraseModel, corpus: Corpus, rounds: int) -> dict[str, Any]:
    """Time per step of each size, with phrases that are scored but never chosen."""
    prompt = prefixes(lm, 1)[0]
    made = {size: vocabulary(lm, corpus, size) for size in (1_000, 65_000, 1_000_000)}
    for own in made.values():
        lm.table(own)

    def run(size: int, **options: Any) -> Callable[[], None]:  # noqa: ANN401
        def work() -> None:
            own = made.get(size)
            generate(lm, prompt, own, **UNHEARD, max_tokens=TOKENS, **options)  # type: ignore[arg-type]

        return work

    systems = {
        "P = 0": run(0),
        "P = 1,000, atomic": run(1_000, mode="atomic"),
        "P = 65,000, atomic, exact": run(65_000, mode="atomic", exact=True),
        "P = 65,000, atomic, short-list": run(65_000, mode="atomic", exact=False),
        "P = 1,000,000, atomic, exact": run(1_000_000, mode="atomic", exact=True),
        "P = 1,000,000, atomic, short-list": run(1_000_000, mode="atomic", exact=False),
        "P = 1,000, unfold": run(1_000, mode="unfold"),
        "P = 1,000,000, unfold": run(1_000_000, mode="unfold"),
    }
    seconds = interleaved(systems, rounds)
    plain, small = seconds["P = 0"], seconds["P = 1,000, atomic"]
    return {
        "what": f"{lm.engine}: ratio of time per step, {TOKENS} tokens, median (min-max)",
        "rounds": rounds,
        "ms per step, P = 0": round(1000 * statistics.median(plain) / TOKENS, 1),
        "to P = 0": {name: ratios(own, plain) for name, own in seconds.items()},
        "to P = 1,000, atomic": {name: ratios(own, small) for name, own in seconds.items()},
    }


def misses(lm: DynamicLM, corpus: Corpus, texts: int = 20) -> dict[str, Any]:
    """What each engine's short-list of a million phrases changes at the tokens of true text."""
    own, engine = vocabulary(lm, corpus, 1_000_000), engine_of(lm)
    heads = {}
    for name, listed in {"torch": TorchRows.short_list, "llamacpp": NumpyRows.short_list}.items():
        rows: Any = engine.phrase_rows()
        rows.short_list = listed
        heads[name] = ActivePhrases(lm, rows, own, 0.0, (), frozenset())
        heads[name].refresh()
    how = Decoding(weights="single").resolved(lm.profile)
    fires, is_other, lost = [], defaultdict(list), defaultdict(list)
    for ids in track(prefixes(lm, texts, 96), "texts"):
        session = engine.session(how, has_phrases=True, reuse=False)
        session.prefill([ids[:16]])
        (output,) = session.step([ids[16:]])
        for hidden, logits in zip(output.hidden, output.logits, strict=True):
            whole = heads["torch"].scored(hidden, 99)
            fires.append(best(logits, whole) >= len(logits))
            for name, head in heads.items():
                some = head.short_list(logits, hidden, 99)
                is_other[name].append(best(logits, whole) != best(logits, some))
                lost[name].append(1 - mass(logits, some) / mass(logits, whole))
    percent = {name: 100 * numpy.array(own) for name, own in lost.items()}
    return {
        "what": "P = 1,000,000 at tokens of LawMT test; greedy choice and mass over V + P, by list",
        "places": len(fires),
        "a phrase is chosen, %": round(100 * float(numpy.mean(fires)), 2),
        "greedy choice differs, %": {
            name: round(100 * float(numpy.mean(own)), 3) for name, own in is_other.items()
        },
        "mass that is dropped under sampling, mean %": {
            name: round(float(own.mean()), 2) for name, own in percent.items()
        },
        "the same, 95th percentile %": {
            name: round(float(numpy.percentile(own, 95)), 2) for name, own in percent.items()
        },
    }


def best(logits: numpy.ndarray, phrases: Scored | None) -> int:
    """Return the unit that greedy `atomic` takes."""
    if phrases is None or phrases.logits.max() <= logits.max():
        return int(logits.argmax())
    return len(logits) + int(phrases.numbers[phrases.logits.argmax()])


def mass(logits: numpy.ndarray, phrases: Scored | None) -> float:
    """Return the sum of exponentials over tokens and phrases."""
    both = logits if phrases is None else numpy.concatenate([logits, phrases.logits])
    return float(numpy.exp(both.astype(float) - logits.max()).sum())


def batches(lm: DynamicLM, corpus: Corpus, rounds: int) -> dict[str, Any]:
    """Time of a batch of eight with eight vocabularies of 2,000, to HF's batch of eight."""
    prompts = prefixes(lm, 8)
    made = [vocabulary(lm, corpus, 2_000, start=2_000 * n) for n in range(8)]

    def ours(mode: str) -> Callable[[], None]:
        def work() -> None:
            batch(lm, prompts, made, max_tokens=TOKENS, mode=mode, **UNHEARD)  # type: ignore[arg-type]

        return work

    seconds = interleaved(
        {
            "HF generate": partial(hf_generate, lm.model, prompts, TOKENS),
            "atomic": ours("atomic"),
            "unfold": ours("unfold"),
        },
        rounds,
    )
    return {
        "what": "batch of 8, each with a vocabulary of 2,000: time to HF generate's batch of 8",
        "rounds": rounds,
        "ratios": {name: ratios(own, seconds["HF generate"]) for name, own in seconds.items()},
    }


def agreement(lm: DynamicLM, fast: PhraseModel, count: int = 200) -> dict[str, Any]:
    """How often both engines find the same token likeliest after a prompt."""
    articles = wikitext_articles(DATA / "wikitext103" / "wiki.test.tokens")
    starts = (lm.tokenizer.encode(text).ids for _, text in articles)
    wikitext = [ids[:32] for ids in starts if len(ids) >= 32][: count // 2]
    is_same = []
    for prompt in track(wikitext + prefixes(lm, count - len(wikitext)), "prompts"):
        own, other = (
            generate(one, prompt, max_tokens=1, ignore_eos=True).pieces for one in (lm, fast)
        )
        is_same.append(own[0].ids == other[0].ids)
    return {
        "what": "prompts of 32 tokens (LawMT test, WikiText-103 test): torch and llamacpp",
        "prompts": len(is_same),
        "same likeliest token, %": round(100 * float(numpy.mean(is_same)), 1),
    }


def vocabulary(lm: PhraseModel, corpus: Corpus, size: int, start: int = 0) -> DynamicVocabulary:
    """Take phrases of the corpus, spread over it, with their stored vectors."""
    lm.attach(corpus)
    stored = corpus.phrases
    step = max(len(stored) // size, 1)
    numbers = (start + numpy.arange(size) * step) % len(stored)
    keys = stored.ids(numpy.unique(numbers))
    return DynamicVocabulary(lm.static_size, [Phrase(key, " x") for key in keys])


def prefixes(lm: PhraseModel, count: int, tokens: int = 32) -> list[list[int]]:
    lines = (DATA / "law" / "lawmt.test.en").read_text(encoding="utf-8").splitlines()
    found = (lm.tokenizer.encode(line).ids for line in lines)
    return [ids[:tokens] for ids in found if len(ids) >= tokens][:count]


if __name__ == "__main__":
    main()
