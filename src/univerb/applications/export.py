"""From a run to an encoder that others load: precision and profile are set here, never by hand."""

import shutil
from pathlib import Path
from typing import Any, Literal

from univerb.config import Profile
from univerb.errors import CheckpointError, OptionError
from univerb.files import atomic_folder
from univerb.modeling.card import CARD
from univerb.modeling.dynamic import DynamicLM
from univerb.training.metrics_logger import LOG
from univerb.training.trainer import EXPORT, SETTINGS

Dtype = Literal["float16", "float32"]


def export_run(
    run: Path, folder: Path, dtype: Dtype = "float16", profile: dict[str, Any] | None = None
) -> DynamicLM:
    """Write the encoder of a run for shipping, with what it was trained by.

    Args:
        run: The run's folder, or that of an encoder.
        folder: A new folder: the encoder, its settings, and the run's settings and log.
        dtype: Of the weights on disk; loading widens them again.
        profile: Default options of a generation that replace those of the run.

    Returns:
        The encoder with its LM, as it was before its weights were rounded.

    Raises:
        CheckpointError: If there is no encoder, or it cannot be written.
        OptionError: If the folder exists.
    """
    source = run / EXPORT if (run / EXPORT / CARD).is_file() else run
    if not (source / CARD).is_file():
        raise CheckpointError(
            f"{str(run)!r} has no encoder yet. Give the folder of a run (univerb train) that has "
            "validated once or has ended."
        )
    if folder.exists():
        raise OptionError(f"{str(folder)!r} exists already. Name another folder, or move it away.")
    lm = DynamicLM.from_pretrained(str(source))
    lm.profile = Profile.model_validate(lm.profile.model_dump() | (profile or {}))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        lm.save_pretrained(draft, half=dtype == "float16")
        for name in (SETTINGS, LOG):
            if (run / name).is_file():
                shutil.copyfile(run / name, draft / name)
    return lm
