"""`univerb lab speed`: how long a text takes with univerb and with what people use instead."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from univerb.cli.console import console, errors, escape, print_json, show_warnings
from univerb.cli.index import told_progress
from univerb.cli.loading import load_model
from univerb.cli.options import (
    OUTPUT,
    AsJson,
    DataFolder,
    LawCorpus,
    Model,
    Offline,
    Threads,
    WikiCorpus,
    make_folder,
    write_pages,
)
from univerb.errors import MissingExtra
from univerb.locations import DEFAULT_MODEL

if TYPE_CHECKING:
    from univerb.lab.speed.run import Run


def speed(
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
            help="hf, hf-bf16, hf-prompt-lookup, llama.cpp, univerb-torch, univerb-llamacpp, or "
            "one mode of these, such as univerb-torch-unfold. Repeatable; by default all."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each workload.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Base tokens to write.")] = 128,
    data: DataFolder = None,
    wiki_corpus: WikiCorpus = None,
    law_corpus: LawCorpus = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Write the report here, and go on from what an interrupted run left there.",
            rich_help_panel=OUTPUT,
        ),
    ] = Path("bench"),
    model: Model = DEFAULT_MODEL,
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
) -> None:
    """Time univerb beside HF generate, prompt lookup and llama.cpp: same weights and prompts."""
    from univerb.lab.speed.systems import choose_systems
    from univerb.lab.speed.workloads import choose_workloads, find_data

    show_warnings()
    systems = choose_systems(system or [])
    found = find_data(data)
    workloads = choose_workloads(workload or [], found)
    if workloads == ["demo"] and not workload:
        errors.print(
            "[yellow]note:[/] no data here: the demo documents are used. Name a folder with "
            "--data or UNIVERB_DATA for the other workloads."
        )
    make_folder("--out", out)
    from univerb.lab.speed.run import forget_parts, make_plan, run_bench

    lm = load_model(model, offline=offline)
    with told_progress() as tell:
        plan = make_plan(
            lm,
            workloads,
            systems,
            data=found,
            corpora={"wikitext": wiki_corpus, "law": law_corpus},
            limit=limit,
            max_tokens=max_tokens,
            threads=threads,
            offline=offline,
            progress=tell,
        )
        # Each system loads the model for itself; this copy has made the prompts.
        del lm
        run = run_bench(plan, out, tell)
    typed = "".join(f" --workload {own}" for own in workload or [])
    typed += "".join(f" --system {own}" for own in system or [])
    named = {"wiki": wiki_corpus, "law": law_corpus}
    typed += "".join(f" --{name}-corpus {path.name}" for name, path in named.items() if path)
    typed += f" --limit {limit} --max-tokens {max_tokens} --threads {plan.setting.threads}"
    _write_report(out, run, f"univerb lab speed{typed}")
    forget_parts(out)
    if as_json:
        from univerb.lab.speed.report import to_dict

        print_json(to_dict(run))
    else:
        _show(run)


def _write_report(folder: Path, run: "Run", command: str) -> None:
    from univerb.lab.speed.plot import plot_bench
    from univerb.lab.speed.report import markdown, summary, to_dict

    pages = {
        "bench.json": json.dumps(to_dict(run), indent=2) + "\n",
        "bench.md": markdown(run, command),
    }
    write_pages(folder, pages)
    title = f"{run.about['model']}, {run.about['threads']} threads"
    try:
        plot_bench(folder / "bench.png", summary(run), title)
    except MissingExtra as error:
        # The figures are there, and took long: they are worth more than the picture.
        errors.print(f"[yellow]note:[/] no plot: {escape(str(error))}")


def _show(run: "Run") -> None:
    from univerb.lab.speed.report import COLUMNS, WORK_COLUMNS, cells, notes, summary

    # A narrow terminal may break lines, but must not cut figures.
    wide = Console(width=max(console.width, 120), highlight=False)
    about = run.about
    console.print(
        f"[bold]{escape(about['model'])}[/] [dim]univerb {about['univerb']}, torch "
        f"{about['torch']}, transformers {about['transformers']}, llama-cpp-python "
        f"{about['llama-cpp-python']}; {about['threads']} threads of {about['cores']} cores; "
        f"{about['base_tokens']} base tokens; retrieval and encoding are inside[/]"
    )
    for name, found in summary(run).items():
        console.rule(f"[bold]{name}[/] [dim]{found[0].prompts} prompts")
        rows = [cells(own) for own in found]
        for columns in (slice(1, WORK_COLUMNS), slice(WORK_COLUMNS, None)):
            table = Table(box=None, header_style="dim")
            table.add_column(COLUMNS[0], no_wrap=True)
            for column in COLUMNS[columns]:
                table.add_column(column, justify="right", no_wrap=True)
            for row in rows:
                table.add_row(row[0], *row[columns])
            wide.print(table)
    for note in notes(run):
        console.print(f"[dim]{escape(note)}[/]")
