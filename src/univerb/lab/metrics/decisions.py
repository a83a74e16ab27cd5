"""Yes or no: how well it is told, and from which probability on it should be yes."""

from collections.abc import Mapping, Sequence


def balanced_accuracy(truth: Sequence[bool], found: Sequence[bool]) -> float:
    """Return the mean of the shares of yes and of no that were found, in percent.

    Args:
        truth: What is so.
        found: What was said.

    Returns:
        50 for who always says the same; 0 if nothing was asked.
    """
    shares = []
    for value in (True, False):
        own = [f == t for t, f in zip(truth, found, strict=True) if t == value]
        shares += [sum(own) / len(own)] if own else []
    return 100.0 * sum(shares) / max(len(shares), 1)


def best_threshold(
    truth: Mapping[str, Sequence[bool]], probabilities: Mapping[str, Sequence[float]]
) -> tuple[float, float]:
    """Choose from which probability on a pair counts as entailed.

    Args:
        truth: What is so, by corpus.
        probabilities: Of entailment, by corpus.

    Returns:
        The threshold with the best balanced accuracy, as the mean over corpora, and that accuracy.
    """
    seen = sorted({0.0, 1.0, *(p for own in probabilities.values() for p in own)})
    # Between two probabilities, so that rounding cannot turn a decision round.
    cuts = [(low + high) / 2 for low, high in zip(seen, seen[1:], strict=False)]

    def score(cut: float) -> float:
        each = [
            balanced_accuracy(own, [p >= cut for p in probabilities[name]])
            for name, own in truth.items()
        ]
        return sum(each) / max(len(each), 1)

    best = max(cuts, key=score)
    return best, score(best)
