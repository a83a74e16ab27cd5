"""Check the judge of citations, choose its threshold, and write both into its card.

    python recipes/nli/check.py --data FOLDER --asqa asqa_200_with_docs.json.gz

The threshold is chosen on what training held out and on the first 40 questions; everything else is
reported. Figures go to results/entailment.json. See README.md beside this file.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asqa_cases import CHANGED, FALSE, Case, cases
from nli_accuracy import best_threshold, measure
from nli_data import DataConfig, read_split
from nli_export import write_card
from univerb.documents.sentences import splitter_named
from univerb.entailment.cross_encoder import read_cross_encoder
from univerb.entailment.premises import decided
from univerb.entailment.scorers import CrossEncoderEntailment, Scorer
from univerb.lab.metrics.citations import Entails
from univerb.lab.protocols.asqa_questions import AsqaQuestion, read_questions
from univerb.lab.protocols.asqa_scoring import Judges, leading_sentences, score_answer

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "src/univerb/assets/entailment/minilm-l6-nli"
FIRST = 40
"""Questions that choices may look at."""
SPLITTER = splitter_named("pysbd")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that the command line names, and keep the figures of the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the NLI files")
    parser.add_argument("--asqa", type=Path, required=True, help="questions with documents")
    parser.add_argument("--scorer", type=Path, default=SHIPPED)
    parser.add_argument("--results", type=Path, default=HERE / "results/entailment.json")
    parser.add_argument("--count", type=int, default=500, help="sentences of each part of ASQA")
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for part in options.parts:
        PARTS[part](options)


def choose(options: argparse.Namespace) -> None:
    """Choose the threshold by the mean balanced accuracy over three held-out sets."""
    judge = _judge(options)
    # Of SNLI nothing is needed.
    config = DataConfig(folder=str(options.data), limit=2, validation=1)
    held_out = read_split(config).documents_held_out
    pairs = {name: [(e.premise, e.hypothesis) for e in each] for name, each in held_out.items()}
    truth = {name: [e.is_entailed for e in each] for name, each in held_out.items()}
    drawn = [
        case
        for case in cases(_questions(options)[:FIRST], SPLITTER, options.count // 2)
        if case[0] in CHANGED + FALSE
    ]
    pairs["ASQA"] = [(passage, claim) for _, passage, claim in drawn]
    truth["ASQA"] = [kind in CHANGED for kind, _, _ in drawn]
    chances = {name: judge.probabilities(each) for name, each in pairs.items()}
    threshold, accuracy = best_threshold(truth, chances)
    found = {"threshold": threshold, "mean balanced accuracy where it was chosen": accuracy}
    _keep(options, found)
    write_card(options.scorer, _card(options).model_copy(update={"threshold": threshold}))


def accuracies(options: argparse.Namespace) -> None:
    """Measure the judge on the test sets."""
    found = measure(_judge(options), options.data)
    _keep(options, {"accuracy, int8 (the scorer that is used)": found})
    write_card(options.scorer, _card(options).model_copy(update={"accuracies": found}))


def sentences(options: argparse.Namespace) -> None:
    """Measure which sentences of ASQA's passages count as supported."""
    judge, questions = _judge(options), _questions(options)
    before: Entails = partial(_whole_premise, judge)
    found = {}
    for name, part in _split(questions).items():
        # A sentence has several changes: those of one in three are as many as the others.
        drawn = list(cases(part, SPLITTER, options.count, changed_every=3))
        found[name] = _shares(drawn, judge)
        verbatim = [case for case in drawn if case[0] == "verbatim"]
        found[name] |= {"whole premise, " + k: v for k, v in _shares(verbatim, before).items()}
    _keep(options, {"percent supported, sentences of ASQA's passages": found})


def control(options: argparse.Namespace) -> None:
    """Score the leading sentences of documents 1 and 2, correctly cited."""
    judge = _judge(options)
    judges: dict[str, Entails] = {"judge": judge, "whole premise": partial(_whole_premise, judge)}
    found = {
        f"{name}, {kind}": _control(part, entails)
        for name, part in _split(_questions(options)).items()
        for kind, entails in judges.items()
    }
    _keep(options, {"leading sentences of documents 1 and 2, cited": found})


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "choose": choose,
    "sentences": sentences,
    "control": control,
    "accuracies": accuracies,
}


def _whole_premise(judge: CrossEncoderEntailment, passages: Iterable[str], claim: str) -> bool:
    """Judge as version 0.1 did: the joined passages at once."""
    labels = judge.distributions([("\n".join(passages), claim)])[0]
    return float(labels[judge.labels.index("entailment")]) >= judge.about.threshold


def _shares(drawn: Sequence[Case], entails: Entails) -> dict[str, dict[str, float]]:
    """Return by kind: the number of cases, percent supported with Wilson's 95 % interval."""
    answers: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for kind, passage, claim in drawn:
        without_model = decided(passage, claim) is not None
        answers[kind].append((entails((passage,), claim), without_model))
    return {
        kind: {
            **_interval(sum(supported for supported, _ in each), len(each)),
            "decided without the model": round(100 * sum(own for _, own in each) / len(each), 1),
        }
        for kind, each in sorted(answers.items())
    }


def _interval(hits: int, n: int, z: float = 1.96) -> dict[str, float]:
    share, scale = hits / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    ends = {"supported": share, "low": middle - half, "high": middle + half}
    return {"n": n} | {name: round(100 * value, 1) for name, value in ends.items()}


def _control(questions: Sequence[AsqaQuestion], entails: Entails) -> dict[str, float]:
    judges = Judges(entails, SPLITTER)
    scores = [
        score_answer(question, leading_sentences(question, SPLITTER), 0.0, judges)
        for question in questions
    ]
    names = ("Citation_rec", "Citation_prec")
    means = {name: sum(score[name] for score in scores) / len(scores) for name in names}
    return {"questions": len(scores)} | {name: round(value, 1) for name, value in means.items()}


def _judge(options: argparse.Namespace) -> CrossEncoderEntailment:
    model, tokenizer, card = read_cross_encoder(options.scorer)
    about = Scorer(card.name, card.threshold)
    return CrossEncoderEntailment(model, tokenizer, about, card.max_length)


def _card(options: argparse.Namespace) -> Any:  # noqa: ANN401  (a pydantic model that is copied)
    return read_cross_encoder(options.scorer).card


def _questions(options: argparse.Namespace) -> list[AsqaQuestion]:
    return read_questions(options.asqa)


def _split(questions: Sequence[AsqaQuestion]) -> dict[str, Sequence[AsqaQuestion]]:
    return {
        f"questions 0-{FIRST - 1}": questions[:FIRST],
        f"questions {FIRST}-{len(questions) - 1}": questions[FIRST:],
    }


def _keep(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Put figures beside those that are kept already."""
    path, name = options.results, _card(options).name
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known[name] = known.get(name, {}) | figures
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
