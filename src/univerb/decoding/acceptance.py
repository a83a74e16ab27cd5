"""How long a draft should be: as long as it is expected to save time.

A pass over n drafted tokens costs what its rows cost, and writes one token and those that are
accepted. How many that will be is estimated from what became of earlier drafts: by where they came
from, and by how many tokens agreed before each of them.
"""

from collections.abc import Iterable
from typing import Literal

from univerb.engines.row_costs import MAX_ROWS, RowCosts

DraftSource = Literal["documents", "text"]

_PRIOR: dict[DraftSource, tuple[float, ...]] = {
    "documents": (0.30, 0.35, 0.40, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90),
    "text": (0.34, 0.50, 0.70, 0.75, 0.80, 0.85, 0.85, 0.88, 0.92, 0.92, 0.94, 0.96),
}
"""Part of drafted tokens that is accepted after 1, 2 … tokens that agree, before any is tried:
about what became of drafts in 24 texts of the default model (decision 0035)."""
_MAX_MATCH = 12
"""Longer matches count as this long."""
_PRIOR_WEIGHT = 4.0
"""Number of tried tokens that the prior counts as."""
_MIN_GAIN = 1.03
"""Expected tokens per time, to those without a draft, from which on one is tried."""


class AcceptanceRates:
    """What became of the drafts of one sequence."""

    def __init__(self) -> None:
        self._accepted = {source: [_PRIOR_WEIGHT * p for p in _PRIOR[source]] for source in _PRIOR}
        self._tried = {source: [_PRIOR_WEIGHT] * _MAX_MATCH for source in _PRIOR}

    def update(self, source: DraftSource, match: int, drafted: int, accepted: int) -> None:
        """Count a draft of which the first tokens were accepted.

        Args:
            source: Where it came from.
            match: Number of tokens that agreed before it.
            drafted: Its number of tokens.
            accepted: Number of those that were accepted.
        """
        for at in range(min(accepted + 1, drafted)):
            bucket = min(match + at, _MAX_MATCH) - 1
            self._tried[source][bucket] += 1.0
            self._accepted[source][bucket] += at < accepted

    def expected(self, source: DraftSource, match: int) -> Iterable[float]:
        """Yield the probability that each next token of a draft is accepted, given the last was."""
        for at in range(MAX_ROWS):
            bucket = min(match + at, _MAX_MATCH) - 1
            yield self._accepted[source][bucket] / self._tried[source][bucket]


def best_length(
    rates: Iterable[float], longest: int, costs: RowCosts, rows: int, batch_size: int
) -> tuple[int, float]:
    """Choose how many tokens to draft.

    Args:
        rates: The probability that each is accepted, given that those before it are.
        longest: Maximum number.
        costs: What passes cost.
        rows: Rows of the sequence without a draft.
        batch_size: Number of sequences in the pass, all taken to draft alike.

    Returns:
        The number, and the expected tokens per cost of a pass over one row.
    """
    expected, reached = float(rows), 1.0
    plain = expected * batch_size / costs(rows * batch_size)
    best, best_value = 0, plain * _MIN_GAIN
    for count, rate in zip(range(1, longest + 1), rates, strict=False):
        reached *= rate
        expected += reached
        value = expected * batch_size / costs((rows + count) * batch_size)
        if value > best_value:
            best, best_value = count, value
    return best, best_value if best else plain
