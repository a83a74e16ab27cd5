"""Who is told how a run goes."""

from pathlib import Path
from typing import Protocol


class Observer(Protocol):
    """Who is told how a run goes; only in the first process."""

    def began(self, step: int) -> None:
        """Tell where the run starts or goes on."""
        ...

    def stepped(self, step: int, figures: dict[str, float]) -> None:
        """Tell of a step: its loss, terms, rate, grad_norm, rows_per_second and seconds."""
        ...

    def validated(self, step: int, figures: dict[str, float], is_best: bool) -> None:
        """Tell of a validation."""
        ...

    def saved(self, step: int, path: Path) -> None:
        """Tell of a checkpoint."""
        ...

    def warned(self, message: str) -> None:
        """Tell of something that the user should know."""
        ...


class Silence:
    """An observer that says nothing."""

    def began(self, step: int) -> None:
        """Say nothing."""

    def stepped(self, step: int, figures: dict[str, float]) -> None:
        """Say nothing."""

    def validated(self, step: int, figures: dict[str, float], is_best: bool) -> None:
        """Say nothing."""

    def saved(self, step: int, path: Path) -> None:
        """Say nothing."""

    def warned(self, message: str) -> None:
        """Say nothing."""
