"""`univerb lab pairs`: texts with phrases and without, both shown the same, to be judged."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from univerb.applications.context import DEFAULT_CONTEXT
from univerb.cli.console import errors, note_untrained, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.options import DataFolder
from univerb.cli.lab.reports import publish
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig


class PairsOptions(Options):
    """The prompts, and what both systems are shown."""

    workload: tuple[str, ...] = ("law", "open")
    """law: EU acts; open: Wikipedia articles. Repeatable."""
    limit: int = Field(default=30, ge=1)
    """Prompts of each workload."""
    words: int = Field(default=40, ge=4)
    """Of a prompt: prose from the middle of its document."""
    passages: int = Field(default=8, ge=1)
    """Passages of other texts that the phrases come from."""
    context: int = Field(default=DEFAULT_CONTEXT, ge=0)
    """So many of them are shown before the prompt, to both."""


@with_flags
def pairs(
    options: Annotated[PairsOptions, Flags("Prompts")],
    decoding: Annotated[
        GenerationConfig,
        Flags(
            DECODING,
            only=("max_tokens", "no_repeat_ngram_size", "repetition_penalty", "tolerance"),
            defaults={"max_tokens": 80},
        ),
    ],
    model: TorchFlags,
    data: DataFolder = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Write the report and the texts here; resumes.")
    ] = Path("pairs"),
    as_json: AsJson = False,
) -> None:
    """Continue prompts with phrases and without, for `univerb lab judge`."""
    show_warnings()
    make_folder("--out", out)
    from univerb.lab.data import find_data
    from univerb.lab.judging.continuations import PairsReport, write_pairs
    from univerb.lab.speed.workloads import RequestMaker, choose_workloads

    folder = find_data(data)
    workloads = choose_workloads(options.workload, folder)
    lm = load_model(**dict(model))
    note_untrained(lm)
    make = RequestMaker(
        lm,
        folder or Path(),
        options.limit,
        decoding.max_tokens,
        options.passages,
        middle_words=options.words,
    )
    with progress_bars() as tell:
        written = list(
            write_pairs(
                make, workloads, options.context, decoding, out, lambda a, b: tell("prompts", a, b)
            )
        )
    precision = str(lm.model.dtype).removeprefix("torch.")
    about = {"model": lm.name, "precision": precision, **dict(options), **decoding.options()}
    report = PairsReport(about, written)
    publish(report, "pairs", out, as_json)
    report.write_texts(out)
    errors.print(f"The texts are in {out}: univerb lab judge {out}/phrases.jsonl {out}/plain.jsonl")
