"""Reports as Markdown: tables, and what a measurement was made with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def heading(title: str, command: str, about: Mapping[str, Any]) -> list[str]:
    """Return the lines that open a report: title, command, and one bullet for each fact."""
    lines = [f"# {title}", ""]
    lines += ["```", command, "```", ""] if command else []
    return [*lines, *(f"* {name}: {plain(value)}" for name, value in about.items()), ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table that can be read as it is: columns are aligned."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for line in (lines[0], rule, *lines[1:]):
        first, *figures = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in figures)]
        yield "| " + " | ".join(cells) + " |"


def plain(value: Any) -> str:  # noqa: ANN401  (any value that JSON can hold)
    """Return a setting or a figure as a reader wants it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(entry)}" for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(plain, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def code(text: str) -> str:
    """Return a text in one line, as code: Markdown would take some of it for its own."""
    plain = " ".join(text.replace("`", "'").split())
    return f"`{plain}`"
