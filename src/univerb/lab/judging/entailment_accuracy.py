"""What an entailment scorer is worth: its accuracy on SNLI, WiCE and ExpertQA."""

from collections.abc import Callable, Sequence
from pathlib import Path

from univerb.lab.judging.entailment import CrossEncoderEntailment, Entailment, Pair
from univerb.lab.metrics.decisions import balanced_accuracy
from univerb.training.entailment_data import (
    LABELS,
    Example,
    read_expertqa,
    read_snli,
    read_wice,
)

DOCUMENTS: dict[str, tuple[Callable[[Path], list[Example]], str]] = {
    "WiCE test": (read_wice, "wice_oracle_chunks_claim_test.jsonl.gz"),
    "ExpertQA test": (read_expertqa, "expertqa_rand_test.jsonl.gz"),
    "WiCE test, whole pages": (read_wice, "wice_claim_test.jsonl.gz"),
}
Progress = Callable[[str], object]


def measure(
    scorer: Entailment,
    folder: Path,
    progress: Progress | None = None,
    documents: Sequence[str] = tuple(DOCUMENTS),
) -> dict[str, float]:
    """Measure a scorer on test sets that the default one was not trained on.

    Args:
        scorer: Whom.
        folder: The one with snli_test.tsv.gz and the others.
        progress: Called with the name of each test set as it begins.
        documents: Which of `DOCUMENTS`.

    Returns:
        Percentages by name: SNLI with three labels where the scorer has them, SNLI entailed or not,
        and the balanced accuracy on documents. Whole pages are scored by their best window.

    Raises:
        DocumentError: If a file cannot be read.
    """
    tell = progress or (lambda name: None)
    tell("SNLI test")
    snli = read_snli(folder / "snli_test.tsv.gz")
    found: dict[str, float] = {}
    if isinstance(scorer, CrossEncoderEntailment) and set(scorer.labels) == set(LABELS):
        choices = scorer.distributions(_pairs(snli)).argmax(-1).tolist()
        said = [scorer.labels[choice] for choice in choices]
        found["SNLI test, 3 labels"] = _accuracy([one.label for one in snli], said)
    truth = [one.is_entailed for one in snli]
    found["SNLI test"] = _accuracy(truth, scorer.entails(_pairs(snli)))
    for name in documents:
        read, file = DOCUMENTS[name]
        tell(name)
        examples = read(folder / file)
        truth = [one.is_entailed for one in examples]
        found[f"{name}, balanced"] = balanced_accuracy(truth, scorer.entails(_pairs(examples)))
    return found


def _pairs(examples: Sequence[Example]) -> list[Pair]:
    return [(one.premise, one.hypothesis) for one in examples]


def _accuracy(truth: Sequence[object], said: Sequence[object]) -> float:
    return 100.0 * sum(t == s for t, s in zip(truth, said, strict=True)) / len(truth)
