"""Hooks into a training run, called by its first process only."""

from pathlib import Path


class Callback:
    """Does nothing; override what you need."""

    def on_train_begin(self, step: int) -> None:
        """Called before the first step; `step` counts those of a run that is resumed."""

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Called with loss, its terms, rate, grad_norm, rows_per_second and seconds of a step."""

    def on_validation(self, step: int, metrics: dict[str, float], is_best: bool) -> None:
        """Called after a validation."""

    def on_save(self, step: int, path: Path) -> None:
        """Called after a checkpoint was written."""

    def on_warning(self, message: str) -> None:
        """Called with a message for the user, such as a damaged checkpoint."""
