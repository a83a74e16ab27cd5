"""`univerb lab phrases`: what an encoder's phrases are worth, measured on held-out text."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from univerb.cli.console import console, escape, note_untrained, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.lab.options import write_pages
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, OUTPUT, AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig
from univerb.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from univerb.config import Profile
    from univerb.lab.phrases.run import PhrasesReport
    from univerb.lab.phrases.writing import Way

PROTOCOL = "Protocol"
SWEEP_DOCUMENTS = 12


@with_flags
def phrases(
    docs: Annotated[list[str], typer.Option(help="Held-out text: files or folders. Repeatable.")],
    decoding: Annotated[
        GenerationConfig, Flags(DECODING, only=("mode", "tolerance", "phrase_bias"))
    ],
    model: TorchFlags,
    corpus: Annotated[
        Path | None, typer.Option(help="Where candidates are retrieved (`univerb index`).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Documents.")] = 300,
    limit_writing: Annotated[
        int | None, typer.Option(min=0, help="Write for so many of them only.")
    ] = None,
    modes: Annotated[
        str,
        typer.Option(help="Ways to write, of: bare, profile, whole, verify, atomic, segmented."),
    ] = "bare,profile,whole,verify,atomic,segmented",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Only write, over --tolerances x --biases.")
    ] = False,
    tolerances: Annotated[
        str, typer.Option(help="Of the sweep.", rich_help_panel=PROTOCOL)
    ] = "0.3,0.5,0.7,0.9,1",
    biases: Annotated[
        str, typer.Option(help="Of the sweep.", rich_help_panel=PROTOCOL)
    ] = "-2,0,2,4",
    k: Annotated[
        int, typer.Option("-k", min=1, help="Chunks to retrieve.", rich_help_panel=PROTOCOL)
    ] = 32,
    context: Annotated[
        int, typer.Option(min=1, help="Tokens of the first half.", rich_help_panel=PROTOCOL)
    ] = 512,
    truth: Annotated[
        int, typer.Option(min=16, help="Tokens of the second half.", rich_help_panel=PROTOCOL)
    ] = 256,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Base tokens to write.", rich_help_panel=PROTOCOL)
    ] = 128,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=PROTOCOL)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the report and its plots here, and go on from what is there.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure phrases on held-out documents, cut in the middle: what follows is the truth."""
    from univerb.corpus import open_corpus
    from univerb.documents.read import read_documents

    show_warnings()
    grid = (_numbers("--tolerances", tolerances, 0.0, 1.0), _numbers("--biases", biases))
    if out:
        make_folder("--out", out)
    opened = open_corpus(corpus) if corpus else None
    documents = read_documents(*docs)
    lm = load_model(**dict(model))
    note_untrained(lm)
    lm.profile = lm.profile.model_copy(update=decoding.options())
    from univerb.lab.phrases.run import Protocol, evaluate_phrases

    protocol = Protocol(context=context, truth=truth, k=k, max_tokens=max_tokens, seed=seed)
    ways = _ways(lm.profile, modes, grid if sweep else None)
    few = min(limit, SWEEP_DOCUMENTS) if limit_writing is None else limit_writing
    only_writing: dict[str, Any] = {"measures": (), "limit": max(few, 1)}
    bounds: dict[str, Any] = {"limit": limit, "limit_writing": limit_writing}
    with progress_bars() as tell:
        report = evaluate_phrases(
            lm,
            documents,
            opened,
            protocol,
            ways=list(ways.values()),
            folder=out,
            progress=lambda done, total: tell("documents", done, total),
            **(only_writing if sweep else bounds),
        )
    if out:
        _write_report(out, report, "sweep" if sweep else "phrases")
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)


def _ways(
    profile: "Profile", modes: str, grid: tuple[list[float], list[float]] | None
) -> "dict[str, Way]":
    from univerb.lab.phrases.writing import BARE, grid_ways, standard_ways

    known = standard_ways(profile)
    if grid:
        return {BARE: known[BARE]} | grid_ways(*grid)
    names = [name.strip() for name in modes.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise OptionError(f"--modes has {name!r}. {did_you_mean(name, known)}")
    return {name: known[name] for name in known if name in names}


def _numbers(option: str, text: str, low: float = -100.0, high: float = 100.0) -> list[float]:
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(low <= number <= high for number in numbers):
        raise OptionError(
            f"{option} is {text!r}; give numbers from {low:g} to {high:g}, such as 0.5,0.9."
        )
    return numbers


def _write_report(folder: Path, report: "PhrasesReport", name: str) -> None:
    from univerb.lab.phrases.plot import plot_phrases, plot_sweep
    from univerb.lab.phrases.report import markdown

    command = "univerb " + " ".join(sys.argv[1:])
    text = json.dumps(report.to_dict(), indent=2)
    pages = {f"{name}.json": text + "\n", f"{name}.md": markdown(report, command)}
    write_pages(folder, pages)
    title = f"{Path(report.about['model']).name}, {report.about['documents']} documents"
    if name == "sweep":
        plot_sweep(folder / "sweep.png", report.writing, title)
    else:
        plot_phrases(folder / "phrases.png", report, title)


def _show(report: "PhrasesReport") -> None:
    from univerb.lab.phrases.report import report_rows

    about = report.about
    profile = ", ".join(f"{name} {value}" for name, value in about["profile"].items())
    console.print(
        f"[bold]{escape(about['model'])}[/] [dim]{escape(profile)}; "
        f"{about['documents']} documents, {about['documents_written']} continued[/]"
    )
    table = Table(box=None, header_style="dim")
    table.add_column("measure", no_wrap=True)
    table.add_column("value", no_wrap=True, style="bold")
    table.add_column("beside it", style="dim")
    table.add_column("target")
    colours = {None: "dim", True: "green", False: "red"}
    for row in report_rows(report):
        target = f"[{colours[row.is_met]}]{row.target}[/]"
        table.add_row(row.measure, row.value, row.beside, target)
    console.print(table)
    if report.writing:
        _show_writing(report)


def _show_writing(report: "PhrasesReport") -> None:
    names = ("way", "steps / token", "Diversity", "PPL", "longest run (words)")
    table = Table(*names, box=None, header_style="dim")
    for own in report.writing:
        table.add_row(
            own.name,
            f"{own.steps_per_token:.3f}",
            f"{100 * own.diversity:.1f}",
            f"{own.ppl:.2f}",
            f"{own.run_words:.1f}, at most {own.run_words_most}",
        )
    console.print(table)
