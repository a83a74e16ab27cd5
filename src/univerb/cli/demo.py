"""`univerb demo`: the default model writes with the phrases of the demo documents."""

from contextlib import suppress
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Annotated

import typer

from univerb.cli.console import (
    console,
    note_untrained,
    pieces_text,
    print_sources,
    show_warnings,
    stats_line,
)
from univerb.cli.loading import load_to_write
from univerb.cli.options import EngineName
from univerb.errors import ModelError

if TYPE_CHECKING:
    from univerb.engines.llamacpp.lm import LlamaCppLM
    from univerb.modeling.dynamic import DynamicLM

SCENES = (
    ("lease.txt", "The landlord and the tenant agree as follows. The tenant shall"),
    ("leaflet.txt", "What you need to know before you take this medicine. Do not take"),
    ("regulation.txt", "Member States shall ensure that the label of honey"),
)


def demo(
    max_tokens: Annotated[int, typer.Option(help="How much to write each time.")] = 60,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What computes; by default llamacpp where it is installed, else torch."),
    ] = None,
) -> None:
    """Continue three prompts, each with the phrases of one demo document."""
    from univerb.decoding.loop import generate
    from univerb.documents.read import read_documents

    show_warnings()
    lm = load_to_write(engine=engine) if engine else _load_fastest()
    note_untrained(lm)
    for name, prompt in SCENES:
        with as_file(files("univerb") / "assets" / "demo" / name) as path:
            vocabulary = lm.vocabulary(read_documents(path))
        with console.status(f"writing with {len(vocabulary)} phrases of {name}"):
            # A small LM repeats itself when it is greedy; a light penalty keeps the text moving.
            result = generate(
                lm,
                prompt,
                vocabulary,
                max_tokens=max_tokens,
                repetition_penalty=1.1,
            )
        console.rule(f"[bold]{name}")
        console.print(pieces_text(result.pieces, prompt))
        console.print(f"\n[dim]{stats_line(result.stats)}[/]")
        print_sources(result)
        console.print()
    console.print("Your own documents: [bold]univerb generate PROMPT --docs FILE[/]")


def _load_fastest() -> "DynamicLM | LlamaCppLM":
    from univerb.engines.llamacpp.binding import is_installed

    if is_installed():
        # It may be there and yet not run on this processor.
        with suppress(ModelError):
            return load_to_write(engine=EngineName.llamacpp)
    return load_to_write(engine=EngineName.torch)
