"""A run set beside a table of the paper: figures, ratios, and whether they compare (METHOD F.0)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from univerb.errors import OptionError, did_you_mean
from univerb.lab.tables.measured import Measured, Run, RunRow, Setup
from univerb.lab.tables.paper import COLUMNS, Column, Fact, PaperRow, PaperTable, Standing

ENOUGH = 0.9
"""The part of the paper's number of cases from which on a run has as many."""
NOT_THERE = "the paper has no such figure"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of the run and the paper's."""

    row: str
    section: str
    decoding: str
    beside: str
    """The label of the paper's row; empty if there is none."""
    column: str
    run: Measured
    n: int
    paper: float | None
    run_ratio: float | None
    """To the run's baseline; None for the baseline itself, or if there is none."""
    paper_ratio: float | None
    standing: Standing | None
    """None if the paper has no such figure."""
    reasons: tuple[str, ...]
    """Why not, each a short text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside a table."""

    table: PaperTable
    run: Run
    columns: tuple[Column, ...]
    """The paper's, then those that only the run has."""
    rows: tuple[RunRow, ...]
    """Those of the run that belong to the table."""
    lines: tuple[Line, ...]
    """For each row and column that the run has measured."""

    def line(self, row: RunRow, column: Column) -> Line | None:
        """Return what stands in a cell of the run, or None."""
        place = (row.name, row.section, row.decoding, column.name)
        for line in self.lines:
            if (line.row, line.section, line.decoding, line.column) == place:
                return line
        return None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason why figures do not compare, each once."""
        return tuple(dict.fromkeys(reason for line in self.lines for reason in line.reasons))


def compare(run: Run, table: PaperTable) -> Comparison:
    """Set a run beside a table.

    Args:
        run: What was measured. Rows of a decoding that the table does not have are left out.
        table: Of the paper.

    Returns:
        The comparison.

    Raises:
        OptionError: If a row stands for one that the table does not have, if two rows are the same,
            or if a column is neither the paper's nor one of the run's `extra`.
    """
    places = set(table.decodings)
    rows = tuple(row for row in run.rows if not row.decoding or {row.decoding, ""} & places)
    _check_rows(rows, table)
    columns = (*table.columns, *_more_columns(rows, run, table))
    lines = tuple(
        _line(row, column, rows, run, table)
        for row in rows
        for column in columns
        if column.name in row.cells
    )
    return Comparison(table, run, columns, rows, lines)


def unmet(needs: Mapping[str, Fact], setup: Setup) -> list[str]:
    """Say what a run lacks to stand beside the paper.

    Args:
        needs: By fields of `Setup`.
        setup: What the run was made with.

    Returns:
        A short text for each need that is not met.
    """
    given = {name: getattr(setup, name) for name in needs}
    return [
        f"{called(name)}: {shown(given[name])} here, {_wanted(name, need)} in the paper"
        for name, need in needs.items()
        if not _is_met(name, need, given[name])
    ]


def called(name: str) -> str:
    """Return the words for a field of a setup."""
    words = {"n": "N", "nli": "NLI", "kv_cache": "KV cache", "timed": "inside the timed part"}
    return words.get(name, name)


def shown(given: Fact | None) -> str:
    """Return the words for what a field holds."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    return "not said" if given in ("", None) else str(given)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return a figure in relation to another; None if one is missing, or the other is zero."""
    return value / base if value is not None and base else None


def _check_rows(rows: tuple[RunRow, ...], table: PaperTable) -> None:
    seen = set()
    for row in rows:
        place = _place(row.section, row.name, row.decoding)
        if place in seen:
            raise OptionError(f"Two rows are {place!r}. Give each a name of its own.")
        seen.add(place)
        if row.stands_for and not table.row(row.stands_for, row.section, row.decoding):
            wanted = _place(row.section, row.stands_for, row.decoding)
            names = {_place(own.section, own.name, own.decoding) for own in table.rows}
            raise OptionError(
                f"Table {table.name!r} has no row {wanted!r} to set {row.name!r} beside. "
                + did_you_mean(wanted, names)
            )


def _place(section: str, name: str, decoding: str) -> str:
    whole = f"{section}: {name}" if section else name
    return f"{whole} ({decoding})" if decoding else whole


def _more_columns(rows: tuple[RunRow, ...], run: Run, table: PaperTable) -> list[Column]:
    """Return the columns that were measured and that the table does not have."""
    own = {column.name for column in table.columns}
    known = COLUMNS | {column.name: column for column in run.extra}
    measured = dict.fromkeys(name for row in rows for name in row.cells if name not in own)
    if unknown := [name for name in measured if name not in known]:
        raise OptionError(
            f"Neither the paper nor the run's `extra` has a column {unknown[0]!r}. Add it there. "
            + did_you_mean(unknown[0], known)
        )
    return [known[name] for name in measured]


def _line(
    row: RunRow, column: Column, rows: tuple[RunRow, ...], run: Run, table: PaperTable
) -> Line:
    cell, setup = row.cells[column.name], row.setup or run.setup
    n = setup.n if cell.n is None else cell.n
    like = next((own for own in table.columns if own.name == column.beside), column)
    beside = table.row(row.stands_for, row.section, row.decoding) if row.stands_for else None
    paper = beside.values.get(like.name) if beside else None
    base = table.baseline_of(row.section, row.decoding)
    likes = (one for one in rows if base and _stands_for(one, base, row.decoding))
    # A run may have rows of two models: each is set in relation to its own.
    own_base = next((one for one in likes if (one.setup or run.setup).model == setup.model), row)
    base_cell = own_base.cells.get(column.name) if own_base is not row else None
    base_value = base.values.get(like.name) if base and base is not beside else None
    reasons: tuple[str, ...] = (NOT_THERE,)
    standing: Standing | None = None
    if beside and paper is not None:
        reasons = _reasons(beside, column, like, replace(setup, n=n))
        standing = like.otherwise if reasons else "yes"
    return Line(
        row=row.name,
        section=row.section,
        decoding=row.decoding,
        beside=beside.label if beside else "",
        column=column.name,
        run=cell,
        n=n,
        paper=paper,
        run_ratio=ratio(cell.value, base_cell.value if base_cell else None),
        paper_ratio=ratio(paper, base_value),
        standing=standing,
        reasons=reasons,
    )


def _reasons(beside: PaperRow, column: Column, like: Column, setup: Setup) -> tuple[str, ...]:
    found = unmet({**beside.needs, **like.needs}, setup)
    if column.beside:
        found.append(f"{column.name} is another measure than the paper's {like.name}")
    if like.caveat:
        found.append(like.caveat)
    return tuple(found)


def _stands_for(row: RunRow, paper: PaperRow, decoding: str) -> bool:
    same = (row.stands_for, row.section) == (paper.name, paper.section)
    return same and row.decoding == decoding


def _is_met(name: str, need: Fact, given: str | int | bool | None) -> bool:
    if isinstance(need, str):
        plain = _plain(str(given or ""))
        return any(fnmatchcase(plain, _plain(one)) for one in need.split("|"))
    if name == "n":
        return isinstance(given, int) and given >= ENOUGH * need
    return given == need


def _plain(name: str) -> str:
    """Make names alike: `openai-community/GPT2_large` is `gpt2-large`. Stars are kept."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return re.sub(r"[^a-z0-9*]+", "-", last.lower()).strip("-")


def _wanted(name: str, need: Fact) -> str:
    if isinstance(need, str):
        return need.split("|")[0].strip("*")
    return f"about {need}" if name == "n" else shown(need)
