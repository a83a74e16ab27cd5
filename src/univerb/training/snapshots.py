"""Where a run stands, on disk: one file per checkpoint, whole or not there, no pickle.

step-00001200.safetensors   tensors by name; their meaning is the trainer's. Its metadata holds the
                            other facts and a sha256 of everything.

A file is written in a folder of drafts, brought onto the disk and renamed.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from univerb.errors import CheckpointError
from univerb.training.config import TrainingConfig

FORMAT = 1
DRAFTS, _LOCK = ".drafts", ".lock"
_NAME = re.compile(r"step-(\d{8,})\.safetensors")
# Settings that may change while a run goes on: they do not change what it computes.
_FREE = {
    "run.save_every",
    "run.keep",
    "run.validate_every",
    "run.tensorboard",
    "run.parallel",
    "frozen.cache",
}


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    """Steps done."""
    best: float | None = None
    """The best score so far, and the step that it belongs to."""
    best_step: int | None = None
    waited: int = 0
    """Validations since then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment: enough to go on as if it had not stopped."""

    progress: Progress
    tensors: dict[str, Tensor]
    config: dict[str, Any]


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Make a run's folder, keep other runs out of it, and clear what a killed one left.

    Args:
        folder: Where the run lies.

    Yields:
        Nothing.

    Raises:
        CheckpointError: If it cannot be written, or another run writes it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _failed(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CheckpointError(
            f"another run is writing {str(folder)!r}. Wait for it, or name another folder."
        ) from None
    try:
        shutil.rmtree(folder / DRAFTS, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def snapshot_paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    found = [(int(m[1]), path) for path in folder.glob("*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def write_snapshot(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Save where a run stands.

    Args:
        folder: The run's, owned by this process.
        snapshot: What to save.
        keep: How many checkpoints stay, this one included.

    Returns:
        The file.

    Raises:
        CheckpointError: If it cannot be written. The one before is still there then.
    """
    path = folder / f"step-{snapshot.progress.step:08d}.safetensors"
    tensors = {n: t.detach().cpu().contiguous() for n, t in snapshot.tensors.items()}
    facts = json.dumps(
        {"format": FORMAT, "progress": asdict(snapshot.progress), "config": snapshot.config}
    )
    metadata = {"univerb": facts, "sha256": _digest(facts, tensors)}
    with _written(path) as draft:
        save_file(tensors, draft, metadata)
    for old in snapshot_paths(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def read_newest(folder: Path, warn: Callable[[str], None]) -> Snapshot | None:
    """Read the newest checkpoint that is whole, and drop damaged ones after it.

    Args:
        folder: The run's, owned by this process.
        warn: Told of each damaged one.

    Returns:
        The snapshot, or None if the run has not saved anything yet.

    Raises:
        CheckpointError: If there are checkpoints and none of them is whole.
    """
    paths = snapshot_paths(folder)
    for place, path in enumerate(paths):
        try:
            snapshot = read_snapshot(path)
        except CheckpointError as error:
            warn(str(error))
            continue
        for damaged in paths[:place]:
            damaged.unlink(missing_ok=True)
        return snapshot
    if paths:
        raise CheckpointError(
            f"no checkpoint in {str(folder)!r} is whole ({len(paths)} are damaged). Restore one, "
            "or start over with --fresh."
        )
    return None


def read_snapshot(path: Path) -> Snapshot:
    """Read one checkpoint.

    Args:
        path: The file.

    Returns:
        What was saved.

    Raises:
        CheckpointError: If it is damaged or of another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = metadata["univerb"]
        if metadata["sha256"] != _digest(facts, tensors):
            raise ValueError("its content has changed since it was written")
        known = json.loads(facts)
        if known["format"] != FORMAT:
            raise ValueError(f"it has format {known['format']}, not {FORMAT}")
        return Snapshot(Progress(**known["progress"]), tensors, known["config"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(path)!r} is damaged: {error}.") from error


def check_same(saved: Mapping[str, Any], config: TrainingConfig) -> None:
    """Refuse to go on with settings under which the run would not be the same.

    Args:
        saved: The settings in a checkpoint.
        config: Those of now.

    Raises:
        CheckpointError: If one differs that matters.
    """
    try:
        # Through the model, so that a setting which is newer than the checkpoint has its default.
        before = _flat(TrainingConfig.model_validate(saved).model_dump(mode="json"))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise CheckpointError(
            f"the checkpoint was made by a univerb whose settings differ ({where}). Go on with "
            "that version, or start over with --fresh."
        ) from error
    now = _flat(config.model_dump(mode="json"))
    for name in sorted((before.keys() | now.keys()) - _FREE):
        if before.get(name) != now.get(name):
            raise CheckpointError(
                f"the checkpoint was made with {name} = {before.get(name)!r}, not "
                f"{now.get(name)!r}. Set it back, name another folder, or start over with --fresh."
            )


def replace_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Write a folder anew; the old one goes when the new one is complete.

    Args:
        final: Its path, in a folder that is owned by this process.
        write: Writes its files into a folder.

    Raises:
        CheckpointError: If it cannot be written.
    """
    with _written(final) as draft:
        draft.mkdir()
        write(draft)
        if final.exists():
            os.replace(final, draft.with_name("old"))


@contextmanager
def _written(final: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes `final` at the end, in one step."""
    drafts = final.parent / DRAFTS
    try:
        drafts.mkdir(exist_ok=True)
        draft = drafts / final.name
        yield draft
        _sync(draft)
        os.replace(draft, final)
        _sync(final.parent)
    except (OSError, SafetensorError) as error:
        raise _failed(final, error) from error
    finally:
        # Where the disk is full, half a file must not keep it so.
        shutil.rmtree(drafts, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    content = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _failed(path: Path, error: Exception) -> CheckpointError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return CheckpointError(
        f"cannot write {str(path)!r}: {reason}. Make room or give a folder that can be written, "
        "and run the same command again: it goes on from the last checkpoint."
    )
