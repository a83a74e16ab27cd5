"""`univerb adapt`: index a domain's text, calibrate, and show what that brings."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import (
    console,
    errors,
    escape,
    note_untrained,
    pieces_text,
    print_json,
    show_warnings,
)
from univerb.cli.flags import with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags
from univerb.cli.progress import progress_bars

if TYPE_CHECKING:
    from univerb.applications.adapt import CorpusCoverage
    from univerb.applications.before_after import BeforeAfter, ShownContinuation
    from univerb.applications.calibrate import Calibration

_FEW_TOKENS = 1000
_PROMPT_END = 100
"""Characters of a prompt that are shown."""
Passages = Annotated[int, typer.Option(min=1, help="Passages to calibrate on.")]
Chunks = Annotated[int, typer.Option("-k", min=1, help="Chunks to take phrases from.")]
_CHUNKS = 32
"""What `generate` takes, too, if it is not told."""


@with_flags
def adapt(
    docs: Annotated[list[str], typer.Argument(help="Text of the domain: files or folders.")],
    model: TorchFlags,
    output: Annotated[Path, typer.Option("-o", "--output", help="The corpus.")] = Path("corpus.uv"),
    held_out: Annotated[
        list[str] | None, typer.Option(help="Text of the domain that is not indexed. Repeatable.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(help="Compare with this corpus instead of no phrases.")
    ] = None,
    k: Chunks = _CHUNKS,
    passages: Passages = 32,
    max_phrases: Annotated[int, typer.Option(help="Phrases to store at most.")] = 2_000_000,
    vectors: Annotated[bool, typer.Option(help="Encode the phrases and calibrate.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; 1 by default.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt to a domain without training: index its text, calibrate, measure before and after."""
    from univerb.corpus import open_corpus
    from univerb.corpus.manifest import CorpusSettings
    from univerb.documents.read import read_documents
    from univerb.parallel import make_workers

    show_warnings()
    settings = CorpusSettings(max_phrases=max_phrases, vectors=vectors)
    documents = read_documents(*docs)
    held_out_documents = read_documents(*held_out) if held_out else None
    other = open_corpus(before) if before else None
    pool = make_workers(workers, ray_address)
    lm = load_model(**dict(model))
    note_untrained(lm)
    from univerb.applications.adapt import adapt as run

    with progress_bars() as show:
        result = run(
            lm,
            documents,
            output,
            held_out_documents,
            before=other,
            settings=None if (output / "manifest.json").is_file() else settings,
            k=k,
            limit=passages,
            workers=pool,
            progress=show,
        )
    if as_json:
        print_json(result.to_dict())
        return
    _show_coverage(result.before, result.after)
    if result.calibration:
        show_calibration(result.calibration)
    _show_continuations(result.continuations)
    command = f"univerb generate PROMPT --corpus {shlex.quote(str(output))}"
    command += f" -k {k}" if k != _CHUNKS else ""
    console.print(f"[dim]use it:[/] {escape(command)}")


def _show_coverage(before: "CorpusCoverage", after: "CorpusCoverage") -> None:
    table = Table("on held-out text", "before", "after", box=None, header_style="dim")
    for name, pair in (
        ("all phrases", (before.all_phrases, after.all_phrases)),
        ("retrieved", (before.retrieved, after.retrieved)),
    ):
        table.add_row(f"units per base token, {name}", *(f"{c.compression:.3f}" for c in pair))
        table.add_row(f"tokens inside phrases, {name}", *(f"{c.share:.1%}" for c in pair))
    console.print(table)


def _show_continuations(continuations: "Sequence[BeforeAfter]") -> None:
    for each in continuations:
        end = " ".join(each.prompt.split())[-_PROMPT_END:]
        console.print(Text(f"\n{each.document}: …{end}", style="dim"))
        rows = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
        _add_continuation(rows, "before", each.before)
        _add_continuation(rows, "without phrases", each.without_phrases)
        same = "" if each.is_changed else ", the same text"
        _add_continuation(rows, "after", each.after, same)
        console.print(rows)
    changed, count = sum(each.is_changed for each in continuations), len(continuations)
    console.print(
        f"\nphrases changed [bold]{changed}[/] of {count} continuation{'s' * (count != 1)}; other "
        "differences come from the passages that the LM was shown"
    )


def _add_continuation(rows: Table, name: str, written: "ShownContinuation", more: str = "") -> None:
    """Add what was written, labelled with what the LM had for it."""
    who = f"phrases of {Path(written.corpus).name}" if written.corpus else "plain LM"
    count = len(written.passages)
    means = f"{who}, {count or 'no'} passage{'s' * (count != 1)} shown{more}"
    rows.add_row(Text.assemble((name, "bold"), (f"  {means}", "dim")))
    lines = pieces_text(written.generation.pieces, "…").split()
    rows.add_row(Text(" ⏎ ", style="dim").join(line for line in lines if line.plain.strip()))


def show_calibration(calibration: "Calibration") -> None:
    """Print what was calibrated."""
    best, bits = calibration.best, calibration.bits_per_byte
    bias = best.bias if calibration.option == "phrase_bias" else 0.0
    console.print(
        f"{calibration.option} [bold]{best.bias:g}[/], tolerance [bold]{best.tolerance:g}[/]: "
        f"{best.passes_per_token:.2f} passes per token, {best.changed_rate:.1%} of the tokens "
        f"other than the plain LM's, {best.error_rate:.1%} other than the text's "
        f"[dim](plain LM {calibration.plain_error_rate:.1%}; "
        f"{calibration.passages} passages, {calibration.tokens} tokens; bits per byte "
        f"{bits[bias]:.3f}, plain {calibration.plain_bits_per_byte:.3f}, best "
        f"{min(bits.values()):.3f})[/]"
    )
    if calibration.tokens < _FEW_TOKENS:
        errors.print(
            f"[yellow]note:[/] {calibration.tokens} tokens are few to calibrate on. Give more text "
            "with --held-out, and run `univerb calibrate`."
        )
