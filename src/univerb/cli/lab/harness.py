"""`univerb lab harness`: standard tasks of lm-evaluation-harness, with phrases on."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.console import note_untrained, print_json, show_warnings
from univerb.cli.index import told_progress
from univerb.cli.loading import load_model
from univerb.cli.options import (
    PHRASES,
    Adapter,
    AsJson,
    Device,
    Dtype,
    Model,
    Offline,
    PhraseBias,
    Threads,
)
from univerb.locations import DEFAULT_MODEL, is_offline

_phrases = partial(typer.Option, rich_help_panel=PHRASES)


def harness(
    tasks: Annotated[list[str], typer.Argument(help="Tasks or groups of the harness.")],
    tasks_folder: Annotated[
        Path | None, typer.Option(help="More tasks, as YAML files; Python that they name is run.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Examples.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    docs: Annotated[
        list[str] | None, _phrases(help="Take the n-grams of files or folders. Repeatable.")
    ] = None,
    corpus: Annotated[
        Path | None, _phrases(help="Retrieve phrases by each request's context.")
    ] = None,
    k: Annotated[int, _phrases("-k", min=1, help="From how many chunks.")] = 32,
    phrases: Annotated[
        str | None,
        _phrases(help="A file with phrases, or `context`: the n-grams of each request's context."),
    ] = None,
    phrase_bias: PhraseBias = None,
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness; likelihoods are exact over tokens and phrases."""
    show_warnings()
    if is_offline() if offline is None else offline:
        # Read when the Hub's packages are imported, which comes later: data sets stay away, too.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
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
        harness_lm = UniverbLM(lm, sources, phrase_bias=phrase_bias, on_progress=tell)
        results = run_tasks(
            harness_lm, tasks, manager, limit=limit, num_fewshot=num_fewshot, chat=chat
        )
    if as_json:
        print_json(results)
    else:
        print(results_table(results))
