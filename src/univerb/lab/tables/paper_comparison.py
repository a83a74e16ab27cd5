"""Measurements beside a table of the paper: values, ratios, and whether they compare.

What values depend on is listed in docs/method.md, Comparability.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from univerb.errors import OptionError, did_you_mean
from univerb.lab.tables.paper import (
    Column,
    Comparability,
    Need,
    PaperRow,
    PaperTable,
    paper_columns,
)
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult

ENOUGH = 0.9
"""The share of the paper's number of cases that counts as the same number."""
NOT_IN_PAPER = "the paper has no such value"


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A measurement and the paper's value."""

    row: str
    section: str
    decoding: str
    paper_row: str
    """The label of the paper's row; empty if there is none."""
    column: str
    measured: TableCell
    n: int
    paper: float | None
    ratio: float | None
    """To our baseline; None for the baseline itself, or if there is none."""
    paper_ratio: float | None
    comparability: Comparability | None
    """None if the paper has no such value."""
    reasons: tuple[str, ...]
    """Why they do not compare, each a short text."""

    @property
    def label(self) -> str:
        """The name of the row, with its section and decoding."""
        return _row_label(self.section, self.row, self.decoding)


@dataclass(frozen=True, slots=True)
class PaperComparison:
    """Measurements beside a table."""

    table: PaperTable
    result: TableResult
    columns: tuple[Column, ...]
    """The paper's, then those that were only measured."""
    rows: tuple[SystemRow, ...]
    """The measured rows that belong to the table."""
    cells: tuple[ComparedCell, ...]
    """For each row and column that was measured."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason why values do not compare, each once."""
        return tuple(dict.fromkeys(reason for cell in self.cells for reason in cell.reasons))


def compare_with_paper(result: TableResult, table: PaperTable) -> PaperComparison:
    """Set measurements beside a table, without rows of a decoding that it does not have.

    Raises OptionError if a row refers to one that the table does not have, if two rows are the
    same, or if a column is neither the paper's nor one of the result's `extra`.
    """
    decodings = set(table.decodings)
    rows = tuple(row for row in result.rows if not row.decoding or {row.decoding, ""} & decodings)
    _check_rows(rows, table)
    result = replace(result, rows=rows)
    columns = (*table.columns, *_extra_columns(result, table))
    cells = tuple(
        _compared(row, column, result, table)
        for row in rows
        for column in columns
        if column.name in row.cells
    )
    return PaperComparison(table, result, columns, rows, cells)


def unmet(needs: Mapping[str, Need], setup: Setup) -> list[str]:
    """Return a short text for each setting, a field of `Setup`, that differs from the paper's."""
    return [
        f"{setting_label(name)}: {setting_text(getattr(setup, name))} here, "
        f"{_need_text(name, need)} in the paper"
        for name, need in needs.items()
        if not _is_met(name, need, getattr(setup, name))
    ]


def setting_label(name: str) -> str:
    """Return the words for a field of `Setup`."""
    labels = {"n": "N", "nli": "NLI", "kv_cache": "KV cache", "timed": "inside the timed part"}
    return labels.get(name, name)


def setting_text(value: Need | None) -> str:
    """Return the words for a value of `Setup`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value in ("", None) else str(value)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return a value in relation to another; None if one is missing, or the other is zero."""
    return value / base if value is not None and base else None


def _check_rows(rows: tuple[SystemRow, ...], table: PaperTable) -> None:
    labels = [_row_label(row.section, row.name, row.decoding) for row in rows]
    if duplicates := [label for label in labels if labels.count(label) > 1]:
        raise OptionError(f"Two rows are {duplicates[0]!r}. Give each a name of its own.")
    paper_labels = {_row_label(row.section, row.name, row.decoding) for row in table.rows}
    for row in rows:
        if row.paper_row and not table.row(row.paper_row, row.section, row.decoding):
            wanted = _row_label(row.section, row.paper_row, row.decoding)
            raise OptionError(
                f"Table {table.name!r} has no row {wanted!r} to compare {row.name!r} with. "
                + did_you_mean(wanted, paper_labels)
            )


