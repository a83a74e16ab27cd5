"""`univerb batch`: a file of requests, answered by one process or many."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from univerb.cli.console import errors, show_warnings
from univerb.cli.loading import prepare_default
from univerb.cli.options import (
    PHRASES,
    Device,
    Dtype,
    MaxTokens,
    Mode,
    Model,
    NoRepeatNgramSize,
    PhraseBias,
    Seed,
    Temperature,
    Tolerance,
    TopP,
)
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL, is_converted, locate

WORKERS = "Workers"


def batch(
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT.jsonl", help="Requests in OpenAI's batch format."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the answers go, in the same order.")
    ],
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="Documents whose phrases serve every request without its own. Repeatable.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="A corpus to look up phrases in, prompt by prompt.", rich_help_panel=PHRASES
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="So many processes; 1 by default.", rich_help_panel=WORKERS),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run them with Ray.", rich_help_panel=WORKERS)
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster that runs already.", rich_help_panel=WORKERS),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Decode so many requests together.", rich_help_panel=WORKERS)
    ] = 8,
    threads: Annotated[
        int, typer.Option(help="Threads of each worker.", rich_help_panel=WORKERS)
    ] = 1,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Drop what an earlier run has left.", rich_help_panel=WORKERS
        ),
    ] = False,
    max_tokens: MaxTokens = 128,
    mode: Mode = None,
    tolerance: Tolerance = None,
    phrase_bias: PhraseBias = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    model: Model = DEFAULT_MODEL,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Answer a file of requests. A job that was stopped goes on where it was: run it again.

    What a request leaves open is as the options here say. The answers are the same, byte for
    byte, whatever the number of workers.
    """
    from univerb.applications.batch_jobs import Settings, run_batch
    from univerb.config import GenerationConfig
    from univerb.parallel import make_workers

    show_warnings()
    if docs and corpus:
        raise OptionError("phrases come from --docs or from a --corpus, not from both.")
    if docs and "-" in docs:
        raise OptionError("--docs cannot be standard input here: every worker reads it anew.")
    decoding = GenerationConfig(
        max_tokens=max_tokens,
        mode=mode and mode.value,
        tolerance=tolerance,
        phrase_bias=phrase_bias,
        no_repeat_ngram_size=no_repeat_ngram_size,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    settings = Settings(
        model=model,
        device=device,
        dtype=dtype,
        docs=tuple(docs or ()),
        corpus=str(corpus) if corpus else None,
        decoding=decoding,
        batch_size=batch_size,
        threads=threads,
    )
    # Before there are workers: each of them would find out for itself.
    locate(model)
    if model == DEFAULT_MODEL and not is_converted():
        prepare_default()
    _keep_quiet()
    with _bar() as bar, make_workers(workers, ray, ray_address) as crew:
        task = bar.add_task("answering", total=None)
        summary = run_batch(
            source,
            output,
            settings,
            crew,
            restart=restart,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    errors.print(
        f"{summary.requests} requests, {summary.refused} refused, {summary.resumed} from an "
        f"earlier run: {output}",
        markup=False,
    )


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=errors, disable=not errors.is_terminal)


def _keep_quiet() -> None:
    """Keep transformers from drawing bars of its own, in the workers too."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
