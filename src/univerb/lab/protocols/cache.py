"""Results document by document, kept on disk as they come, so that a run can stop and go on."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from univerb._version import __version__
from univerb.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from univerb.corpus.corpus import Corpus
    from univerb.modeling.dynamic import DynamicLM


def results_key(lm: "DynamicLM", corpus: "Corpus | None", protocol: dict[str, Any]) -> str:
    """Return a hash of all that results depend on but the document.

    Args:
        lm: The model, with its encoder and its profile.
        corpus: Where phrases come from.
        protocol: The settings of the measurement, as JSON can hold them.

    Returns:
        The hash.
    """
    content = {
        "version": __version__,
        "protocol": protocol,
        "profile": lm.profile.model_dump(),
        "encoder": lm.fingerprint(),
        # Training with an adapter changes the LM itself, which the encoder's hash does not see.
        "backbone": weights_hash(lm.model),
        "corpus": corpus.manifest.model_dump(mode="json") if corpus else None,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def weights_hash(model: "nn.Module") -> str:
    """Return a hash of a model's weights: the same for any device and number of threads."""
    import torch

    content = hashlib.sha256()
    for own in model.parameters():
        # As bytes: numpy has no bfloat16.
        content.update(own.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]


class ResultCache:
    """Lines of JSON in a file that is named after all that the results depend on.

    Args:
        folder: Where to keep it; None keeps nothing on disk.
        key: A hash of what the results depend on.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._path = folder / f"documents-{key}.jsonl" if folder else None
        self._known: dict[tuple[str, str], Any] = {}
        if self._path and self._path.exists():
            self._read(self._path)

    def get(self, document: str, measure: str) -> Any:  # noqa: ANN401  (JSON can be anything)
        """Return what was found for a document, or None."""
        return self._known.get((document, measure))

    def put(self, document: str, measure: str, result: dict[str, Any]) -> None:
        """Keep what was found; it is on its way to the disk when this returns.

        Args:
            document: The document.
            measure: What was measured.
            result: What was found.

        Raises:
            OptionError: If the file cannot be written.
        """
        self._known[document, measure] = result
        if self._path:
            line = json.dumps({"document": document, "measure": measure, "result": result})
            self._append(self._path, line + "\n")

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{str(path)!r} cannot be read: {error}. Remove it.") from error
        lines = text.splitlines(keepends=True)
        for line in lines:
            try:
                own = json.loads(line)
                self._known[own["document"], own["measure"]] = own["result"]
            except (ValueError, KeyError, TypeError):
                # A run that was killed tears its last line: that result is made anew.
                continue
        if lines and not lines[-1].endswith("\n"):
            self._append(path, "\n")

    @staticmethod
    def _append(path: Path, text: str) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OptionError(
                f"{str(path)!r} cannot be written: {error.strerror}. Make room, or name another "
                "folder; what was measured before is kept."
            ) from error