def _row_label(section: str, name: str, decoding: str) -> str:
    label = f"{section}: {name}" if section else name
    return f"{label} ({decoding})" if decoding else label


def _extra_columns(result: TableResult, table: PaperTable) -> list[Column]:
    """Return the columns that were measured and that the table does not have."""
    in_table = {column.name for column in table.columns}
    known = paper_columns() | {column.name: column for column in result.extra}
    names = dict.fromkeys(name for row in result.rows for name in row.cells if name not in in_table)
    if unknown := [name for name in names if name not in known]:
        raise OptionError(
            f"Neither the paper nor the result's `extra` has a column {unknown[0]!r}. Add it "
            f"there. {did_you_mean(unknown[0], known)}"
        )
    return [known[name] for name in names]


def _compared(
    row: SystemRow, column: Column, result: TableResult, table: PaperTable
) -> ComparedCell:
    cell, setup = row.cells[column.name], row.setup or result.setup
    n = setup.n if cell.n is None else cell.n
    paper_column = next((each for each in table.columns if each.name == column.variant_of), column)
    paper_row = table.row(row.paper_row, row.section, row.decoding) if row.paper_row else None
    paper = paper_row.values.get(paper_column.name) if paper_row else None
    base = table.baseline_of(row.section, row.decoding)
    base_cell = _baseline_cell(row, column, base, result)
    base_value = base.values.get(paper_column.name) if base and base is not paper_row else None
    reasons = [NOT_IN_PAPER]
    comparability: Comparability | None = None
    if paper_row and paper is not None:
        reasons = _reasons(paper_row, column, paper_column, replace(setup, n=n))
        comparability = paper_column.fallback if reasons else "yes"
    return ComparedCell(
        row=row.name,
        section=row.section,
        decoding=row.decoding,
        paper_row=paper_row.label if paper_row else "",
        column=column.name,
        measured=cell,
        n=n,
        paper=paper,
        ratio=ratio(cell.value, base_cell.value if base_cell else None),
        paper_ratio=ratio(paper, base_value),
        comparability=comparability,
        reasons=tuple(reasons),
    )


def _baseline_cell(
    row: SystemRow, column: Column, base: PaperRow | None, result: TableResult
) -> TableCell | None:
    """Return the same column of our baseline row; None for the baseline itself."""
    baselines = [
        other
        for other in result.rows
        if base
        and (other.paper_row, other.section) == (base.name, base.section)
        and other.decoding == row.decoding
    ]
    # A result may have rows of two models: each is set in relation to its own baseline, if it has
    # one.
    model = (row.setup or result.setup).model
    same = [other for other in baselines if (other.setup or result.setup).model == model]
    first = next(iter(same or baselines), row)
    return first.cells.get(column.name) if first is not row else None


def _reasons(paper_row: PaperRow, column: Column, paper_column: Column, setup: Setup) -> list[str]:
    reasons = unmet({**paper_row.needs, **paper_column.needs}, setup)
    if column.variant_of:
        reasons.append(f"{column.name} is another measure than the paper's {paper_column.name}")
    if paper_column.caveat:
        reasons.append(paper_column.caveat)
    return reasons


def _is_met(name: str, need: Need, value: Need | None) -> bool:
    if isinstance(need, str):
        plain = _plain(str(value or ""))
        return any(fnmatchcase(plain, _plain(pattern)) for pattern in need.split("|"))
    if name == "n":
        return isinstance(value, int) and value >= ENOUGH * need
    return value == need


def _plain(name: str) -> str:
    """Make names alike: `openai-community/GPT2_large` is `gpt2-large`. Stars are kept."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return re.sub(r"[^a-z0-9*]+", "-", last.lower()).strip("-")


def _need_text(name: str, need: Need) -> str:
    if isinstance(need, str):
        return need.split("|")[0].strip("*")
    return f"about {need}" if name == "n" else setting_text(need)
