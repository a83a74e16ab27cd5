"""The first page of a folder of tables: what lies there, and what was reached."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from univerb.errors import UniverbError
from univerb.lab.tables.comparison import Comparison, compare
from univerb.lab.tables.measured import read_run
from univerb.lab.tables.paper import paper_table
from univerb.lab.tables.rendering import markdown_sheet, markdown_text
from univerb.lab.tables.sheets import Cell, Sheet, goals

PAGE = "tables.md"


def read_comparisons(folder: Path) -> dict[str, Comparison]:
    """Read the tables of a folder, those of earlier runs too.

    Args:
        folder: Where `univerb lab reproduce` wrote.

    Returns:
        By name of page, in the paper's order.
    """
    found: dict[str, Comparison] = {}
    for path in sorted(folder.glob("*.json")):
        # Other files may lie there, too.
        with suppress(ValueError, KeyError, TypeError, UniverbError):
            text = path.read_text(encoding="utf-8")
            table = paper_table(json.loads(text)["table"]["name"])
            found[path.stem] = compare(read_run(text), table)
    return dict(sorted(found.items(), key=lambda own: own[1].table.number))


def overview(pages: dict[str, Comparison]) -> str:
    """Write the first page.

    Args:
        pages: By name of page.

    Returns:
        Markdown.
    """
    parts = [
        "# The paper's tables for the model at hand",
        "",
        "Made by `univerb lab reproduce`. Each page names model, scorer, data, N, seed and "
        "threads, and says what compares with the paper and what does not.",
        "",
        *markdown_sheet(_contents(pages)),
    ]
    for name, page in pages.items():
        if sheet := goals(page):
            about = markdown_text(f"{name}: {page.run.setup.data}, N {page.run.setup.n}")
            parts += ["", f"## {about}", "", *markdown_sheet(sheet)]
    return "\n".join([*parts, *_pictures(pages)]) + "\n"


def _contents(pages: dict[str, Comparison]) -> Sheet:
    rows = tuple(
        (
            Cell(str(page.table.number)),
            Cell(name),
            Cell(page.table.title),
            Cell(page.run.setup.data),
            Cell(", ".join(map(str, _sizes(page)))),
        )
        for name, page in pages.items()
    )
    return Sheet(("Table", "Page", "What", "Data", "N"), rows, 4)


def _sizes(page: Comparison) -> list[int]:
    """Return the numbers of cases of a page's rows, each once."""
    run = page.run
    return list(dict.fromkeys((row.setup or run.setup).n for row in run.rows)) or [run.setup.n]


def _pictures(pages: dict[str, Comparison]) -> Iterator[str]:
    for name, page in pages.items():
        yield ""
        yield f"[{name}]({name}.md)"
        if page.lines:
            yield ""
            yield f"![{markdown_text(page.table.title)}]({name}.png)"
