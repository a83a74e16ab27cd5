"""`univerb lab harness`: standard tasks of lm-evaluation-harness, with phrases on."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.console import console, note_untrained, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, PHRASES, AsJson, TorchFlags
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig
from univerb.locations import is_offline

_phrases = partial(typer.Option, rich_help_panel=PHRASES)


@with_flags
def harness(
    tasks: Annotated[list[str], typer.Argument(help="Tasks or groups of the harness.")],
    decoding: Annotated[GenerationConfig, Flags(DECODING, only=("phrase_bias",))],
    model: TorchFlags,
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
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness; likelihoods are exact over tokens and phrases."""
    show_warnings()
    if is_offline() if model.offline is None else model.offline:
        # Read when the Hub's packages are imported, which comes later: data sets stay away, too.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    from univerb.lab.harness.tasks import find_tasks, results_table, run_tasks

    # Before the model is loaded: a wrong name should not cost the wait.
    manager = find_tasks(tasks, tasks_folder)
    from univerb.lab.harness.model import UniverbLM
    from univerb.lab.harness.request_phrases import read_sources

    sources = read_sources(docs or (), corpus, phrases, k)
    lm = load_model(**dict(model))
    note_untrained(lm)
    with progress_bars() as tell:
        bias = decoding.options().get("phrase_bias")
        harness_lm = UniverbLM(lm, sources, phrase_bias=bias, on_progress=tell)
        results = run_tasks(
            harness_lm, tasks, manager, limit=limit, num_fewshot=num_fewshot, chat=chat
        )
    if as_json:
        print_json(results)
    else:
        console.print(results_table(results), markup=False)
