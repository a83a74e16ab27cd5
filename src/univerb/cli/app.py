"""`univerb`: the verbs put together, and errors turned into one clear line."""

import io
import sys

import typer
from typer import rich_utils

from univerb._version import __version__
from univerb.cli.console import HarmlessConsole, errors, escape
from univerb.cli.lab import lab
from univerb.cli.verbs import add_renamed, add_verbs
from univerb.errors import UniverbError

app = typer.Typer(
    name="univerb",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_verbs(
    app,
    "univerb.cli",
    {
        "generate": "Continue a prompt, writing whole phrases of your documents.",
        "answer": "Answer a question from documents; what is copied from them is cited.",
        "index": "Build a corpus once: retrieval index, phrases and their vectors.",
        "adapt": "Adapt to a domain without training, and measure before and after.",
        "batch": "Answer a file of requests in OpenAI's batch format.",
        "inspect": "Explain what a corpus holds.",
        "phrases": "List the phrases of documents, the most useful first.",
        "calibrate": "Find how boldly to use a corpus's phrases, on held-out text.",
        "train": "Train a phrase encoder for a causal LM.",
        "export": "Write the encoder of a run for shipping.",
        "demo": "Continue three prompts, each with the phrases of one demo document.",
        "setup": "Install the default model's weights and convert them once.",
        "info": "Say which versions, model, cache and threads are in use.",
    },
)
app.add_typer(lab)
add_renamed(
    app,
    {
        "bench": "lab speed",
        "eval": "lab phrases",
        "reproduce": "lab reproduce",
        "judge": "lab judge",
        "compare": "lab compare",
        "harness": "lab harness",
    },
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"univerb {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Let a language model read and write whole phrases as single vocabulary items."""


def main() -> None:
    """Run the command line; a univerb error ends it with one line and exit code 1."""
    # Errors of usage name what was typed, which may be a file's name.
    rich_utils.Console = HarmlessConsole  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        # What a terminal or a pipe cannot encode must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except UniverbError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing is left to say.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # A disk, or a path that nothing above has foreseen.
        place = f"{error.filename!r}: " if error.filename is not None else ""
        problem = f"{place}{error.strerror or error}. Correct that, or name another."
        errors.print(f"[bold red]error:[/] {escape(problem)}")
        sys.exit(1)
