"""What verbs of the lab do with a report: write its pages, and print it."""

import json
import sys
from pathlib import Path
from typing import Any, Protocol

from univerb.cli.console import console, print_json
from univerb.lab.disk_errors import writing


class LabReport(Protocol):
    """A report with its two faces."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        ...

    def markdown(self, command: str) -> str:
        """Return the report as a page of Markdown."""
        ...


def publish(report: LabReport, name: str, folder: Path | None, as_json: bool) -> None:
    """Write a report's pages into a folder, if there is one, and print it."""
    # A report names no folder of this machine; a name may have bytes that are no text.
    command = "univerb " + " ".join(Path(typed).name for typed in sys.argv[1:])
    command = command.encode(errors="replace").decode()
    content, page = report.to_dict(), report.markdown(command)
    if folder:
        with writing(folder, "Name another --out."):
            # Pages are for people; indented, every number of a text would have a line of its own.
            text = json.dumps(content) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
            (folder / f"{name}.md").write_text(page, encoding="utf-8")
    if as_json:
        print_json(content)
    else:
        console.print(page, markup=False, highlight=False, soft_wrap=True)
