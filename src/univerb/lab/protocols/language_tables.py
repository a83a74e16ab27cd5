"""The tables of language modelling: WikiText-103, law, real time, compression, another backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from univerb.lab.metrics.compression import Units, compression, retokenised
from univerb.lab.protocols.experiment import Experiment, SystemMeasurements
from univerb.lab.protocols.generation_runner import GREEDY, GenerationJob, TextSystem
from univerb.lab.protocols.result_cache import weights_hash
from univerb.lab.tables.paper import Column, PaperTable
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.hf_inputs import short_name

BARE = TextSystem("bare LM", has_phrases=False)
WITHOUT = TextSystem("LM trained with phrases, without them", has_phrases=False)
TRANSFORMER = TextSystem("fine-tuned Transformer", has_phrases=False)
ATOMIC = TextSystem("univerb (atomic)", {"mode": "atomic"})
SEGMENTED = TextSystem("univerb (atomic, prefix too)", {"mode": "atomic", "segment": True})
OURS = "Ours"
_REAL_TIME = (
    TextSystem("Ours(70)", start=0.7),
    TextSystem("Ours(70) + real-time", start=0.7, grows=True),
    TextSystem("Ours(100)"),
)

EXTRA = (
    Column("MAUVE matched", better="higher", variant_of="MAUVE"),
    Column("PPL per sample", better="lower", variant_of="PPL"),
    Column("Units", better="lower", decimals=1),
    Column("Passes", better="lower", decimals=1),
    Column("Phrases", "Phrases offered", decimals=0),
    Column("Phrase share", "Tokens in phrases (%)", decimals=1),
    Column("Hit rate", "Units that are phrases (%)", decimals=1),
    Column("Latency uncached", "Latency without cache (s)", "lower", variant_of="Latency"),
    Column("Prepare", "Prepare (s)", "lower"),
    Column("Total", "Prepare and decode (s)", "lower"),
)
COMPRESSION_EXTRA = (
    Column("Bytes pooled", "All bytes / all units", "higher", variant_of="UTF-8 Bytes"),
    *(column for column in EXTRA if column.name in ("Phrase share", "Hit rate")),
)
NOTES = (
    "MAUVE is a mean over 5 seeds of the clusters ± their standard deviation; its texts are joined "
    "as CoG's script does. `MAUVE matched` cuts both sides to the same length.",
    "Rep-n and Diversity: prefix and text, cut to the reference's length.",
    "Latency: median seconds for 128 base tokens from the prefix on, one text at a time, systems "
    "in turns, with a cache and in single precision; retrieval and vectors are `Prepare`.",
    "Texts have the length of the budget, or run over it by the end of their last phrase: the end "
    "token counts as any other.",
)
_BARE_MISSING = "There is no row of the LM before its training: name that LM with --bare."


def default_system(lm: DynamicLM) -> TextSystem:
    """Return the system that decodes as a model's profile says, named after its mode."""
    mode = lm.profile.mode
    return ATOMIC if mode == ATOMIC.options["mode"] else TextSystem(f"univerb ({mode})")


def phrase_systems(lm: DynamicLM) -> list[TextSystem]:
    """Return the system of a model's profile, and the paper's mode if that is another."""
    default = default_system(lm)
    return [default] if default is ATOMIC else [default, ATOMIC]


def plain_systems(experiment: Experiment) -> list[TextSystem]:
    """Return the systems without phrases; ratios are to the first.

    These are an LM that was fine-tuned apart, the LM before its training, and the model at hand.
    """
    # Of an LM that was not trained, the LM before its training is the model at hand.
    bare = experiment.bare if experiment.is_tuned else None
    others = ((TRANSFORMER, experiment.transformer), (BARE, bare))
    systems = [replace(each, lm=weights_hash(lm.model)) for each, lm in others if lm]
    return [*systems, WITHOUT if experiment.is_tuned else BARE]


def table_systems(
    experiment: Experiment, table: PaperTable, *, segment: bool = False
) -> list[tuple[TextSystem, str]]:
    """Return the systems of a table, each with the name of its row in the paper, if it has one."""
    if table.name == "real-time":
        return [(system, system.name) for system in _REAL_TIME]
    first, *more = plain_systems(experiment)
    ours = [*phrase_systems(experiment.lm), *([SEGMENTED] if segment else [])]
    return [(first, table.baseline), *((s, "") for s in more), *((s, OURS) for s in ours)]


