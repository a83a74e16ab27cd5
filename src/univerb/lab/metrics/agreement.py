"""Counts of preferences, and how much annotators agree (docs/method.md, Metrics: judging)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy

from univerb.errors import MissingExtra


class Rates(NamedTuple):
    """Shares that add up to 1."""

    better: float
    no_preference: float
    worse: float


class Tally(NamedTuple):
    """Number of cases in which ours was better than theirs, neither, and worse."""

    better: int
    no_preference: int
    worse: int

    @classmethod
    def of(cls, values: Iterable[int]) -> "Tally":
        """Count values: positive for better, 0 for no preference, negative for worse."""
        signs = Counter((value > 0) - (value < 0) for value in values)
        return cls(signs[1], signs[0], signs[-1])

    @property
    def total(self) -> int:
        """Number of cases."""
        return sum(self)

    @property
    def rates(self) -> Rates:
        """The shares; zeros for no case at all."""
        return Rates(*(count / max(self.total, 1) for count in self))

    def to_dict(self) -> dict[str, Any]:
        """Return counts and shares for JSON."""
        return {"counts": self._asdict(), "rates": self.rates._asdict()}


class Agreement(NamedTuple):
    """How much annotators agree."""

    raw: float
    """The share of pairs of annotators that agree: mean over items."""
    kappa: float | None
    """Agreement beyond chance; None where all labels are the same."""
    method: Literal["Cohen", "Fleiss"]
    """Cohen's for two annotators, Fleiss' for more."""

    def __str__(self) -> str:
        kappa = "undefined" if self.kappa is None else f"{self.kappa:.2f}"
        return f"agreement {self.raw:.2f}, kappa ({self.method}) {kappa}"


def agreement(ratings: Sequence[Sequence[int]]) -> Agreement:
    """Compare the labels that two or more annotators gave to the same items.

    Raises MissingExtra if scikit-learn or statsmodels is not installed.
    """
    try:
        from sklearn.metrics import cohen_kappa_score
        from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa
    except ImportError:
        raise MissingExtra("statsmodels", "eval") from None
    annotators = len(ratings)
    # (items, labels): annotators who gave the item the label.
    counts, labels = aggregate_raters(numpy.array(ratings).T)
    equal_pairs = (counts * (counts - 1)).sum(axis=1)
    raw = float(equal_pairs.mean() / (annotators * (annotators - 1)))
    method: Literal["Cohen", "Fleiss"] = "Cohen" if annotators == 2 else "Fleiss"
    if len(labels) == 1:
        return Agreement(raw, None, method)
    kappa = cohen_kappa_score(*ratings) if annotators == 2 else fleiss_kappa(counts)
    return Agreement(raw, float(kappa), method)
