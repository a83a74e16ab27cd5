"""A comparison as Markdown, LaTeX, JSON and tables for the terminal."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from univerb.lab.tables.comparison import Comparison, called, shown
from univerb.lab.tables.measured import RunRow, Setup, run_to_dict
from univerb.lab.tables.sheets import Cell, Sheet, goals, grid, lines

if TYPE_CHECKING:
    from rich.table import Table


_WIDE_COLUMNS = ("N", "Paper's row", "Comparable? Why not")


def made_with(comparison: Comparison) -> dict[str, str]:
    """Return what the run was made with, as texts; what is not known is left out."""
    setup = comparison.run.setup
    given = {own.name: getattr(setup, own.name) for own in fields(setup)}
    known = {called(name): shown(own) for name, own in given.items() if own not in ("", None)}
    return known | dict(comparison.run.facts)


def title(comparison: Comparison) -> str:
    """Return the title of the page."""
    return f"Table {comparison.table.number} of the paper: {comparison.table.title}"


def markdown(comparison: Comparison, picture: str = "") -> str:
    """Write a comparison as a page of Markdown.

    Args:
        comparison: Of a run and a table.
        picture: The file name of its plot, if there is one.

    Returns:
        The page.
    """
    parts = [f"# {markdown_text(title(comparison))}", ""]
    parts += [f"* {markdown_text(k)}: {markdown_text(v)}" for k, v in made_with(comparison).items()]
    parts += ["", *markdown_sheet(grid(comparison)), ""]
    if reached := goals(comparison):
        parts += ["## What was reached", "", *markdown_sheet(reached), ""]
    parts += ["## This run beside the paper", "", *markdown_sheet(lines(comparison)), ""]
    if comparison.reasons:
        parts += ["Why not:", ""]
        parts += [f"{n}. {markdown_text(why)}" for n, why in enumerate(comparison.reasons, 1)]
        parts += [""]
    parts += ["Notes:", "", *(f"- {markdown_text(note)}" for note in _notes(comparison))]
    parts += ["", f"![{markdown_text(title(comparison))}]({picture})"] if picture else []
    return "\n".join(parts) + "\n"


def latex(comparison: Comparison) -> str:
    """Write a comparison as LaTeX tables, to be used with the package booktabs."""
    name = comparison.table.name
    reasons = " ".join(f"[{n}] {why}." for n, why in enumerate(comparison.reasons, 1))
    about = "; ".join(f"{key}: {value}" for key, value in made_with(comparison).items())
    whole = f"{title(comparison)}. Made with {about}."
    reached = goals(comparison)
    return "\n".join(
        [
            *_latex_sheet(grid(comparison), f"{whole} {reasons}".strip(), f"tab:{name}"),
            "",
            *(_latex_sheet(reached, f"{title(comparison)}, goals.", "") if reached else ()),
            *_latex_sheet(lines(comparison), f"{title(comparison)}, figure by figure.", ""),
            "",
        ]
    )


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON can hold it.

    Args:
        comparison: Of a run and a table.

    Returns:
        The lines, and the run: `read_run` and `compare` make the same comparison of it again.
    """
    table = comparison.table
    return {
        "table": {
            "number": table.number,
            "name": table.name,
            "title": table.title,
            "baseline": table.baseline,
            "columns": [{"name": own.name, "better": own.better} for own in table.columns],
            "notes": list(table.notes),
        },
        "run": run_to_dict(comparison.run),
        "lines": [asdict(line) for line in comparison.lines],
    }


