"""Flags that several verbs of the lab share, what was typed, and the pages that they write."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from univerb.errors import OptionError

DATA = "Data"
DataFolder = Annotated[
    Path | None,
    typer.Option(
        help="The folder with wikitext103, law, asqa and wiki; by default UNIVERB_DATA.",
        rich_help_panel=DATA,
    ),
]
WikiCorpus = Annotated[
    Path | None,
    typer.Option(
        help="A Wikipedia corpus (`univerb index`), instead of a small one that is built once.",
        rich_help_panel=DATA,
    ),
]
LawCorpus = Annotated[Path | None, typer.Option(help="The same for law.", rich_help_panel=DATA)]


def typed_names(context: typer.Context) -> set[str]:
    """Return the names of the parameters that the user typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def write_pages(folder: Path, pages: dict[str, str]) -> None:
    """Write a report's pages by name, or say that one cannot be written."""
    for page, content in pages.items():
        try:
            (folder / page).write_text(content, encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"{str(folder / page)!r} cannot be written: {error.strerror}. Name another --out."
            ) from error


def refuse_overwriting(option: str, out: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read."""
    if out is None or not out.exists():
        return
    for path in inputs:
        if path.exists() and out.samefile(path):
            raise OptionError(f"{option} names {str(path)!r}, which is read. Name another file.")
