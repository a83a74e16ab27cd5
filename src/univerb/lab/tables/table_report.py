"""A comparison with the paper as files (Markdown, LaTeX, JSON, a plot) and on the terminal."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from univerb.errors import MissingExtra
from univerb.lab.tables.comparison_plot import plot_comparison
from univerb.lab.tables.paper import Column, PaperRow
from univerb.lab.tables.paper_comparison import (
    ComparedCell,
    PaperComparison,
    ratio,
    setting_label,
    setting_text,
)
from univerb.lab.tables.table_results import SystemRow, TableCell

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Report:
    """A table that was made."""

    name: str
    """Of its files."""
    comparison: PaperComparison

    @property
    def title(self) -> str:
        """The heading of the page."""
        table = self.comparison.table
        return f"Table {table.number} of the paper: {table.title}"

    @property
    def settings(self) -> dict[str, str]:
        """What the values were measured with; what is not known is left out."""
        result = self.comparison.result
        known = {
            setting_label(name): setting_text(value)
            for name, value in asdict(result.setup).items()
            if value not in ("", None)
        }
        return known | dict(result.facts)

    @property
    def notes(self) -> list[str]:
        """Numbered reasons why values do not compare, then what a reader must know."""
        result, table = self.comparison.result, self.comparison.table
        reasons = [f"[{n}] {reason}" for n, reason in enumerate(self.comparison.reasons, 1)]
        ratios = [f"Ratios are to {table.baseline}, on each side."] if table.baseline else []
        return [*reasons, *result.notes, *self._other_settings(), *ratios, *table.notes]

    def _other_settings(self) -> Iterator[str]:
        common = asdict(self.comparison.result.setup)
        for row in self.comparison.rows:
            if row.setup:
                other = ", ".join(
                    f"{setting_label(name)}: {setting_text(value)}"
                    for name, value in asdict(row.setup).items()
                    if value != common[name]
                )
                yield f"{row.name} {row.decoding}".strip() + f" was measured with {other}."

    def write(self, folder: Path) -> str:
        """Write the page as Markdown, LaTeX and JSON, and its plot, into an existing folder.

        Returns why there is no plot; empty if there is one. The values took long to measure: they
        are written in any case.
        """
        problem, plot = "", folder / f"{self.name}.png"
        try:
            plot_comparison(plot, self.comparison)
        except (MissingExtra, OSError) as error:
            problem = str(error)
        content = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        picture = plot.name if plot.exists() else ""
        pages = {"md": self.markdown(picture), "tex": self.latex(), "json": content + "\n"}
        for suffix, page in pages.items():
            (folder / f"{self.name}.{suffix}").write_text(page, encoding="utf-8")
        return problem

    def markdown(self, picture: str = "") -> str:
        """Return the page as Markdown, with the file name of its plot if there is one."""
        frame = paper_layout(self.comparison).map(_markdown_text).rename(columns=_markdown_text)
        blocks = [
            f"# {_markdown_text(self.title)}",
            "\n".join(f"- {_markdown_text(f'{k}: {v}')}" for k, v in self.settings.items()),
            str(frame.to_markdown(index=False, disable_numparse=True)),
            "\n".join(f"- {_markdown_text(note)}" for note in self.notes),
            f"![{_markdown_text(self.title)}]({picture})" if picture else "",
        ]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX, to be used with the package booktabs."""
        frame = paper_layout(self.comparison).map(_plain_text)
        # A bracket that begins a row would be read as an option of the row before it.
        table = re.sub(r"^\[", "{[}", frame.to_latex(index=False, escape=True), flags=re.MULTILINE)
        for symbol, command in {"↑": r"\uparrow", "↓": r"\downarrow", "±": r"\pm"}.items():
            table = table.replace(symbol, f"${command}$")
        settings = "; ".join(f"{name}: {text}" for name, text in self.settings.items())
        return f"% {_plain_text(f'{self.title}. Measured with {settings}')}.\n{table}"

    def to_dict(self) -> dict[str, Any]:
        """Return the table's name, what was measured, and every comparison, for JSON."""
        return {
            "table": self.comparison.table.name,
            "result": asdict(self.comparison.result),
            "cells": [asdict(cell) for cell in self.comparison.cells],
        }

    def terminal(self) -> "Table":
        """Return a line for each value, for a terminal; names are never read as markup."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), box=SIMPLE_HEAD, pad_edge=False)
        header = ("Measure", "Here", "Ratio", "Paper", "Ratio", "Comparable?")
        for name in (self.comparison.table.heading, *header):
            table.add_column(Text(name), overflow="fold")
        columns = {column.name: column for column in self.comparison.columns}
        for cell in self.comparison.cells:
            column = columns[cell.column]
            texts = (
                cell.label,
                column.title,
                _value(cell.measured, column),
                _ratio(cell.ratio),
                _value(cell.paper, column),
                _ratio(cell.paper_ratio),
                _comparable([cell], self.comparison),
            )
            table.add_row(*(Text(_plain_text(text)) for text in texts))
        return table


def paper_layout(comparison: PaperComparison) -> "DataFrame":
    """Return the table in the paper's layout: its rows, ours below them, and last what compares."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise MissingExtra("pandas", "eval") from None
    rows: list[list[str]] = []
    for paper_row in comparison.table.rows:
        rows.append(_paper_cells(comparison, paper_row))
        rows += [_our_cells(comparison, r) for r in comparison.rows if _refers(r, paper_row)]
    rows += [_our_cells(comparison, row) for row in comparison.rows if not row.paper_row]
    comparable = [
        _comparable([cell for cell in comparison.cells if cell.column == column.name], comparison)
        for column in comparison.columns
    ]
    rows.append(["comparable?", "", "", "", *comparable])
    names = [comparison.table.heading, "Section", "Decoding", "From"]
    frame = DataFrame(rows, columns=[*names, *(column.title for column in comparison.columns)])
    return frame.drop(columns=[name for name in names if not frame[name].any()])


