"""`univerb batch`: a file of requests, answered by one process or many."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.console import errors, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.loading import locate_prepared
from univerb.cli.options import DECODING, MODEL, PHRASES, ModelOptions
from univerb.cli.progress import progress_bars
from univerb.config import REQUEST_OPTIONS, GenerationConfig
from univerb.errors import OptionError


class SharedPhrases(Options):
    """Phrases for every request that has none of its own."""

    docs: list[str] = []
    """Documents whose phrases serve every request without its own. Repeatable."""
    corpus: Path | None = None
    """A corpus to look up phrases in, prompt by prompt."""


class WorkerOptions(Options):
    """Who does the work."""

    workers: int | None = None
    """Number of processes; 1 by default."""
    ray_address: str | None = None
    """Run on the Ray cluster at this address instead."""
    batch_size: int = 8
    """Requests that are decoded together."""
    threads: int = 1
    """Threads of each worker."""
    restart: bool = False
    """Drop what an earlier run has left."""


@with_flags
def batch(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT.jsonl", help="Requests in OpenAI's batch format.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the answers go, in the same order.")
    ],
    phrases: Annotated[SharedPhrases, Flags(PHRASES)],
    work: Annotated[WorkerOptions, Flags("Workers")],
    decoding: Annotated[GenerationConfig, Flags(DECODING, only=REQUEST_OPTIONS)],
    model: Annotated[ModelOptions, Flags(MODEL, only=("name", "device", "dtype"))],
) -> None:
    """Answer a file of requests. A job that was stopped goes on where it was: run it again.

    What a request leaves open is as the options here say. The answers are the same, byte for
    byte, whatever the number of workers.
    """
    from univerb.applications.batch_jobs import BatchSettings, run_batch
    from univerb.parallel import make_workers

    show_warnings()
    if phrases.docs and phrases.corpus:
        raise OptionError("phrases come from --docs or from a --corpus, not from both.")
    if "-" in phrases.docs:
        raise OptionError("--docs cannot be standard input here: every worker reads it anew.")
    settings = BatchSettings(
        model=model.name,
        device=model.device,
        dtype=model.dtype,
        docs=tuple(phrases.docs),
        corpus=str(phrases.corpus) if phrases.corpus else None,
        decoding=decoding,
        batch_size=work.batch_size,
        threads=work.threads,
    )
    # Before there are workers: each of them would find out for itself.
    locate_prepared(model.name)
    # Workers have no terminal for transformers to draw bars on.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    workers = make_workers(work.workers, work.ray_address)
    with progress_bars() as show, workers:
        progress = partial(show, "answering")
        summary = run_batch(
            source, output, settings, workers, restart=work.restart, progress=progress
        )
    failed = f" ({summary.failed} of them failed, see above)" if summary.failed else ""
    errors.print(
        f"{summary.requests} requests, {summary.refused} refused{failed}, {summary.resumed} from "
        f"an earlier run: {str(output)!r}",
        markup=False,
    )
