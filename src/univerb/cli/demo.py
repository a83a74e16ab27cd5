"""`univerb demo`: the default model writes and answers with the demo documents."""

from contextlib import suppress
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Annotated

import typer

from univerb.cli.answer import show_answer
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
from univerb.config import GenerationConfig
from univerb.errors import ModelError

if TYPE_CHECKING:
    from univerb.engines.llamacpp.lm import LlamaCppLM
    from univerb.modeling.dynamic import DynamicLM
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.phrase import Document

QUESTION = "When must the tenant pay the rent?"

SCENES = (
    ("lease.txt", "If the tenant fails to pay the rent, the landlord may"),
    ("leaflet.txt", "What you need to know before you take this medicine. Do not take"),
    ("regulation.txt", "Operators shall keep records that show"),
)


def demo(
    max_tokens: Annotated[int, typer.Option(help="How much to write each time.")] = 48,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What computes; by default llamacpp where it is installed, else torch."),
    ] = None,
) -> None:
    """Continue three prompts, each with one demo document, and answer a question."""
    from univerb.documents.read import read_documents

    show_warnings()
    lm = load_to_write(engine=engine) if engine else _load_fastest()
    note_untrained(lm)
    with as_file(files("univerb") / "assets" / "demo") as folder:
        for name, prompt in SCENES:
            _write(lm, name, prompt, read_documents(folder / name), max_tokens)
        _answer(lm, read_documents(folder))
    console.print("Your own documents: [bold]univerb generate PROMPT --docs FILE[/]")
    console.print("Your own questions: [bold]univerb answer QUESTION --docs FOLDER[/]")


def _write(
    lm: "PhraseModel", name: str, prompt: str, documents: "list[Document]", max_tokens: int
) -> None:
    from univerb.applications.context import DEFAULT_CONTEXT, in_context
    from univerb.applications.passages import find_passages
    from univerb.decoding.loop import generate

    vocabulary = lm.vocabulary(documents)
    shown = in_context(lm, prompt, find_passages(prompt, documents, DEFAULT_CONTEXT), max_tokens)
    # A small LM repeats itself when it is greedy; a light penalty keeps the text moving.
    config = GenerationConfig(max_tokens=max_tokens, repetition_penalty=1.1)
    with console.status(f"writing with {len(vocabulary)} phrases of {name}"):
        result = generate(lm, shown.ids, vocabulary, **shown.configured(config).options())
    console.rule(f"[bold]{name}")
    console.print(pieces_text(result.pieces, prompt))
    console.print(f"\n[dim]{stats_line(result.stats)}[/]")
    print_sources(result)
    console.print()


def _answer(lm: "PhraseModel", documents: "list[Document]") -> None:
    from univerb.applications.answer import answer

    with console.status("looking for the answer in all of them"):
        result = answer(lm, QUESTION, documents)
    console.rule(f"[bold]{QUESTION}")
    show_answer(result)
    console.print()


def _load_fastest() -> "DynamicLM | LlamaCppLM":
    from univerb.engines.llamacpp.binding import is_installed

    if is_installed():
        # It may be there and yet not run on this processor.
        with suppress(ModelError):
            return load_to_write(engine=EngineName.llamacpp)
    return load_to_write(engine=EngineName.torch)
