"""Reports as Markdown: tables, and what a measurement was made with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def heading(title: str, command: str, about: Mapping[str, Any]) -> list[str]:
    """Return the lines that open a report: title, command, and one bullet for each fact."""
    lines = [f"# {title}", ""]
    lines += ["```", command, "```", ""] if command else []
    return [*lines, *(f"* {name}: {plain(value)}" for name, value in about.items()), ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, names to the left and figures to the right."""
    yield _row(header)
    yield "| --- |" + " ---: |" * (len(header) - 1)
    yield from map(_row, rows)


def plain(value: Any) -> str:  # noqa: ANN401  (any value that JSON can hold)
    """Return a setting or a figure as a reader wants it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(entry)}" for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(plain, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
