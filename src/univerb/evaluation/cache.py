"""Results document by document, kept on disk as they come, so that a run can stop and go on."""

import json
from pathlib import Path
from typing import Any

from univerb.errors import OptionError


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
