"""The metrics of a run, step by step: `log.jsonl`, and TensorBoard if it is wanted."""

import math
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Self

from univerb.errors import MissingExtra
from univerb.files import JsonLines
from univerb.training.snapshots import write_errors

LOG = "log.jsonl"


class MetricsLogger:
    """The log of a run; opened after `step` steps, it drops what was written after them."""

    def __init__(self, folder: Path, step: int, tensorboard: bool = False) -> None:
        self._path = folder / LOG
        self._board: Any = _summary_writer(folder, step) if tensorboard else None
        with write_errors(self._path):
            self._lines = JsonLines(self._path)
            self._lines.truncate(
                sum(1 for _ in takewhile(lambda r: r["step"] <= step, self._lines))
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        self._lines.close()

    def write(
        self, kind: Literal["step", "validation"], step: int, metrics: Mapping[str, float]
    ) -> None:
        """Add a line; it is on the disk when this returns. CheckpointError if it cannot be."""
        rounded = {name: _rounded(value) for name, value in metrics.items()}
        with write_errors(self._path):
            self._lines.append({"kind": kind, "step": step, **rounded})
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)


def _rounded(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _summary_writer(folder: Path, step: int) -> Any:  # noqa: ANN401
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "train") from None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
