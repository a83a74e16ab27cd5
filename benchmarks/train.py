"""What training costs, and what the paper's negatives change, on the default model.

    python benchmarks/train.py          writes benchmarks/results/train.*

throughput: rows/s of the frozen regime, with and without the pass that caches states, against the
    paper's regime (full fine-tuning, L_p + L_t + L_kl) on the same machine, backbone and text.
negatives: the frozen regime with in-batch, pre-batch and informative negatives, the same steps,
    rows and seed each: how often the right phrase is found, how often a phrase beats every token
    where none fits, and the perplexity of greedy continuations under the bare LM.
interleaving: dense phrases against a gap of at least 5 tokens, L_p of the same fresh encoder.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers.utils import logging

from report import DATA, machine, need_data, read_report, write_report
from univerb.decoding.loop import generate
from univerb.documents.read import read_documents
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.training.config import TrainingConfig, read_config
from univerb.training.processes import Processes
from univerb.training.task_factory import make_task
from univerb.training.task import Task
from univerb.training.trainer import train

CONFIG = Path(__file__).parents[1] / "configs" / "default" / "smollm2-wiki.yaml"
NEGATIVES: dict[str, tuple[str, ...]] = {
    "in-batch": ("in-batch",),
    "pre-batch": ("in-batch", "pre-batch", "prefixes"),
    "informative": ("in-batch", "prefixes", "self-retrieval"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    sections = {"throughput": throughput, "negatives": negatives, "interleaving": interleaving}
    parser.add_argument("--only", choices=list(sections), action="append")
    parser.add_argument("--steps", type=int, default=60, help="of each run in `negatives`")
    parser.add_argument("--rounds", type=int, default=3, help="of `throughput`")
    parser.add_argument("--prompts", type=int, default=12, help="continuations in `negatives`")
    arguments = parser.parse_args()
    need_data("wiki")
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    report = read_report("train")
    for name in arguments.only or sections:
        found = sections[name](arguments)
        report[name] = {"machine": machine(), **found}
        print(name, json.dumps(found, indent=2))
        write_report("train", "Training", "benchmarks/train.py", report)


def settings(**changes: Any) -> TrainingConfig:  # noqa: ANN401
    """Return the default run's settings with some sections changed."""
    whole = read_config(CONFIG).model_dump()
    for name, value in changes.items():
        whole[name] = whole[name] | value if isinstance(value, dict) else value
    files = [str(DATA / "wiki" / Path(file).name) for file in whole["data"]["documents"]]
    whole["data"] |= {"documents": files, "validation": [str(DATA / "wiki" / "valid.jsonl.gz")]}
    return TrainingConfig.model_validate(whole)


def timed(task: Task, steps: range) -> tuple[float, float]:
    """Return rows and seconds of some steps, gradients and updates included."""
    parameters = [p for m in task.modules.values() for p in m.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-5)
    rows, began = 0, time.perf_counter()
    for index in steps:
        loss = task.loss(index)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        rows += loss.rows
    return rows, time.perf_counter() - began


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, rate in (frozen_rates() | paper_rates()).items():
            rates.setdefault(name, []).append(rate)
    found = {name: statistics.median(own) for name, own in rates.items()}
    base = "paper's regime, same encoder"
    return {
        "what": "Rows that choose a unit, per second of forward, backward and update: medians of "
        f"{arguments.rounds} rounds, interleaved, 2 steps frozen (one of them with the input side) "
        "and 2 of the paper's regime each. A row is a word start (frozen) or a unit of a mixed "
        "passage (paper's regime: 4 x 256 tokens, trained LM, no generated negatives). The encoder "
        "is the default run's 2 layers with split heads, and for the paper also 12 tied layers",
        "rows/s": found,
        "spread, smallest to largest": {n: f"{min(o):.1f}-{max(o):.1f}" for n, o in rates.items()},
        f"ratio to {base}": {n: rate / found[base] for n, rate in found.items()},
    }


