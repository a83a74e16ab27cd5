"""Train the entailment scorer of the lab, and measure it.

    python recipes/nli/train.py --data FOLDER

The same command resumes a run that was stopped. See README.md beside this file.
"""

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

import univerb
from nli_accuracy import DOCUMENTS, measure
from nli_export import write_card
from nli_task import FULL, NliConfig, make_task
from univerb.cli.train import ProgressCallback
from univerb.entailment.cross_encoder import WEIGHTS, CrossEncoder, read_cross_encoder
from univerb.entailment.scorers import CrossEncoderEntailment, Scorer, load_entailment
from univerb.training.processes import Processes
from univerb.training.trainer import train

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the recipe as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the NLI files")
    parser.add_argument("--config", type=Path, default=HERE / "nli.yaml")
    parser.add_argument("--run", type=Path, default=Path("runs/nli"), help="folder of the run")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    config = read_config(options.config, options.data)
    task, processes = make_task(config), Processes.single()
    callback = ProgressCallback(config.run.steps)
    with callback.progress:
        result = train(task, config.for_trainer(), options.run, processes, callback=callback)
    print(f"{result.reason} at step {result.step}; best score {result.best_score}")
    if result.reason != "interrupted":
        write_results(options.results, config.name, evaluate(result.export, options.data))
        print(f"{load_entailment(str(result.export)).about}\nin {result.export}")


def read_config(path: Path, data: Path) -> NliConfig:
    """Read the settings, with the data folder of the command line."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings["data"]["folder"] = str(data)
    return NliConfig.model_validate(settings)


def evaluate(export: Path, data: Path) -> dict[str, Any]:
    """Measure both precisions, and write the accuracies of int8 into its card."""
    packed = read_cross_encoder(export)
    full = AutoModelForSequenceClassification.from_pretrained(export / FULL, local_files_only=True)
    accuracies = measure(_scorer(packed), data)
    write_card(export, packed.card.model_copy(update={"accuracies": accuracies}))
    # Whole pages take as long as all other test sets together.
    short = [name for name in DOCUMENTS if "whole" not in name]
    reference = measure(_scorer(packed._replace(model=full.eval())), data, short)
    return {
        "machine": {
            "univerb": univerb.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
        "accuracy, int8 (the scorer that is used)": accuracies,
        "accuracy, the same weights in full precision": reference,
        "trained on": packed.card.trained_on,
        "threshold": packed.card.threshold,
        "weights, MB": (export / WEIGHTS).stat().st_size / 1e6,
    }


def write_results(folder: Path, name: str, results: dict[str, Any]) -> None:
    """Keep the figures as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: results}, indent=2) + "\n"
    (folder / "entailment.json").write_text(text, encoding="utf-8")


def _scorer(encoder: CrossEncoder) -> CrossEncoderEntailment:
    model, tokenizer, card = encoder
    return CrossEncoderEntailment(
        model, tokenizer, Scorer(card.name, card.threshold), card.max_length
    )


if __name__ == "__main__":
    main()
