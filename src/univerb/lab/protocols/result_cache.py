"""Results kept on disk as they come, so that a run that was stopped continues where it was."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from univerb._version import __version__
from univerb.files import JsonLines
from univerb.lab.disk_errors import writing

if TYPE_CHECKING:
    from torch import nn

    from univerb.corpus.corpus import Corpus
    from univerb.modeling.dynamic import DynamicLM


def results_key(lm: "DynamicLM", corpus: "Corpus | None", protocol: dict[str, Any]) -> str:
    """Return a hash of everything that results depend on except the document."""
    content = {
        "version": __version__,
        "protocol": protocol,
        "profile": lm.profile.model_dump(),
        "encoder": lm.fingerprint(),
        # Training with an adapter changes the LM itself, which the encoder's hash does not see.
        "backbone": weights_hash(lm.model),
        "corpus": corpus.manifest.model_dump(mode="json") if corpus else None,
    }
    return short_hash(content, sort_keys=True)


def short_hash(content: object, *, sort_keys: bool = False) -> str:
    """Return a hash of what JSON can hold."""
    text = json.dumps(content, sort_keys=sort_keys)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_hash(model: "nn.Module") -> str:
    """Return a hash of a model's weights: the same for any device and number of threads."""
    import torch

    content = hashlib.sha256()
    for weight in model.parameters():
        # As bytes: numpy has no bfloat16.
        content.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]


class ResultCache:
    """Results by document and measure, in a file named after everything that they depend on.

    Args:
        folder: The folder of the file; made if missing. None keeps nothing on disk.
        key: A hash of what the results depend on.

    Raises:
        OptionError: If the file cannot be written, or is damaged.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._path = folder / f"documents-{key}.jsonl" if folder else None
        self._results: dict[tuple[str, str], Any] = {}
        for row in self._transfer():
            self._results[row["document"], row["measure"]] = row["result"]

    def get(self, document: str, measure: str) -> Any:  # noqa: ANN401  (JSON can be anything)
        """Return the result for a document, or None."""
        return self._results.get((document, measure))

    def put(self, document: str, measure: str, result: dict[str, Any]) -> None:
        """Keep a result; it is on the disk when this returns."""
        self._transfer({"document": document, "measure": measure, "result": result})
        self._results[document, measure] = result

    def _transfer(self, *rows: dict[str, Any]) -> list[dict[str, Any]]:
        """Append rows to the file, or read it if there are none.

        The file is open for a moment only: several runs of one process may share it.
        """
        if self._path is None:
            return []
        advice = "Make room, or name another folder; what was measured before is kept."
        with writing(self._path, advice):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with JsonLines(self._path) as lines:
                if rows:
                    lines.append(*rows)
                return [] if rows else list(lines)
