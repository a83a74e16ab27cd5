"""What happened in a run, step by step: `log.jsonl`, and TensorBoard if it is wanted."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from univerb.errors import CheckpointError, MissingExtra

LOG = "log.jsonl"
Kind = Literal["step", "validation"]


class Journal:
    """The log of a run. One that goes on drops what was written after its checkpoint."""

    def __init__(self, folder: Path, step: int, tensorboard: bool = False) -> None:
        self._path = folder / LOG
        self._board: Any = _board(folder, step) if tensorboard else None
        try:
            _cut(self._path, step)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        self._file.close()

    def write(self, kind: Kind, step: int, values: Mapping[str, float]) -> None:
        """Add a line.

        Args:
            kind: What it tells of.
            step: Steps done.
            values: Figures by name.

        Raises:
            CheckpointError: If it cannot be written.
        """
        plain = {name: _short(value) for name, value in values.items()}
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **plain}) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> None:
        """Bring the log onto the disk: a checkpoint must not know more than the log."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"cannot write {str(self._path)!r}: {error.strerror or error}. Make room or give a "
            "folder that can be written, and run the same command again."
        )


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's log; a last one that is cut short is left out."""
    try:
        text = (folder / LOG).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            lines.append(value)
    return lines


def _cut(path: Path, step: int) -> None:
    """Drop the lines after a step: it will be done again."""
    if not path.is_file():
        return
    kept = [line for line in read_log(path.parent) if line["step"] <= step]
    draft = path.with_name(f".{path.name}")
    try:
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _short(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _board(folder: Path, step: int) -> Any:  # noqa: ANN401
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "train") from None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