def _refers(row: SystemRow, paper_row: PaperRow) -> bool:
    is_same = (row.paper_row, row.section) == (paper_row.name, paper_row.section)
    return is_same and paper_row.decoding in ("", row.decoding)


def _paper_cells(comparison: PaperComparison, row: PaperRow) -> list[str]:
    base = comparison.table.baseline_of(row.section, row.decoding)
    cells = [row.label, row.section, row.decoding, "paper"]
    for column in comparison.columns:
        value = row.values.get(column.name)
        base_value = base.values.get(column.name) if base and base is not row else None
        cells.append(_with_ratio(_value(value, column), ratio(value, base_value)))
    return cells


def _our_cells(comparison: PaperComparison, row: SystemRow) -> list[str]:
    key = (row.name, row.section, row.decoding)
    compared = [cell for cell in comparison.cells if (cell.row, cell.section, cell.decoding) == key]
    ratios = {cell.column: cell.ratio for cell in compared}
    cells = [row.name, row.section, row.decoding, "univerb"]
    for column in comparison.columns:
        text = _value(row.cells.get(column.name), column)
        cells.append(_with_ratio(text, ratios.get(column.name)))
    return cells


def _comparable(cells: list[ComparedCell], comparison: PaperComparison) -> str:
    """Say what compares, with the numbers of the reasons."""
    words = " / ".join(dict.fromkeys(cell.comparability or MISSING for cell in cells))
    numbers = {comparison.reasons.index(reason) + 1 for cell in cells for reason in cell.reasons}
    return f"{words} {sorted(numbers)}" if numbers else words or MISSING


def _value(value: TableCell | float | None, column: Column) -> str:
    if isinstance(value, TableCell):
        spread = "" if value.spread is None else f" ± {value.spread:.{column.decimals}f}"
        return f"{value.value:.{column.decimals}f}{spread}"
    return MISSING if value is None else f"{value:.{column.decimals}f}"


def _ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}x"


def _with_ratio(text: str, value: float | None) -> str:
    return text if value is None else f"{text} ({_ratio(value)})"


def _plain_text(text: str) -> str:
    """Return a text in one line, without control characters."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def _markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", _plain_text(text))
