"""`univerb adapt`: index a domain's text, calibrate, and show what that brings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from univerb.cli.console import console, errors, escape, note_untrained, print_json, show_warnings
from univerb.cli.flags import with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars

if TYPE_CHECKING:
    from univerb.applications.adapt import Adaptation, Measured
    from univerb.applications.calibrate import Calibration

_FEW = 1000
HeldOut = Annotated[
    list[str] | None,
    typer.Option("--held-out", help="Text of the domain that is not indexed. Repeatable."),
]
Passages = Annotated[int, typer.Option(min=1, help="Calibrate on so many.")]
Chunks = Annotated[int, typer.Option("-k", min=1, help="Phrases from how many chunks.")]


@with_flags
def adapt(
    docs: Annotated[list[str], typer.Argument(help="Text of the domain: files or folders.")],
    model: TorchFlags,
    output: Annotated[Path, typer.Option("-o", "--output", help="The corpus.")] = Path("corpus.uv"),
    held_out: HeldOut = None,
    before: Annotated[
        Path | None, typer.Option(help="Compare with this corpus instead of no phrases.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write adapt.json and adapt.png into this folder.")
    ] = None,
    k: Chunks = 32,
    passages: Passages = 32,
    max_phrases: Annotated[int, typer.Option(help="Store at most so many.")] = 2_000_000,
    vectors: Annotated[bool, typer.Option(help="Encode the phrases and calibrate.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Work on Ray.")] = False,
    ray_address: Annotated[str | None, typer.Option(help="A running Ray cluster.")] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt to a domain without training: index its text, calibrate, measure before and after."""
    from univerb.corpus import open_corpus
    from univerb.corpus.manifest import CorpusSettings
    from univerb.documents.read import read_documents
    from univerb.parallel import make_workers

    show_warnings()
    if report:
        make_folder("--report", report)
    settings = CorpusSettings(max_phrases=max_phrases, vectors=vectors)
    documents = read_documents(*docs)
    kept_out = read_documents(*held_out) if held_out else None
    other = open_corpus(before) if before else None
    pool = make_workers(workers, ray or ray_address is not None, ray_address)
    lm = load_model(**dict(model))
    note_untrained(lm)
    from univerb.applications.adapt import adapt as run

    with progress_bars() as show:
        result = run(
            lm,
            documents,
            output,
            kept_out,
            before=other,
            settings=None if (output / "manifest.json").is_file() else settings,
            k=k,
            limit=passages,
            workers=pool,
            progress=show,
        )
    if report:
        _write_report(report, result)
    if as_json:
        print_json(result.to_dict())
        return
    show_measured([result.before, result.after])
    if result.calibration:
        show_calibration(result.calibration)
    console.print(f"[dim]use it:[/] univerb generate PROMPT --corpus {escape(str(output))}")


def show_measured(rows: "list[Measured]") -> None:
    """Print what corpora bring, one column each."""
    table = Table("on held-out text", *(row.label for row in rows), box=None, header_style="dim")
    figures = [
        ("units per base token, all phrases", lambda r: f"{r.all_phrases.compression:.3f}"),
        ("tokens inside phrases, all phrases", lambda r: f"{r.all_phrases.share:.1%}"),
        ("units per base token, retrieved", lambda r: f"{r.retrieved.compression:.3f}"),
        ("tokens inside phrases, retrieved", lambda r: f"{r.retrieved.share:.1%}"),
    ]
    for name, value in figures:
        table.add_row(name, *map(value, rows))
    console.print(table)


def show_calibration(found: "Calibration") -> None:
    """Print what was calibrated."""
    best = found.best
    console.print(
        f"phrase_bias [bold]{best.phrase_bias:g}[/], tolerance [bold]{best.tolerance:g}[/]: "
        f"{best.passes_per_token:.2f} passes per token, {best.error_rate:.1%} of the tokens other "
        f"than the text's [dim](plain LM {found.plain_error_rate:.1%}; {found.passages} passages, "
        f"{found.tokens} tokens; bits per byte {found.bits_per_byte[best.phrase_bias]:.3f}, "
        f"plain {found.plain_bits_per_byte:.3f}, best {min(found.bits_per_byte.values()):.3f})[/]"
    )
    if found.tokens < _FEW:
        errors.print(
            f"[yellow]note:[/] {found.tokens} tokens are few to calibrate on. Give more text with "
            "--held-out, and run `univerb calibrate`."
        )


def _write_report(folder: Path, result: "Adaptation") -> None:
    from univerb.applications.adapt_plot import plot_adaptation

    text = json.dumps(result.to_dict(), indent=2)
    (folder / "adapt.json").write_text(text + "\n", encoding="utf-8")
    plot_adaptation(folder / "adapt.png", [result.before, result.after], result.calibration)
