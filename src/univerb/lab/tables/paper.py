"""Every table of the paper and its appendix, with the settings that its values depend on.

The values lie in `assets/paper`, a file for each table. A row has two names: `label` is printed as
in the paper, slips included; `name` says what the row is, and is the same in all tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

import yaml

from univerb.errors import OptionError, did_you_mean

ALL = "all"
Better = Literal["higher", "lower", ""]
Comparability = Literal["yes", "ratios only", "trend only", "no"]
"""What compares with the paper's value: the value, only its ratio, only its trend, nothing."""
Need = str | int | bool
"""Text is a pattern: `dpr*` allows any DPR, `a|b` either. For `n`, 90 % of the paper's suffice."""


@dataclass(frozen=True, slots=True)
class Column:
    """A measure as the paper prints it, and what its values depend on."""

    name: str
    label: str = ""
    """As in the paper; the name if that is the same."""
    better: Better = ""
    decimals: int = 2
    needs: Mapping[str, Need] = field(default_factory=dict)
    """The settings that a comparison requires, by fields of `Setup`."""
    fallback: Comparability = "no"
    """What still compares if a need is not met."""
    caveat: str = ""
    """Why values never compare, whatever the settings."""
    variant_of: str = ""
    """For a measure that the paper does not have: the paper's column that it is a variant of."""

    @property
    def title(self) -> str:
        """The label, with an arrow in the direction of better values."""
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[self.better]
        return (self.label or self.name) + arrow


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of a table."""

    name: str
    label: str
    section: str
    decoding: str
    """`greedy` or `nucleus`; empty where the paper does not say."""
    values: Mapping[str, float]
    """By name of column; without those that the paper leaves out."""
    needs: Mapping[str, Need]
    """The settings that this row requires, before those of a column."""


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of the paper."""

    number: int
    name: str
    title: str
    heading: str
    """Over the names of the rows."""
    columns: tuple[Column, ...]
    rows: tuple[PaperRow, ...]
    baseline: str
    """The row that ratios refer to, by name; empty if there is none."""
    notes: tuple[str, ...]
    """What a reader must know (docs/method.md, Inconsistencies in the paper)."""

    @property
    def decodings(self) -> tuple[str, ...]:
        """The decodings of the rows, each once."""
        return tuple(dict.fromkeys(row.decoding for row in self.rows))

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def row(self, name: str, section: str = "", decoding: str = "") -> PaperRow | None:
        """Return a row, or None. A row for which the paper names no decoding matches any."""
        for row in self.rows:
            if (row.name, row.section) == (name, section) and row.decoding in ("", decoding):
                return row
        return None

    def baseline_of(self, section: str, decoding: str) -> PaperRow | None:
        """Return the baseline within a section, or the one that stands over all sections."""
        in_section = self.row(self.baseline, section, decoding)
        return in_section or self.row(self.baseline, "", decoding)


@cache
def paper_columns() -> dict[str, Column]:
    """Return all columns by name, in the paper's units.

    A name means one definition (docs/method.md): MAUVE with c = 2 and texts joined as CoG
    does, PPL over one stream, memory by the paper's formula. Another definition is another column.
    """
    return {name: Column(name, **values) for name, values in _read("columns.yaml").items()}


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Return all tables in the paper's order."""
    names = sorted(file.name for file in _folder().iterdir() if file.name[:2].isdigit())
    return tuple(_table(_read(name)) for name in names)


def _folder() -> Traversable:
    return files("univerb") / "assets" / "paper"


def _read(name: str) -> Any:  # noqa: ANN401  (YAML)
    return yaml.safe_load((_folder() / name).read_text("utf-8"))


def paper_table(name: str) -> PaperTable:
    """Return a table by its name (`main`) or by its number in the paper (`table1`)."""
    for table in paper_tables():
        if name.lower() in (table.name, f"table{table.number}"):
            return table
    names = [table.name for table in paper_tables()]
    raise OptionError(
        f"The paper has no table {name!r}. Give table1 to table{len(names)}, or a name. "
        + did_you_mean(name, names)
    )


def table_names(names: Sequence[str]) -> list[str]:
    """Return the tables that names, numbers or `all` ask for, by name and in the paper's order."""
    if ALL in names:
        return [table.name for table in paper_tables()]
    wanted = {paper_table(name).name for name in names}
    return [table.name for table in paper_tables() if table.name in wanted]


def _table(content: dict[str, Any]) -> PaperTable:
    columns = tuple(paper_columns()[name] for name in content["columns"])
    return PaperTable(
        number=content["number"],
        name=content["name"],
        title=content["title"],
        heading=content["heading"],
        columns=columns,
        rows=tuple(_row(row, columns, content) for row in content["rows"]),
        baseline=content["baseline"],
        notes=tuple(content["notes"]),
    )


def _row(content: dict[str, Any], columns: tuple[Column, ...], table: dict[str, Any]) -> PaperRow:
    name, section = content["name"], content.get("section", "")
    needs: dict[str, Need] = dict(table["needs"])
    for selector in ("*", section, name):
        needs |= table.get("row_needs", {}).get(selector, {})
    pairs = zip(columns, content["values"], strict=True)
    return PaperRow(
        name=name,
        label=content.get("label", name),
        section=section,
        decoding=content.get("decoding", ""),
        values={column.name: float(value) for column, value in pairs if value is not None},
        needs=needs,
    )
