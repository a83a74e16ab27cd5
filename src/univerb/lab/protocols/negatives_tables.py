"""The ablation tables of negatives and samples: a model is trained for each row, then measured."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from univerb.lab.protocols.experiment import Experiment
from univerb.lab.protocols.generation_runner import GenerationJob, TextSystem
from univerb.lab.protocols.language_tables import EXTRA, NOTES, cells
from univerb.lab.tables.paper import PaperTable
from univerb.lab.tables.table_results import SystemRow, TableResult
from univerb.modeling.dynamic import DynamicLM
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
"""By the paper's names; prefixes belong to all informative ones (docs/method.md, Negatives)."""


class AblationRow(NamedTuple):
    """A row of the ablation."""

    section: str
    """The kind of samples."""
    name: str
    """The negatives."""

    def settings(self, base: TrainingConfig) -> TrainingConfig:
        """Return training settings with the samples and the negatives of this row."""
        # What the file leaves open follows from the kind: FMM's phrases are longer.
        samples = base.samples.model_dump(exclude_unset=True) | {"kind": SAMPLES[self.section]}
        negatives = base.negatives.model_dump() | {"kinds": KINDS[self.name]}
        changes = {"samples": samples, "negatives": negatives}
        # Validated again: not all negatives go with all samples.
        return TrainingConfig.model_validate(base.model_dump() | changes)

    @property
    def folder(self) -> str:
        """The folder of its training run."""
        return f"{self.section} {self.name}".lower().replace(" + ", "-").replace(" ", "-")


def negatives_table(
    experiment: Experiment,
    table: PaperTable,
    test_set: str,
    base: TrainingConfig,
    runs: Path,
) -> TableResult:
    """Train the models that are not trained yet in a folder of training runs, and measure all.

    `base` has the training settings that all rows have in common; of the experiment's model only
    the name counts.
    """
    rows: list[SystemRow] = []
    splitter, n = "", 0
    device = str(experiment.lm.model.device)
    dtype = str(experiment.lm.model.dtype).removeprefix("torch.")
    for variant in dict.fromkeys(AblationRow(row.section, row.name) for row in table.rows):
        lm = trained_model(variant, base, runs, device, dtype)
        trained = replace(experiment, lm=lm)
        system = TextSystem(variant.folder, {"mode": "atomic"})
        jobs = [GenerationJob(system, decoding) for decoding in table.decodings]
        measured = trained.on(test_set).measure(jobs)
        splitter, n = measured[0].quality.splitter, len(measured[0].texts)
        name = f"{variant.name}, univerb"
        rows += [
            SystemRow(name, cells(each), variant.name, variant.section, job.decoding)
            for job, each in zip(jobs, measured, strict=True)
        ]
    run, steps = experiment.on(test_set), base.run.steps
    training = f"{steps} steps, {base.regime}"
    setup = run.setup(n, training=training, encoder="one for each row", splitter=splitter)
    about = (
        f"Each row was trained for {steps} steps of {base.run.batch * base.run.accumulate} passages"
        f" of at most {base.data.block} tokens ({base.regime}, {base.encoder.heads} heads); the "
        "paper trains 400,000 steps. Phrases are generated in `atomic` mode, as there."
    )
    return TableResult(setup, tuple(rows), EXTRA, (about, *NOTES), run.facts)


def trained_model(
    variant: AblationRow, base: TrainingConfig, runs: Path, device: str, dtype: str
) -> DynamicLM:
    """Train the model of a row, or continue with its snapshots, or load it if it is done."""
    settings = variant.settings(base)
    processes = Processes.single(device)
    task = make_task(settings, processes)
    result = train(task, settings, runs / variant.folder, processes)
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    return DynamicLM.from_pretrained(
        str(result.export), adapter=base.regime == "lora", device=device, dtype=dtype
    )
