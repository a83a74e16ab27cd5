"""The scorer of citations: trained, measured, and put where univerb finds it.

    python benchmarks/entailment.py     writes benchmarks/results/entailment.*

The same command goes on where a run stopped. Weights are kept in int8; what that costs is measured
against the same weights in full precision, with the same threshold.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from report import DATA, machine, need_data, write_report
from univerb.cli.train import Panel
from univerb.lab.judging.cross_encoder import (
    WEIGHTS,
    CrossEncoder,
    read_cross_encoder,
    write_cross_encoder_card,
)
from univerb.lab.judging.entailment import (
    CrossEncoderEntailment,
    built_folder,
    load_entailment,
    scorer_of,
)
from univerb.lab.judging.entailment_accuracy import DOCUMENTS, measure
from univerb.training.entailment import FULL, train_entailment
from univerb.training.entailment_config import EntailmentConfig, read_entailment_config
from univerb.training.metrics_logger import read_log

CONFIG = Path(__file__).parents[1] / "configs" / "default" / "entailment.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--run", type=Path, default=Path("runs/entailment"), help="its folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train-only", action="store_true", help="measure another time")
    arguments = parser.parse_args()
    need_data("nli")
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    config = settings(arguments.config)
    with Panel(config.run.steps) as panel:
        result = train_entailment(config, arguments.run, observer=panel)
    print(f"{result.reason} at step {result.step}; best score {result.best_score}")
    if result.reason == "interrupted" or arguments.train_only:
        return
    found = figures(result.export, arguments.run)
    write_report("entailment", "Entailment", "benchmarks/entailment.py", {config.name: found})
    keep(result.export)


def settings(path: Path) -> EntailmentConfig:
    """Return the run's settings, with the data where it is here."""
    whole = read_entailment_config(path).model_dump()
    whole["data"]["folder"] = str(DATA / "nli")
    return EntailmentConfig.model_validate(whole)


def figures(export: Path, run: Path) -> dict[str, Any]:
    """Measure both precisions, and write what int8 reaches into its card."""
    packed = read_cross_encoder(export)
    full = AutoModelForSequenceClassification.from_pretrained(export / FULL, local_files_only=True)
    accuracies = measure(scorer(packed), DATA / "nli", print)
    write_cross_encoder_card(export, packed.card.model_copy(update={"accuracies": accuracies}))
    # Whole pages take as long as all others together.
    short = [name for name in DOCUMENTS if "whole" not in name]
    reference = measure(scorer(packed._replace(model=full.eval())), DATA / "nli", print, short)
    seconds = sum(line["seconds"] for line in read_log(run) if line["kind"] == "step")
    size = sum(file.stat().st_size for file in export.iterdir() if file.is_file())
    return {
        "machine": machine() | {"model": "all-MiniLM-L6-v2"},
        "what": "Percent right on test sets that were not trained on. SNLI with its 3 labels, and "
        "as entailed or not; WiCE (oracle chunks, and whole pages by their best window) and "
        "ExpertQA as balanced accuracy: 50 is what guessing reaches. The threshold was chosen on "
        "claims and questions kept out of training",
        "accuracy, int8 (the scorer that is used)": accuracies,
        "accuracy, the same weights in full precision": reference,
        "points lost by int8": {n: value - accuracies[n] for n, value in reference.items()},
        "trained on": packed.card.trained_on,
        "threshold": packed.card.threshold,
        "minutes of training": seconds / 60,
        "weights, MB": (export / WEIGHTS).stat().st_size / 1e6,
        "all files, MB": size / 1e6,
    }


def scorer(encoder: CrossEncoder) -> CrossEncoderEntailment:
    model, tokenizer, card = encoder
    return CrossEncoderEntailment(model, tokenizer, scorer_of(card), max_length=card.max_length)


def keep(export: Path) -> None:
    """Put the scorer where `load_entailment` looks for it."""
    target = built_folder()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(export, target, ignore=shutil.ignore_patterns(FULL))
    print(f"{load_entailment().about}\nkept in {target}")


if __name__ == "__main__":
    main()
