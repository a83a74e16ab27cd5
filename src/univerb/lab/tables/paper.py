"""Every table of the paper and its appendix, and what a run needs to stand beside a figure.

The figures lie in `assets/paper`, a file for each table. A row has two names: `label` is printed as
in the paper, slips included; `name` says what the row is, and is the same in all tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from univerb.errors import OptionError, did_you_mean

ALL = "all"
Better = Literal["higher", "lower", ""]
Standing = Literal["yes", "ratio", "trend", "no"]
"""What may be set beside the paper's figure: the value, only its ratio, only its trend, nothing."""
Fact = str | int | bool
"""Text is a pattern: `dpr*` allows any DPR, `a|b` either. For `n`, 90 % of the paper's suffice."""


@dataclass(frozen=True, slots=True)
class Column:
    """A measure as the paper prints it, and what its values hang on (METHOD F.0)."""

    name: str
    label: str = ""
    """As in the paper; the name if that is the same."""
    better: Better = ""
    decimals: int = 2
    needs: Mapping[str, Fact] = field(default_factory=dict)
    """What a run must be made with, by fields of `Setup`."""
    otherwise: Standing = "no"
    """What is left to compare if a need is not met."""
    caveat: str = ""
    """Why values do not compare, whatever a run is made with."""
    beside: str = ""
    """For a measure that the paper has not: the column of the paper that it is set beside."""

    @property
    def title(self) -> str:
        """The label, with an arrow to where better is."""
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
    needs: Mapping[str, Fact]
    """What a run must be made with for this row, before the needs of a column."""


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
    """What a reader must know, with the paper's inconsistencies (METHOD J)."""

    @property
    def decodings(self) -> tuple[str, ...]:
        """The decodings of the rows, each once."""
        return tuple(dict.fromkeys(row.decoding for row in self.rows))

    def row(self, name: str, section: str = "", decoding: str = "") -> PaperRow | None:
        """Return a row, or None. A row whose decoding the paper does not say fits any."""
        for row in self.rows:
            if (row.name, row.section) == (name, section) and row.decoding in ("", decoding):
                return row
        return None

    def baseline_of(self, section: str, decoding: str) -> PaperRow | None:
        """Return the baseline within a section, or the one that stands over all sections."""
        own = self.row(self.baseline, section, decoding)
        return own or self.row(self.baseline, "", decoding)


_REPETITION: dict[str, Fact] = {"splitter": "spacy*"}
_UNITS: dict[str, Fact] = {"tokenizer": "gpt2", "budget": 128}
_CITATION: dict[str, Fact] = {"nli": "t5-xxl-true-nli-mixture"}
_READER: dict[str, Fact] = {"reader": "roberta-large-squad"}
_LATENCY: dict[str, Fact] = {"device": "*rtx-3090*", "kv_cache": False, "timed": "decode"}

COLUMNS = {
    column.name: column
    for column in (
        Column("MAUVE", better="higher", needs={"featuriser": "gpt2-large", "n": 1800}),
        Column("Rep-2", better="lower", needs=_REPETITION),
        Column("Rep-3", better="lower", needs=_REPETITION),
        Column("Rep-4", better="lower", needs=_REPETITION),
        Column("Diversity", better="higher", needs=_REPETITION),
        Column("Latency", "Latency(s)", "lower", needs=_LATENCY, otherwise="ratio"),
        Column("PPL", better="lower", needs={"scorer": "gpt2-large"}),
        Column("NSL", "NLS", "lower", needs=_UNITS),
        Column("UTF-8 Bytes", better="higher", needs=_UNITS),
        Column("Citation_rec", better="higher", needs=_CITATION),
        Column("Citation_prec", better="higher", needs=_CITATION),
        Column("QA-EM", better="higher", needs=_READER),
        Column("QA-F1", better="higher", needs=_READER),
        Column("Rouge-L", better="higher"),
        Column("Better", better="higher"),
        Column("No Prefer"),
        Column("Worse", better="lower"),
        Column(
            "FLOPS",
            "FLOPS (Rel) (T)",
            "lower",
            otherwise="trend",
            caveat="the paper's FLOPs follow no single formula",
        ),
        Column("Avg Tokens", better="lower", decimals=0, needs={"tokenizer": "gpt2"}),
        Column("Memory", "Memory (Rel) (GB)", "lower", decimals=4),
        Column("Extra memory", "Extra memory (%)", "lower", decimals=1),
        Column("Extra compute", "Extra compute (%)", "lower", decimals=1),
    )
}
"""By name, in the paper's units: MAUVE, Rep-n, Diversity and all of ASQA in percent.

A name means one definition (METHOD C): MAUVE with c = 2 and texts put together as CoG does, PPL
over one stream, memory by the paper's formula. Another definition is another column, `beside` it.
"""


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Return all tables in the paper's order."""
    folder = files("univerb") / "assets" / "paper"
    texts = [file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".yaml")]
    found = (_table(yaml.safe_load(text)) for text in texts)
    return tuple(sorted(found, key=lambda table: table.number))


def paper_table(name: str) -> PaperTable:
    """Find a table.

    Args:
        name: Its name (`main`), or its number in the paper (`table1`).

    Returns:
        The table.

    Raises:
        OptionError: If there is no such table.
    """
    for table in paper_tables():
        if name.lower() in (table.name, f"table{table.number}"):
            return table
    names = [table.name for table in paper_tables()]
    raise OptionError(
        f"The paper has no table {name!r}. Give table1 to table{len(names)}, or a name. "
        + did_you_mean(name, names)
    )


def table_names(names: Sequence[str]) -> list[str]:
    """Return the tables that were asked for.

    Args:
        names: Names or numbers (`main`, `table1`), or `all`.

    Returns:
        Their names, in the paper's order.
    """
    if ALL in names:
        return [table.name for table in paper_tables()]
    wanted = {paper_table(name).name for name in names}
    return [table.name for table in paper_tables() if table.name in wanted]


def _table(given: dict[str, Any]) -> PaperTable:
    columns = tuple(COLUMNS[name] for name in given["columns"])
    return PaperTable(
        number=given["number"],
        name=given["name"],
        title=given["title"],
        heading=given["heading"],
        columns=columns,
        rows=tuple(_row(row, columns, given) for row in given["rows"]),
        baseline=given["baseline"],
        notes=tuple(given["notes"]),
    )


def _row(given: dict[str, Any], columns: tuple[Column, ...], table: dict[str, Any]) -> PaperRow:
    name, section = given["name"], given.get("section", "")
    needs: dict[str, Fact] = dict(table["needs"])
    for whose in ("*", section, name):
        needs |= table.get("row_needs", {}).get(whose, {})
    pairs = zip(columns, given["values"], strict=True)
    return PaperRow(
        name=name,
        label=given.get("label", name),
        section=section,
        decoding=given.get("decoding", ""),
        values={column.name: float(value) for column, value in pairs if value is not None},
        needs=needs,
    )
