"""What a step costs as the vocabulary grows, and what a short-list misses.

    python benchmarks/head.py --corpus law.uv       writes benchmarks/results/head.*

The corpus must hold a million phrases with vectors, such as that of `univerb index
eurlex.jsonl.gz --max-phrases 1000000`. Every size runs in turn within each round; ratios are taken
within a round. Batches: eight prompts with eight vocabularies, against HF `generate` on the same.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.progress import track
from transformers.utils import logging

import univerb
from report import DATA, machine, need_data, read_report, write_report
from timing import interleaved, ratios
from univerb.corpus import open_corpus
from univerb.corpus.reading import Corpus
from univerb.decoding.active import ActivePhrases, Scored
from univerb.decoding.engines.factory import engine_of
from univerb.decoding.loop import batch, generate
from univerb.decoding.options import Decoding
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

TOKENS = 48


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", choices=["torch", "llamacpp", "misses", "batch"], action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    need_data("law")
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    corpus, lm = open_corpus(arguments.corpus), univerb.load()
    report = read_report("head")
    for section in arguments.only or ["torch", "llamacpp", "misses", "batch"]:
        measured = {
            "torch": lambda: sizes(lm, corpus, arguments.rounds),
            "llamacpp": lambda: sizes(
                univerb.load(engine="llamacpp", threads=arguments.threads),
                corpus,
                arguments.rounds,
            ),
            "misses": lambda: misses(lm, corpus),
            "batch": lambda: batches(lm, corpus, arguments.rounds),
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
            given = {"max_tokens": TOKENS, "ignore_eos": True, "phrase_bias": -900.0, "escape": 0}
            generate(lm, prompt, own, **(given | options))  # type: ignore[arg-type]

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
    """What the short-list of a million phrases changes at the tokens of true text."""
    own = vocabulary(lm, corpus, 1_000_000)
    engine = engine_of(lm)
    head = ActivePhrases(lm, engine.phrase_rows(), own, 0.0, (), frozenset())
    head.refresh()
    how = Decoding(weights="single").resolved(lm.profile)
    is_other, fires, lost = [], [], []
    for ids in track(prefixes(lm, texts, 96), "texts"):
        session = engine.session(how, has_phrases=True, reuse=False)
        session.prefill([ids[:16]])
        (output,) = session.step([ids[16:]])
        for hidden, logits in zip(output.hidden, output.logits, strict=True):
            whole, some = head.scored(hidden, 99), head.short_list(logits, hidden, 99)
            is_other.append(best(logits, whole) != best(logits, some))
            fires.append(best(logits, whole) >= len(logits))
            lost.append(1 - mass(logits, some) / mass(logits, whole))
    return {
        "what": "P = 1,000,000 at tokens of LawMT test; greedy choice and mass over V + P",
        "places": len(is_other),
        "greedy choice differs, %": round(100 * float(numpy.mean(is_other)), 3),
        "a phrase is chosen, %": round(100 * float(numpy.mean(fires)), 2),
        "mass that is dropped under sampling, mean %": round(100 * float(numpy.mean(lost)), 3),
        "the same, 95th percentile %": round(100 * float(numpy.percentile(lost, 95)), 3),
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
    inputs = torch.tensor(prompts)

    def hf() -> None:
        lm.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )

    def ours(mode: str) -> Callable[[], None]:
        given: dict[str, Any] = {"mode": mode, "phrase_bias": -900.0, "escape": 0}

        def work() -> None:
            batch(lm, prompts, made, max_tokens=TOKENS, ignore_eos=True, **given)

        return work

    seconds = interleaved(
        {"HF generate": hf, "atomic": ours("atomic"), "unfold": ours("unfold")}, rounds
    )
    return {
        "what": "batch of 8, each with a vocabulary of 2,000: time to HF generate's batch of 8",
        "rounds": rounds,
        "ratios": {name: ratios(own, seconds["HF generate"]) for name, own in seconds.items()},
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
