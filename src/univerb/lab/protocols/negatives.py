"""The tables of negatives and samples: a model is trained for each row, then has to write."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from univerb.lab.protocols.continuations import Job, Writer
from univerb.lab.protocols.experiment import Figures, Lab
from univerb.lab.protocols.language import EXTRA, NOTES, cells
from univerb.lab.tables.measured import Run, RunRow
from univerb.lab.tables.paper import PaperTable
from univerb.modeling.dynamic import DynamicLM
from univerb.training.callback import Callback
from univerb.training.config import Negative, TrainingConfig
from univerb.training.processes import Processes
from univerb.training.task_factory import make_task
from univerb.training.trainer import train

SAMPLES = {"FMM": "fmm", "N-words": "n-words", "N-ids": "n-ids"}
KINDS: dict[str, tuple[Negative, ...]] = {
    "in-batch": ("in-batch",),
    "pre-batch": ("in-batch", "prefixes", "pre-batch"),
    "generation": ("in-batch", "prefixes", "generation"),
    "corpus-retrieval": ("in-batch", "prefixes", "corpus-retrieval"),
    "self-retrieval": ("in-batch", "prefixes", "self-retrieval"),
    "self-retrieval + generation": ("in-batch", "prefixes", "self-retrieval", "generation"),
}
"""By the paper's names; prefixes belong to all informative ones (METHOD A.5)."""


class Variant(NamedTuple):
    """A row of the ablation."""

    section: str
    """How samples are built."""
    name: str
    """The negatives."""

    def settings(self, base: TrainingConfig) -> TrainingConfig:
        """Return a run's settings with the samples and the negatives of this row."""
        samples = base.samples.model_copy(update={"kind": SAMPLES[self.section]})
        kinds = KINDS[self.name]
        # Checked anew: not all negatives go with all samples.
        return TrainingConfig.model_validate(
            base.model_dump()
            | {
                "samples": samples.model_dump(),
                "negatives": base.negatives.model_dump() | {"kinds": kinds},
            }
        )

    @property
    def folder(self) -> str:
        """The name of its run."""
        return f"{self.section} {self.name}".lower().replace(" + ", "-").replace(" ", "-")


def negatives_run(
    lab: Lab,
    table: PaperTable,
    test_set: str,
    base: TrainingConfig,
    runs: Path,
    observe: Callback | None = None,
) -> Run:
    """Train what is not trained yet, and measure all.

    Args:
        lab: How it is measured; its model is not, but for its name.
        table: Of the paper.
        test_set: One of `TEST_SETS`.
        base: The settings that all runs have in common.
        runs: Where the runs lie.
        observe: Is told how training goes.

    Returns:
        The run.
    """
    rows: list[RunRow] = []
    measured: list[Figures] = []
    for variant in dict.fromkeys(Variant(row.section, row.name) for row in table.rows):
        own = replace(lab, lm=trained(variant, base, runs, observe))
        writer = Writer(variant.folder, {"mode": "atomic"})
        jobs = [Job(writer, decoding) for decoding in table.decodings]
        figures = own.bench(test_set).measure(jobs)
        measured += figures
        rows += list(_rows(variant, jobs, figures))
    bench, steps = lab.bench(test_set), base.run.steps
    setup = bench.setup(
        len(measured[0].texts),
        training=f"{steps} steps, {base.regime}",
        encoder="one for each row",
        splitter=measured[0].quality.splitter,
    )
    about = (
        f"Each row was trained for {steps} steps of {base.run.batch * base.run.accumulate} passages"
        f" of at most {base.data.block} tokens ({base.regime}); the paper trains 400,000 steps. "
        "Phrases are written in `atomic` mode, as there."
    )
    return Run(setup, tuple(rows), EXTRA, (about, *NOTES), bench.facts)


def _rows(variant: Variant, jobs: list[Job], figures: list[Figures]) -> Iterator[RunRow]:
    for job, own in zip(jobs, figures, strict=True):
        name = f"{variant.name}, this run"
        yield RunRow(name, cells(own), variant.name, variant.section, job.decoding)


def trained(
    variant: Variant, base: TrainingConfig, runs: Path, observe: Callback | None = None
) -> DynamicLM:
    """Train the model of a row, or go on with it, or load it if it is done.

    Args:
        variant: The row.
        base: The settings that all runs have in common.
        runs: Where the runs lie.
        observe: Is told how it goes.

    Returns:
        The model.

    Raises:
        KeyboardInterrupt: If training was interrupted; what was trained is kept.
    """
    settings = variant.settings(base)
    processes = Processes.single()
    task = make_task(settings, processes)
    result = train(task, settings, runs / variant.folder, processes, callback=observe)
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    return DynamicLM.from_pretrained(str(result.export), adapter=base.regime == "lora")
