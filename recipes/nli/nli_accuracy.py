"""Accuracy of an entailment scorer on SNLI, WiCE and ExpertQA, and the choice of its threshold."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sklearn.metrics import accuracy_score, recall_score

from nli_data import LABELS, Example, read_expertqa, read_snli, read_wice
from univerb.entailment.scorers import CrossEncoderEntailment, Entailment, NliPair

DOCUMENTS: dict[str, tuple[Callable[[Path], list[Example]], str]] = {
    "WiCE test": (read_wice, "wice_oracle_chunks_claim_test.jsonl.gz"),
    "ExpertQA test": (read_expertqa, "expertqa_rand_test.jsonl.gz"),
    "WiCE test, whole pages": (read_wice, "wice_claim_test.jsonl.gz"),
}


def balanced_accuracy(truth: Sequence[bool], predicted: Sequence[bool]) -> float:
    """Return the mean recall of entailed and not entailed, in percent; guessing reaches 50."""
    recall = recall_score(truth, predicted, labels=sorted(set(truth)), average="macro")
    return 100.0 * float(recall)


def best_threshold(
    truth: Mapping[str, Sequence[bool]], probabilities: Mapping[str, Sequence[float]]
) -> tuple[float, float]:
    """Choose the probability from which a pair counts as entailed.

    Args:
        truth: Whether each pair is entailed, by corpus.
        probabilities: Of entailment, by corpus.

    Returns:
        The threshold with the best balanced accuracy, as the mean over corpora, and that accuracy.
    """
    levels = sorted({0.0, 1.0, *(p for corpus in probabilities.values() for p in corpus)})
    # Between two probabilities, so that rounding cannot change a decision.
    cuts = [(low + high) / 2 for low, high in zip(levels, levels[1:], strict=False)]

    def score(cut: float) -> float:
        each = [
            balanced_accuracy(labels, [p >= cut for p in probabilities[name]])
            for name, labels in truth.items()
        ]
        return sum(each) / len(each)

    best = max(cuts, key=score)
    return best, score(best)


def measure(
    scorer: Entailment, folder: Path, documents: Sequence[str] = tuple(DOCUMENTS)
) -> dict[str, float]:
    """Measure a scorer on test sets that the default one was not trained on.

    Args:
        scorer: The scorer.
        folder: Holds snli_test.tsv.gz and the other files.
        documents: Names of `DOCUMENTS` to measure.

    Returns:
        Percentages by name: SNLI with three labels where the scorer has them, SNLI entailed or not,
        and the balanced accuracy on documents. Whole pages are scored by their best window.
    """
    snli = read_snli(folder / "snli_test.tsv.gz")
    results: dict[str, float] = {}
    if isinstance(scorer, CrossEncoderEntailment) and set(scorer.labels) == set(LABELS):
        choices = scorer.distributions(_pairs(snli)).argmax(-1).tolist()
        results["SNLI test, 3 labels"] = 100.0 * accuracy_score(
            [example.label for example in snli], [scorer.labels[choice] for choice in choices]
        )
    results["SNLI test"] = 100.0 * accuracy_score(_truth(snli), scorer.entails(_pairs(snli)))
    for name in documents:
        read, file = DOCUMENTS[name]
        examples = read(folder / file)
        results[f"{name}, balanced"] = balanced_accuracy(
            _truth(examples), scorer.entails(_pairs(examples))
        )
    return results


def _pairs(examples: Sequence[Example]) -> list[NliPair]:
    return [(example.premise, example.hypothesis) for example in examples]


def _truth(examples: Sequence[Example]) -> list[bool]:
    return [example.is_entailed for example in examples]
