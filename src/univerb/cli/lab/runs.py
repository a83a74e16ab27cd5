"""`univerb lab runs`: training runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.lab.reports import publish
from univerb.cli.options import AsJson, make_folder


def runs(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs; the first is compared to.")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the table and the curves here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs of `univerb train`: settings that differ, and their validations."""
    from univerb.lab.runs import RunsReport, plot_runs, read_run

    if out:
        make_folder("--out", out)
    report = RunsReport([read_run(folder.expanduser()) for folder in folders])
    publish(report, "runs", out, as_json)
    if out:
        plot_runs(out / "runs.png", report)
