"""`univerb export`: from a run to an encoder that others load."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from univerb.cli.console import console, errors, escape, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.config import GenerationConfig, Profile

PROFILE = Flags("Profile", only=tuple(Profile.model_fields), names={"dtype": "kernel_dtype"})


@with_flags
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of an encoder.")],
    profile: Annotated[GenerationConfig, PROFILE],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new folder for the encoder.")],
    dtype: Annotated[
        Literal["float16", "float32"], typer.Option(help="Of the weights on disk.")
    ] = "float16",
) -> None:
    """Write the encoder of a run for shipping: its weights, its profile, how it was trained."""
    show_warnings()
    with errors.status("loading torch"):
        from univerb.applications.export import export_run

    lm = export_run(run.expanduser(), out.expanduser(), dtype, profile.options())
    size = sum(path.stat().st_size for path in out.expanduser().rglob("*") if path.is_file())
    steps = lm.encoder_config.trained_steps
    console.print(
        f"[bold]{escape(str(out))}[/]: {lm.encoder_config.form} form, {steps:,} steps, "
        f"{size / 1e6:.1f} MB\n[dim]use it:[/] univerb generate PROMPT --docs FILE --model "
        f"{escape(str(out))}"
    )
