"""`univerb lab speed`: whole requests beside other systems, and univerb's parts by themselves."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from univerb.cli.console import console, escape, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.lab.options import DataFolder, LawCorpus, WikiCorpus, write_pages
from univerb.cli.loading import load_model
from univerb.cli.options import MODEL, OUTPUT, AsJson, ModelOptions, make_folder
from univerb.cli.progress import progress_bars
from univerb.lab.markdown import plain

if TYPE_CHECKING:
    from univerb.lab.speed.timing import SpeedReport

PARTS = "Parts"


class PartName(StrEnum):
    """What is timed."""

    systems = "systems"
    head = "head"
    encoding = "encoding"
    corpus = "corpus"


@with_flags
def speed(
    model: Annotated[ModelOptions, Flags(MODEL, only=("name", "engine", "threads", "offline"))],
    part: Annotated[
        PartName,
        typer.Argument(
            help="systems: whole requests; head: a step by vocabulary size; encoding: phrases per "
            "second; corpus: building and querying one."
        ),
    ] = PartName.systems,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="wikitext, law, answers or demo. Repeatable; by default all that there is data "
            "for, or else the demo."
        ),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            help="hf, hf-float16, hf-bfloat16, hf-prompt-lookup, llama.cpp, univerb-torch, "
            "univerb-llamacpp, or one mode of these, such as univerb-torch-unfold. Repeatable; by "
            "default all."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each workload, or rounds.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Base tokens of each request.")] = 128,
    docs: Annotated[
        list[str] | None,
        typer.Option(help="Text for a part; by default the demo's.", rich_help_panel=PARTS),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="head: take phrases and vectors from here.", rich_help_panel=PARTS),
    ] = None,
    data: DataFolder = None,
    wiki_corpus: WikiCorpus = None,
    law_corpus: LawCorpus = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="Write the report here; systems resumes.", rich_help_panel=OUTPUT
        ),
    ] = Path("speed"),
    as_json: AsJson = False,
) -> None:
    """Time univerb beside HF generate, prompt lookup and llama.cpp, or a part of it by itself."""
    show_warnings()
    if part is PartName.systems:
        from univerb.lab.data import find_data
        from univerb.lab.speed.systems import choose_systems
        from univerb.lab.speed.workloads import choose_workloads

        systems, data = choose_systems(system or []), find_data(data)
        workloads = choose_workloads(workload or [], data)
        make_folder("--out", out)
        from univerb.lab.speed.figures import report_systems
        from univerb.lab.speed.run import make_plan, run_systems

        lm = load_model(model.name, offline=model.offline)
        sizes = {"limit": limit, "max_tokens": max_tokens, "threads": model.threads}
        corpora = {"wiki": wiki_corpus, "law": law_corpus}
        with progress_bars() as tell:
            plan = make_plan(
                lm, workloads, systems, data=data, corpora=corpora, progress=tell, **sizes
            )
            # Each system loads the model for itself; this copy has made the prompts.
            del lm
            report = report_systems(run_systems(plan, out, tell))
    else:
        from univerb.lab.speed.parts import time_part

        make_folder("--out", out)
        loaded = load_model(**dict(model))
        with progress_bars() as tell:
            report = time_part(loaded, part, docs or [], corpus, limit, tell)
    _write(out, part, report)
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)


def _write(folder: Path, part: str, report: "SpeedReport") -> None:
    from univerb.lab.speed.run import forget_rounds

    # A report names no folder of this machine.
    command = "univerb " + " ".join(Path(typed).name for typed in sys.argv[1:])
    pages = {
        f"{part}.json": json.dumps(report.to_dict(), indent=2) + "\n",
        f"{part}.md": report.markdown(command),
    }
    write_pages(folder, pages)
    forget_rounds(folder)


def _show(report: "SpeedReport") -> None:
    # A narrow terminal may break lines, but must not cut figures.
    wide = Console(width=max(console.width, 120), highlight=False)
    for name, value in report.about.items():
        wide.print(f"[dim]{name}: {escape(plain(value))}[/]")
    for table in report.tables:
        wide.print(f"\n[bold]{escape(table.name)}[/] [dim]{escape(table.about)}[/]")
        shown = Table(box=None, header_style="dim")
        for number, column in enumerate(table.header):
            shown.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in table.cells():
            shown.add_row(*map(escape, row))
        wide.print(shown)
    for note in report.notes:
        wide.print(f"[dim]{escape(note)}[/]")
