"""The sheets that every form of a comparison is made from.

`grid` has the paper's layout: its rows, those of the run below the row that they stand for, and a
last line on what compares. `lines` has a line for each figure of the run: this run, paper,
comparable, why not. `goals` has what systems reached beside what they should.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from univerb.lab.tables.comparison import Comparison, Line, ratio
from univerb.lab.tables.measured import Goal, Measured, RunRow
from univerb.lab.tables.paper import Column, PaperRow, Standing

MISSING = "-"
STANDINGS: dict[Standing | None, str] = {
    "yes": "yes",
    "ratio": "ratios only",
    "trend": "trend only",
    "no": "no",
    None: MISSING,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, and whether it is the best of its column."""

    text: str
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of texts; the first `names` columns hold names, the others figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int


def grid(comparison: Comparison) -> Sheet:
    """Return the table in the paper's layout.

    The best figure of a column is marked within a section and a decoding, apart for the paper and
    for the run; figures that look the same are best together.

    Args:
        comparison: Of a run and a table.

    Returns:
        The sheet, with the paper's rows and the run's.
    """
    table, columns = comparison.table, comparison.columns
    rows: list[tuple[Cell, ...]] = []
    section = ""
    for row in table.rows:
        if row.section and row.section != section:
            section = row.section
            rows.append((Cell(section), *(Cell("") for _ in range(len(columns) + 2))))
        rows.append(_paper_cells(comparison, row))
        rows += [_run_cells(comparison, own) for own in comparison.rows if _is_below(own, row)]
    alone = [own for own in comparison.rows if not own.stands_for]
    rows += [_run_cells(comparison, own) for own in alone]
    rows.append(_standing_cells(comparison))
    header = (table.heading, "Decoding", "From", *(column.title for column in columns))
    return _without_empty(Sheet(header, tuple(rows), 3))


def lines(comparison: Comparison) -> Sheet:
    """Return a line for each figure of the run, with the paper's beside it."""
    by_name = {column.name: column for column in comparison.columns}
    numbers = _numbers(comparison)
    rows = tuple(
        (
            Cell(_joined(line.section, line.row)),
            Cell(line.decoding),
            Cell(by_name[line.column].title),
            Cell(_figure(line.run, by_name[line.column])),
            Cell(_times(line.run_ratio)),
            Cell(str(line.n)),
            Cell(_joined(line.section, line.beside) if line.beside else MISSING),
            Cell(_value(line.paper, by_name[line.column])),
            Cell(_times(line.paper_ratio)),
            Cell(_standing([line], numbers)),
        )
        for line in comparison.lines
    )
    header = (
        comparison.table.heading,
        "Decoding",
        "Measure",
        "This run",
        "x baseline",
        "N",
        "Paper's row",
        "Paper",
        "x baseline",
        "Comparable? Why not",
    )
    return _without_empty(Sheet(header, rows, 3))


def goals(comparison: Comparison) -> Sheet | None:
    """Return a line for each goal, or None if the run has none."""
    rows = tuple(
        (
            Cell(own.system),
            Cell(own.measure),
            Cell(reached(own)),
            Cell(_goal(own)),
            Cell(_met(own), own.is_met),
            Cell(amount(own.paper, own)),
        )
        for own in comparison.run.goals
    )
    header = ("To the LM without phrases, greedy", "Measure", "This run", "Goal", "Met", "Paper")
    return Sheet(header, rows, 2) if rows else None


def _goal(own: Goal) -> str:
    if own.goal is None:
        return MISSING
    return f"{'above' if own.better == 'higher' else 'at most'} {amount(own.goal, own)}"


def _met(own: Goal) -> str:
    return MISSING if own.goal is None else "yes" if own.is_met else "missed"


def reached(own: Goal) -> str:
    """Return what was reached, with its interval if there is one."""
    value = amount(own.value, own)
    if own.low is None or own.high is None:
        return value
    return f"{value} (90 %: {own.low:.2f} to {own.high:.2f})"


