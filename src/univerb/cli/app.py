"""`univerb`: the verbs put together, and errors turned into one clear line."""

import sys

import typer

from univerb._version import __version__
from univerb.cli.adapt import adapt
from univerb.cli.answer import answer
from univerb.cli.batch import batch
from univerb.cli.calibrate import calibrate
from univerb.cli.console import errors, escape
from univerb.cli.demo import demo
from univerb.cli.generate import generate
from univerb.cli.index import index
from univerb.cli.info import info
from univerb.cli.inspect import inspect
from univerb.cli.lab.compare import compare
from univerb.cli.lab.harness import harness
from univerb.cli.lab.judge import judge
from univerb.cli.lab.phrases import app as eval_app
from univerb.cli.lab.reproduce import reproduce
from univerb.cli.lab.speed import bench
from univerb.cli.phrases import phrases
from univerb.cli.setup import setup
from univerb.cli.train import train
from univerb.errors import UniverbError

app = typer.Typer(
    name="univerb",
    help="Let a language model read and write whole phrases as single vocabulary items.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (
    generate,
    answer,
    index,
    inspect,
    adapt,
    calibrate,
    batch,
    train,
    phrases,
    bench,
    reproduce,
    compare,
    judge,
    harness,
    demo,
    setup,
    info,
)
for verb in VERBS:
    app.command()(verb)
app.add_typer(eval_app)


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