def frozen_rates() -> dict[str, float]:
    """Measure the frozen regime on states that are cached, and on some that are not."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(frozen={"cache": folder, "groups": 2}, data={"limit": 400})
        task = make_task(config, Processes.single("cpu"))
        timed(task, range(1))
        per_group = config.frozen.steps_per_group
        # Group 1 is not cached yet: the first pass over it pays for the states, the second not.
        rows, first = timed(task, range(per_group, 2 * per_group))
        timed(task, range(1))
        _, cached = timed(task, range(per_group, 2 * per_group))
    epochs = round(config.run.steps / settings().frozen.groups / per_group)
    return {
        "frozen, states cached": rows / cached,
        "frozen, with the caching pass, text used once": rows / first,
        f"frozen, with the caching pass, {epochs} epochs as in the default run": rows
        / ((first - cached) / epochs + cached),
    }


def paper_rates() -> dict[str, float]:
    """Measure full fine-tuning with L_p + L_t + L_kl."""
    encoders: dict[str, dict[str, Any]] = {
        "paper's regime, same encoder": {},
        "paper's regime, its own encoder": {
            "heads": "tied",
            "count_correction": False,
            "layers": 12,
        },
    }
    rates = {}
    for name, encoder in encoders.items():
        config = settings(
            regime="full",
            encoder=encoder,
            data={"limit": 400, "block": 256},
            negatives={"kinds": ("in-batch", "prefixes", "self-retrieval"), "extensions": 2},
            run={"batch": 4, "accumulate": 1},
        )
        task = make_task(config, Processes.single("cpu"))
        timed(task, range(1))
        rows, seconds = timed(task, range(1, 3))
        rates[name] = rows / seconds
    return rates


def negatives(arguments: argparse.Namespace) -> dict[str, Any]:
    documents = read_documents(DATA / "wiki" / "valid.jsonl.gz")[: arguments.prompts]
    found: dict[str, Any] = {
        "what": f"Frozen regime, {arguments.steps} steps each, same rows and seed; extensions and "
        "prefixes are negatives as in the paper (mask_true off); greedy continuations of "
        f"{arguments.prompts} held-out first halves, 64 base tokens, unfold with tolerance 1, "
        "their n-grams as phrases"
    }
    for name, kinds in NEGATIVES.items():
        config = settings(
            negatives={"kinds": kinds, "extensions": 2, "mask_true": False},
            frozen={
                "marginal": 0.0,
                "teacher": 0.0,
                "own": 0.12,
                "own_weight": 0.2,
                "groups": 20,
                "input_every": 0,
            },
            run={"steps": arguments.steps, "validate_every": arguments.steps},
        )
        task = make_task(config, Processes.single("cpu"))
        with tempfile.TemporaryDirectory() as folder:
            train(task, config, Path(folder), Processes.single("cpu"))
            log = [json.loads(line) for line in (Path(folder) / "log.jsonl").open()]
            lm = DynamicLM.from_pretrained(str(Path(folder) / "encoder"))
        last = [entry for entry in log if "phrase_accuracy" in entry][-10:]
        found[name] = {
            "phrase accuracy": sum(entry["phrase_accuracy"] for entry in last) / len(last),
            "over-firing rate": sum(entry["over_firing"] for entry in last) / len(last),
            **continued(lm, documents, name),
        }
    return found


def continued(lm: DynamicLM, documents: list[Document], name: str) -> dict[str, float]:
    """Continue first halves greedily and score what was written under the bare LM."""
    nll = tokens = units = 0.0
    for document in track(documents, name):
        half = document.text[: len(document.text) // 2][-1200:]
        vocabulary = lm.vocabulary([Document(half, document.name)])
        options = {"mode": "unfold", "tolerance": 1.0, "phrase_bias": 0.0}
        text = generate(lm, half, vocabulary=vocabulary, max_tokens=64, **options)
        written = [token for piece in text.pieces for token in piece.ids]
        if not written:
            continue
        prompt = lm.tokenizer.encode_prompt(half)
        ids = torch.tensor([prompt + written])
        with torch.inference_mode():
            logits = lm.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
        nll -= float(own.sum())
        tokens += len(written)
        units += text.stats.units
    return {
        "PPL of greedy continuations": math.exp(nll / max(tokens, 1)),
        "units per base token": units / max(tokens, 1),
    }


def interleaving(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "what": "What a fresh encoder and adapter reach on held-out mixed passages of 128 tokens "
        "after 24 steps of 2 passages each; the passages are segmented as in training"
    }
    for name, gap in {"gap of 5 to 12 tokens": (5, 12), "dense phrases": (0, 0)}.items():
        config = settings(
            regime="lora",
            data={"limit": 400, "block": 128},
            negatives={"kinds": ("in-batch", "prefixes", "self-retrieval"), "extensions": 2},
            samples={"gap": gap},
            run={"batch": 2, "accumulate": 1, "steps": 24, "validate_every": 24},
        )
        task = make_task(config, Processes.single("cpu"))
        with tempfile.TemporaryDirectory() as folder:
            train(task, config, Path(folder), Processes.single("cpu"))
        found[name] = task.validate()
    return found


if __name__ == "__main__":
    main()