def amount(value: float | None, own: Goal) -> str:
    """Return a value in the unit of a goal."""
    if value is None:
        return MISSING
    return _times(value) if own.unit == "x" else f"{value:+.1f} {own.unit}"


def _without_empty(sheet: Sheet) -> Sheet:
    """Drop the column of decodings where no row has one."""
    decoding = sheet.header.index("Decoding")
    if any(row[decoding].text for row in sheet.rows):
        return sheet
    rows = tuple(row[:decoding] + row[decoding + 1 :] for row in sheet.rows)
    header = sheet.header[:decoding] + sheet.header[decoding + 1 :]
    return Sheet(header, rows, sheet.names - 1)


def _is_below(own: RunRow, row: PaperRow) -> bool:
    same = (own.stands_for, own.section) == (row.name, row.section)
    return same and row.decoding in ("", own.decoding)


def _paper_cells(comparison: Comparison, row: PaperRow) -> tuple[Cell, ...]:
    table = comparison.table
    base = table.baseline_of(row.section, row.decoding)
    peers = [own for own in table.rows if _group(own) == _group(row)]
    cells = [Cell(row.label), Cell(row.decoding), Cell("paper")]
    for column in comparison.columns:
        value = row.values.get(column.name)
        base_value = base.values.get(column.name) if base and base is not row else None
        others = [own.values[column.name] for own in peers if column.name in own.values]
        text = _with_ratio(_value(value, column), ratio(value, base_value))
        cells.append(Cell(text, _is_best(value, others, column)))
    return tuple(cells)


def _run_cells(comparison: Comparison, row: RunRow) -> tuple[Cell, ...]:
    peers = [own for own in comparison.rows if _group(own) == _group(row)]
    cells = [Cell(row.name), Cell(row.decoding), Cell("this run")]
    for column in comparison.columns:
        line = comparison.line(row, column)
        others = [own.cells[column.name].value for own in peers if column.name in own.cells]
        text = _with_ratio(_figure(line.run, column), line.run_ratio) if line else MISSING
        cells.append(Cell(text, _is_best(line.run.value if line else None, others, column)))
    return tuple(cells)


def _group(row: PaperRow | RunRow) -> tuple[str, str]:
    return row.section, row.decoding


def _standing_cells(comparison: Comparison) -> tuple[Cell, ...]:
    numbers = _numbers(comparison)
    cells = [Cell("comparable?"), Cell(""), Cell("")]
    for column in comparison.columns:
        own = [line for line in comparison.lines if line.column == column.name]
        cells.append(Cell(_standing(own, numbers)))
    return tuple(cells)


def _standing(own: Sequence[Line], numbers: dict[str, int]) -> str:
    """Say what compares, with the numbers of the reasons."""
    if not own:
        return MISSING
    words = " / ".join(dict.fromkeys(STANDINGS[line.standing] for line in own))
    why = sorted({numbers[reason] for line in own for reason in line.reasons})
    return f"{words} [{', '.join(map(str, why))}]" if why else words


def _numbers(comparison: Comparison) -> dict[str, int]:
    return {reason: number for number, reason in enumerate(comparison.reasons, 1)}


def _is_best(value: float | None, others: Iterable[float], column: Column) -> bool:
    rounded = [round(other, column.decimals) for other in others]
    if value is None or not column.better or len(rounded) < 2:
        return False
    best = max(rounded) if column.better == "higher" else min(rounded)
    return round(value, column.decimals) == best


def _value(value: float | None, column: Column) -> str:
    return MISSING if value is None else f"{value:.{column.decimals}f}"


def _figure(cell: Measured, column: Column) -> str:
    spread = "" if cell.spread is None else f" ± {cell.spread:.{column.decimals}f}"
    return _value(cell.value, column) + spread


def _times(own: float | None) -> str:
    return MISSING if own is None else f"{own:.2f}x"


def _with_ratio(text: str, own: float | None) -> str:
    return text if own is None else f"{text} ({_times(own)})"


def _joined(section: str, name: str) -> str:
    return f"{section}: {name}" if section else name
