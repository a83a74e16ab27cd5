"""What judges prefer, counted, and how much they agree (METHOD C.10, C.11)."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple


class Rates(NamedTuple):
    """Shares that add up to 1."""

    better: float
    no_preference: float
    worse: float


class Tally(NamedTuple):
    """How often ours was better than theirs, neither, and worse."""

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
        """How many there are."""
        return sum(self)

    @property
    def rates(self) -> Rates:
        """The shares; of nothing at all they are 0."""
        return Rates(*(count / max(self.total, 1) for count in self))

    def to_dict(self) -> dict[str, Any]:
        """Return counts and shares as JSON can hold them."""
        return {"counts": self._asdict(), "rates": self.rates._asdict()}


class Agreement(NamedTuple):
    """How much annotators agree."""

    raw: float
    """The share of pairs of annotators that agree: mean over items."""
    kappa: float | None
    """What is left of it beyond chance; None where chance alone makes all agree."""
    method: Literal["Cohen", "Fleiss"]
    """Cohen's for two annotators, Fleiss' for more."""

    def __str__(self) -> str:
        kappa = "undefined" if self.kappa is None else f"{self.kappa:.2f}"
        return f"agreement {self.raw:.2f}, kappa ({self.method}) {kappa}"


def agreement(ratings: Sequence[Sequence[Hashable]]) -> Agreement:
    """Compare annotators.

    Args:
        ratings: For each annotator, two or more, the labels of the same items.

    Returns:
        The raw agreement, and kappa.
    """
    raw = _raw(ratings)
    if len(ratings) == 2:
        return Agreement(raw, cohen_kappa(*ratings), "Cohen")
    return Agreement(raw, fleiss_kappa(ratings), "Fleiss")


def _raw(ratings: Sequence[Sequence[Hashable]]) -> float:
    items = [Counter(labels) for labels in zip(*ratings, strict=True)]
    equal = sum(count * (count - 1) for labels in items for count in labels.values())
    return equal / (len(items) * len(ratings) * (len(ratings) - 1))


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Return Cohen's kappa of two annotators; None if each gave all items the same one label."""
    equal = sum(one == two for one, two in zip(first, second, strict=True))
    own, other, total = Counter(first), Counter(second), len(first)
    return _beyond_chance(equal / total, sum(own[label] * other[label] for label in own) / total**2)


def fleiss_kappa(ratings: Sequence[Sequence[Hashable]]) -> float | None:
    """Return Fleiss' kappa, for which chance is the shares of labels over all annotators.

    Args:
        ratings: For each annotator the labels of the same items.

    Returns:
        Kappa; None if all labels are the same.
    """
    labels = Counter(label for own in ratings for label in own)
    return _beyond_chance(
        _raw(ratings), sum(count**2 for count in labels.values()) / labels.total() ** 2
    )


def _beyond_chance(observed: float, expected: float) -> float | None:
    return None if expected == 1.0 else (observed - expected) / (1.0 - expected)