def language_table(
    experiment: Experiment, table: PaperTable, test_set: str, *, segment: bool = False
) -> TableResult:
    """Measure the systems of a table on one of `TEST_SETS`.

    With `segment`, one more system reads the prefix with its phrases as single vectors.
    """
    run = experiment.on(test_set)
    systems = table_systems(experiment, table, segment=segment)
    jobs = [
        GenerationJob(system, decoding) for decoding in table.decodings for system, _ in systems
    ]
    measured = run.measure(jobs)
    n = len(measured[0].texts)
    setup = run.setup(n, splitter=measured[0].quality.splitter)
    paper_rows = {system.name: name for system, name in systems}
    rows = tuple(
        SystemRow(
            name=job.system.name,
            cells=cells(each),
            paper_row=paper_rows[job.system.name],
            decoding=job.decoding,
            setup=_row_setup(experiment, job.system, replace(setup, n=len(each.texts)), setup),
        )
        for job, each in zip(jobs, measured, strict=True)
    )
    is_missing = experiment.is_tuned and experiment.bare is None
    notes = (*NOTES, _BARE_MISSING) if is_missing else NOTES
    return TableResult(setup, rows, EXTRA, notes, run.facts)


def _row_setup(
    experiment: Experiment, system: TextSystem, setup: Setup, common: Setup
) -> Setup | None:
    """Return the settings of a row: another LM may have generated it; None if all are common."""
    training = experiment.training
    if system.name == WITHOUT.name:
        setup = replace(setup, training=f"{training}, together with phrases")
    if system.lm:
        lm = experiment.others[system.lm]
        was_tuned = system.name == TRANSFORMER.name
        setup = replace(
            setup,
            model=short_name(lm.model.name_or_path),
            training=training if was_tuned else "none",
        )
    return None if setup == common else setup


def compression_table(experiment: Experiment, test_sets: Mapping[str, str]) -> TableResult:
    """Count the units of texts, and the tokens that the LM's tokenizer makes of the same texts.

    The table has a section for each of the named test sets.
    """
    rows: list[SystemRow] = []
    facts: dict[str, str] = {}
    encode = experiment.lm.tokenizer.encode
    for section, test_set in test_sets.items():
        run = experiment.on(test_set)
        facts |= run.facts
        systems = phrase_systems(experiment.lm)
        generated = run.generate([GenerationJob(system, GREEDY) for system in systems])
        setup = run.setup(len(generated[0]))
        for system, texts in zip(systems, generated, strict=True):
            plain = [retokenised(text.text, len(encode(text.text).ids)) for text in texts]
            name = f"the LM's tokenizer, on the texts of {system.name}"
            rows.append(SystemRow(name, _compressed(plain), "Transformer", section, setup=setup))
            ours = _compressed([text.as_units() for text in texts])
            rows.append(SystemRow(system.name, ours, OURS, section, setup=setup))
    assert rows[0].setup is not None
    return TableResult(rows[0].setup, tuple(rows), COMPRESSION_EXTRA, (), facts)


def _compressed(texts: Sequence[Units]) -> dict[str, TableCell]:
    measured = compression(texts)
    return {
        "NSL": TableCell(measured.units),
        "UTF-8 Bytes": TableCell(measured.bytes_per_unit),
        "Bytes pooled": TableCell(measured.bytes_per_unit_pooled),
        "Phrase share": TableCell(100 * measured.phrase_share),
        "Hit rate": TableCell(100 * measured.hit_rate),
    }


def cells(measured: SystemMeasurements) -> dict[str, TableCell]:
    """Return the cells of a system's row by column, without what could not be measured."""
    quality, texts = measured.quality, measured.texts
    units, repetition = quality.compression, quality.repetition
    row: dict[str, TableCell] = {}
    for name, score in (("MAUVE", quality.mauve_cog), ("MAUVE matched", quality.mauve_matched)):
        if score:
            row[name] = TableCell(100 * score.mean, 100 * score.spread, score.texts)
    values = {f"Rep-{n}": value for n, value in repetition.rep.items()} | {
        "Diversity": 100 * repetition.diversity,
        "PPL": quality.ppl,
        "PPL per sample": quality.ppl_per_sample,
        "Units": units.units,
        "Passes": sum(text.steps for text in texts) / len(texts),
        "Phrases": sum(text.phrases for text in texts) / len(texts),
        "Phrase share": 100 * units.phrase_share,
        "Hit rate": 100 * units.hit_rate,
    }
    return row | {name: TableCell(v) for name, v in values.items()} | _latency_cells(measured)


def _latency_cells(measured: SystemMeasurements) -> dict[str, TableCell]:
    latency = measured.latency
    if latency is None:
        return {}
    n = latency.texts
    row = {"Latency": TableCell(latency.decode, n=n)}
    if any(text.phrases for text in measured.texts):
        row["Prepare"] = TableCell(latency.prepare, n=n)
        row["Total"] = TableCell(latency.total, n=n)
    if latency.decode_uncached:
        row["Latency uncached"] = TableCell(latency.decode_uncached, n=latency.uncached)
    return row
