"""`univerb lab harness`: standard tasks of lm-evaluation-harness, with phrases on."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.console import note_untrained, print_json, show_warnings
from univerb.cli.index import told_progress
from univerb.cli.loading import load_model
from univerb.cli.options import (
    OUTPUT,
    PHRASES,
    Adapter,
    AsJson,
    Device,
    Dtype,
    Model,
    Offline,
    PhraseBias,
    Threads,
    make_folder,
    write_pages,
)
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL, is_offline


def harness(
    tasks: Annotated[list[str], typer.Argument(help="Tasks or groups of the harness.")],
    tasks_folder: Annotated[
        Path | None,
        typer.Option(help="More tasks, as YAML files; Python that they name is run."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task.")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples; by default as the task says.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="Take the n-grams of these files or folders. Repeatable.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Retrieve phrases by each request's context (`univerb index`).",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    k: Annotated[
        int, typer.Option("-k", min=1, help="From how many chunks.", rich_help_panel=PHRASES)
    ] = 32,
    phrases: Annotated[
        str | None,
        typer.Option(
            help="A file with phrases, or `context`: the n-grams of each request's context.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    phrase_bias: PhraseBias = None,
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Write the results to this JSON file.", rich_help_panel=OUTPUT
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness; likelihoods are exact over tokens and phrases."""
    show_warnings()
    if is_offline() if offline is None else offline:
        # Read when the Hub's packages are imported, which comes later: data sets stay away, too.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    if out:
        make_folder("--out", out.parent)
        if out.is_dir():
            raise OptionError(f"--out {str(out)!r} is a folder. Name a file, such as results.json.")
    from univerb.lab.harness.tasks import find_tasks, results_table, run_tasks

    # Before the model is loaded: a wrong name should not cost the wait.
    manager = find_tasks(tasks, tasks_folder)
    from univerb.lab.harness.model import UniverbLM
    from univerb.lab.harness.request_phrases import read_sources

    sources = read_sources(docs or (), corpus, phrases, k)
    lm = load_model(
        model, adapter=adapter, device=device, dtype=dtype, threads=threads, offline=offline
    )
    note_untrained(lm)
    with told_progress() as tell:
        own = UniverbLM(lm, sources, phrase_bias=phrase_bias, on_progress=tell)
        results = run_tasks(own, tasks, manager, limit=limit, num_fewshot=num_fewshot, chat=chat)
    if out:
        write_pages(out.parent, {out.name: json.dumps(results, indent=2) + "\n"})
    if as_json:
        print_json(results)
    else:
        print(results_table(results))
