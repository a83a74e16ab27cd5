"""`univerb lab speed`: whole requests beside other systems, and univerb's parts by themselves."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from univerb.cli.console import show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.options import DataFolder
from univerb.cli.lab.reports import publish
from univerb.cli.loading import load_model
from univerb.cli.options import MODEL, AsJson, ModelOptions, make_folder
from univerb.cli.progress import progress_bars

if TYPE_CHECKING:
    from univerb.lab.speed.timing import SpeedReport


class PartName(StrEnum):
    """What is timed."""

    systems = "systems"
    head = "head"
    encoding = "encoding"
    corpus = "corpus"


class SystemsOptions(Options):
    """The requests, and the systems that are compared."""

    workload: tuple[str, ...] = ()
    """open, law, answers, summaries or demo. Repeatable; by default all that there is data for, or
    else the demo."""
    system: tuple[str, ...] = ()
    """A group (float32, float16, llamacpp, simulation) or one system, such as torch-verify.
    Repeatable; by default all."""
    max_tokens: int = Field(default=128, ge=16)
    """Base tokens of each request: more than one phrase or draft has."""
    passages: int = Field(default=3, ge=1, le=1000)
    """Passages of other texts that the phrases of open and law come from."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """Write no n-gram of this size twice, whatever the system; 0 allows all."""


@with_flags
def speed(
    systems: Annotated[SystemsOptions, Flags("Systems")],
    model: Annotated[ModelOptions, Flags(MODEL, only=("name", "engine", "threads", "offline"))],
    part: Annotated[
        PartName,
        typer.Argument(
            help="systems: whole requests; head: a step by vocabulary size; encoding: phrases per "
            "second; corpus: building and querying one."
        ),
    ] = PartName.systems,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts of each workload (20 by default), or rounds (8)."),
    ] = None,
    docs: Annotated[
        list[str] | None, typer.Option(help="Text that a part is timed on; the demo's by default.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="head, corpus: take phrases and their vectors from here.")
    ] = None,
    data: DataFolder = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Write the report here; `systems` resumes.")
    ] = Path("speed"),
    as_json: AsJson = False,
) -> None:
    """Time univerb beside plain decoding and prompt lookup, or a part of it by itself."""
    from univerb.lab.speed.run import forget_rounds

    show_warnings()
    if part is PartName.systems:
        report = _time_systems(systems, model, limit or 20, data, out)
    else:
        from univerb.lab.speed.parts import time_part

        make_folder("--out", out)
        lm = load_model(**dict(model))
        with progress_bars() as tell:
            report = time_part(lm, part, docs or [], corpus, limit or 8, tell)
    publish(report, part, out, as_json)
    forget_rounds(out)


def _time_systems(
    options: SystemsOptions, model: ModelOptions, limit: int, data: Path | None, out: Path
) -> "SpeedReport":
    from univerb.lab.data import find_data
    from univerb.lab.speed.systems import choose_systems
    from univerb.lab.speed.workloads import RequestMaker, choose_workloads

    # Before the model is loaded: a wrong name must not cost that first.
    names, data = choose_systems(options.system), find_data(data)
    workloads = choose_workloads(options.workload, data)
    make_folder("--out", out)
    from univerb.lab.speed.figures import report_systems
    from univerb.lab.speed.run import make_plan, run_systems

    lm = load_model(model.name, engine="torch", offline=model.offline)
    make = RequestMaker(
        lm,
        data or Path(),
        limit,
        options.max_tokens,
        options.passages,
        options.no_repeat_ngram_size,
    )
    with progress_bars() as tell:
        plan = make_plan(workloads, names, make, model.threads, model.offline, tell)
        # Systems load the model for themselves; this copy has made the prompts.
        del lm, make
        return report_systems(run_systems(plan, out, tell))
