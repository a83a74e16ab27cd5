"""Judges of entailment that tests can see through."""

from collections.abc import Callable, Sequence

from univerb.entailment.scorers import Entailment, NliPair, Scorer


class FixedJudge(Entailment):
    """Gives every pair what a function says, and remembers what it was asked."""

    def __init__(self, probability: Callable[[str, str], float], threshold: float = 0.5) -> None:
        self.about = Scorer("fixed", threshold)
        self.asked: list[NliPair] = []
        self._probability = probability

    def probabilities(self, pairs: Sequence[NliPair]) -> list[float]:
        """Return what the function says of each pair."""
        self.asked += pairs
        return [self._probability(*pair) for pair in pairs]


def agreeing() -> FixedJudge:
    """Make a judge for whom everything is supported."""
    return FixedJudge(lambda premise, claim: 1.0)


def refusing() -> FixedJudge:
    """Make a judge for whom nothing is supported."""
    return FixedJudge(lambda premise, claim: 0.0)
