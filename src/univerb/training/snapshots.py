"""Checkpoints of a run on disk: one file each, complete or not there, no pickle.

step-00001200.safetensors   tensors by name; their meaning is the trainer's. Its metadata holds
                            progress, settings, and a sha256 of everything.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from univerb.errors import CheckpointError
from univerb.files import atomic_path, exclusive_lock, remove_drafts
from univerb.training.config import TrainingConfig

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})\.safetensors")
# Settings that may change when a run is resumed: they do not change what it computes.
_FREE = {
    "run.save_every",
    "run.keep",
    "run.validate_every",
    "run.tensorboard",
    "run.parallel",
    "frozen.cache",
}
_RETRY = (
    "Make room or give a folder that can be written, and run the same command again: it resumes "
    "from the last checkpoint."
)


@dataclass(slots=True)
class RunProgress:
    """How far a run is."""

    step: int = 0
    """Steps done."""
    best: float | None = None
    """The best score so far, and its step."""
    best_step: int | None = None
    waited: int = 0
    """Validations since then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment: enough to resume it exactly."""

    progress: RunProgress
    tensors: dict[str, Tensor]
    config: dict[str, Any]


@contextmanager
def write_errors(path: Path, advice: str = _RETRY) -> Iterator[None]:
    """Turn errors of the disk into a CheckpointError that names the file and says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CheckpointError(f"cannot write {str(path)!r}: {reason}. {advice}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a run's folder, keep other runs out of it, and clear what a killed one left."""
    busy = CheckpointError(
        f"another run is writing {str(folder)!r}. Wait for it, or name another folder."
    )
    with ExitStack() as stack:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(folder / ".lock", busy))
            remove_drafts(folder)
        yield


def snapshot_paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    steps = [(int(m[1]), path) for path in folder.glob("*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(steps, reverse=True)]


def write_snapshot(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Save a checkpoint in a locked folder, and delete all but the `keep` newest ones.

    If it cannot be written, a CheckpointError says so and the older ones stay.
    """
    path = folder / f"step-{snapshot.progress.step:08d}.safetensors"
    tensors = {n: t.detach().cpu().contiguous() for n, t in snapshot.tensors.items()}
    facts = json.dumps(
        {"format": FORMAT, "progress": asdict(snapshot.progress), "config": snapshot.config}
    )
    metadata = {"univerb": facts, "sha256": digest(facts, tensors)}
    with write_errors(path), atomic_path(path) as draft:
        save_file(tensors, draft, metadata)
    for old in snapshot_paths(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def read_newest(folder: Path, warn: Callable[[str], None]) -> Snapshot | None:
    """Read the newest intact checkpoint; None if the run has not saved anything yet.

    Newer ones that are damaged are deleted, with a warning for each. If all are damaged, they stay
    and a CheckpointError says so.
    """
    paths = snapshot_paths(folder)
    for index, path in enumerate(paths):
        try:
            snapshot = read_snapshot(path)
        except CheckpointError as error:
            warn(str(error))
            continue
        for damaged in paths[:index]:
            damaged.unlink(missing_ok=True)
        return snapshot
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {str(folder)!r} are damaged. Restore one, or start "
            "over with --fresh."
        )
    return None


def read_snapshot(path: Path) -> Snapshot:
    """Read a checkpoint; CheckpointError if it is damaged or of another format."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = metadata["univerb"]
        if metadata["sha256"] != digest(facts, tensors):
            raise ValueError("its content has changed since it was written")
        values = json.loads(facts)
        if values["format"] != FORMAT:
            raise ValueError(f"it has format {values['format']}, not {FORMAT}")
        return Snapshot(RunProgress(**values["progress"]), tensors, values["config"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(path)!r} is damaged: {error}.") from error


def check_same(saved: Mapping[str, Any], config: TrainingConfig) -> None:
    """Raise CheckpointError if a run saved with other settings would not be the same run."""
    try:
        # Through the model, so that a setting which is newer than the checkpoint has its default.
        before = _flat(TrainingConfig.model_validate(saved))
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise CheckpointError(
            f"the checkpoint was made by a univerb whose settings differ ({key}). Resume it with "
            "that version, or start over with --fresh."
        ) from error
    now = _flat(config)
    for name in sorted((before.keys() | now.keys()) - _FREE):
        if before.get(name) != now.get(name):
            raise CheckpointError(
                f"the checkpoint was made with {name} = {before.get(name)!r}, not "
                f"{now.get(name)!r}. Set it back, name another folder, or start over with --fresh."
            )


def digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 of a text and of named tensors."""
    content = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        content.update(plain.view(torch.uint8).numpy().data)
    return content.hexdigest()


def _flat(config: TrainingConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        section = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{key}": item for key, item in section} or {name: value}
    return flat
