"""Flags that several verbs of the lab share, and checks of what was typed."""

from collections.abc import Iterable, Mapping
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


def chosen_way(context: typer.Context, ways: Mapping[str, set[str] | None]) -> str:
    """Return the one of several options that was typed.

    `ways` has for each the options that go with it, or None for all. Raises OptionError if none or
    several were typed, or an option that does not go with it.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    chosen = [way for way in ways if way in typed]
    if len(chosen) != 1:
        given = " and ".join(f"--{way}" for way in chosen) or "none of several options"
        raise OptionError(f"{given} given. Give one of {', '.join(f'--{way}' for way in ways)}.")
    [way] = chosen
    allowed = ways[way]
    if allowed is not None and (useless := sorted(typed - allowed - {way, "as_json"})):
        flags = {parameter.name: parameter.opts[-1] for parameter in context.command.params}
        raise OptionError(f"{flags[useless[0]]} is not for --{way}. Drop one of them.")
    return way


def refuse_overwriting(option: str, out: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read."""
    if out is None or not out.exists():
        return
    for path in inputs:
        if path.exists() and out.samefile(path):
            raise OptionError(f"{option} names {str(path)!r}, which is read. Name another file.")
