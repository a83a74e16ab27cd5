"""`univerb lab data`: what the lab reads, where to get it, and whether it is whole."""

from typing import Annotated

import typer
from rich.text import Text

from univerb.cli.console import console, errors, escape, print_json
from univerb.cli.lab.options import DataFolder
from univerb.cli.options import AsJson
from univerb.errors import OptionError
from univerb.lab.data import DATA, find_data
from univerb.lab.data_sets import DataCheck, check_data, fetch_data

_fetch = typer.Option(help="Download what is missing of this data set first, such as wikitext103.")
_STYLES = {"present": "green", "missing": "yellow", "damaged": "red"}


def data(
    data: DataFolder = None,
    fetch: Annotated[str | None, _fetch] = None,
    as_json: AsJson = False,
) -> None:
    """List the data sets that measurements read, and check the files that are there.

    The exit code is 1 if a file is damaged, or is another than it should be.
    """
    folder = find_data(data)
    if fetch:
        if folder is None:
            raise OptionError(f"there is no folder to fetch to. Name it with --data or {DATA}.")
        with errors.status(f"fetching {escape(fetch)}"):
            fetch_data(fetch, folder)
    with errors.status("reading"):
        checks = list(check_data(folder))
    if as_json:
        print_json([c.data_set.model_dump() | {"state": c.state, "found": c.found} for c in checks])
    else:
        for each in checks:
            console.print(_show(each))
        where = f"in {str(folder)!r}" if folder else f"in no folder: name one with --data or {DATA}"
        console.print(Text(f"looked {where}", style="dim"))
    if any(each.state == "damaged" for each in checks):
        raise typer.Exit(1)


def _show(check: DataCheck) -> Text:
    about = check.data_set
    found = f" ({check.found})" if check.found else ""
    lines = (
        f" {about.file}{found}",
        f"{about.purpose}; {about.size}, {about.form}",
        f"{about.source}; {about.licence}",
        f"{about.address}\n",
    )
    return Text.assemble((check.state, _STYLES[check.state]), "\n    ".join(lines))