def to_json(comparison: Comparison) -> str:
    """Write a comparison as JSON."""
    return json.dumps(to_dict(comparison), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def terminal(comparison: Comparison) -> list["Table"]:
    """Return the sheets for a terminal. Names are shown as they are, never read as markup."""
    reached = goals(comparison)
    return [
        _rich_sheet(grid(comparison), title(comparison)),
        *([_rich_sheet(reached, "What was reached")] if reached else ()),
        _rich_sheet(lines(comparison), "This run beside the paper"),
    ]


def brief(comparison: Comparison) -> list["Table"]:
    """Return what fits a narrow terminal: what was reached, and the figures beside the paper's."""
    whole = lines(comparison)
    # By place: two columns have one name.
    kept = [place for place, name in enumerate(whole.header) if name not in _WIDE_COLUMNS]
    narrow = Sheet(
        tuple(whole.header[place] for place in kept),
        tuple(tuple(cells[place] for place in kept) for cells in whole.rows),
        whole.names,
    )
    reached = goals(comparison)
    return [
        *([_rich_sheet(reached, "What was reached")] if reached else ()),
        _rich_sheet(narrow, title(comparison)),
    ]


def reasons_text(comparison: Comparison) -> str:
    """Return the numbered reasons and the notes that belong below the tables, as plain text."""
    numbered = [f"[{n}] {why}" for n, why in enumerate(comparison.reasons, 1)]
    return "\n".join([*numbered, *(f"- {note}" for note in _notes(comparison))])


def _notes(comparison: Comparison) -> list[str]:
    baseline = comparison.table.baseline
    ratio = [f"Ratios refer to {baseline}, each side to its own."] if baseline else []
    run = comparison.run.setup
    apart = [_made_apart(row, row.setup, run) for row in comparison.rows if row.setup]
    return [*comparison.run.notes, *apart, *ratio, *comparison.table.notes]


def _made_apart(row: RunRow, own: Setup, run: Setup) -> str:
    names = [one.name for one in fields(own) if getattr(own, one.name) != getattr(run, one.name)]
    parts = ", ".join(f"{called(name)}: {shown(getattr(own, name))}" for name in names)
    return f"{row.name} {row.decoding}".strip() + f" was made with {parts or 'the same'}."


def markdown_sheet(sheet: Sheet) -> Iterator[str]:
    """Write a sheet as lines of Markdown."""

    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    yield row(markdown_text(name) for name in sheet.header)
    figures = len(sheet.header) - sheet.names
    yield row(["---"] * sheet.names + ["---:"] * figures)
    for cells in sheet.rows:
        yield row(_marked(cell, markdown_text, "**{}**".format) for cell in cells)


def _marked(cell: Cell, escape: Callable[[str], str], mark: Callable[[str], str]) -> str:
    return mark(escape(cell.text)) if cell.is_best else escape(cell.text)


def _one_line(text: str) -> str:
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def markdown_text(text: str) -> str:
    """Return a text as Markdown shows it, in one line."""
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", _one_line(text))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    # One that begins a row would be read as an option of the row before it.
    "[": "{[}",
    "]": "{]}",
    **{letter: "\\" + letter for letter in "&%$#_{}"},
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def _latex_sheet(sheet: Sheet, caption: str, label: str) -> Iterator[str]:
    yield r"\begin{table*}"
    yield r"\centering\footnotesize"
    yield r"\begin{tabular}{" + "l" * sheet.names + "r" * (len(sheet.header) - sheet.names) + "}"
    yield r"\toprule"
    yield " & ".join(_latex_text(name) for name in sheet.header) + r" \\"
    yield r"\midrule"
    for cells in sheet.rows:
        yield " & ".join(_marked(c, _latex_text, r"\textbf{{{}}}".format) for c in cells) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\caption{" + _latex_text(caption) + "}"
    if label:
        yield r"\label{" + label + "}"
    yield r"\end{table*}"


def _rich_sheet(sheet: Sheet, title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.console import JustifyMethod
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(sheet.header):
        justify: JustifyMethod = "left" if place < sheet.names else "right"
        table.add_column(Text(name), justify=justify, overflow="fold")
    for cells in sheet.rows:
        table.add_row(
            *(Text(_one_line(cell.text), "bold" if cell.is_best else "") for cell in cells)
        )
    return table
