"""The tables of language modelling: WikiText-103, law, real time, compression, another backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from univerb.lab.metrics.compression import Units, compression, retokenised
from univerb.lab.protocols.continuations import GREEDY, Job, Share, Writer
from univerb.lab.protocols.experiment import Figures, Lab
from univerb.lab.tables.goals import all_goals, has_goals
from univerb.lab.tables.measured import Measured, Run, RunRow
from univerb.lab.tables.paper import Column, PaperTable

TRANSFORMER = Writer("transformer", has_phrases=False)
DEFAULT = Writer("univerb (default)")
ATOMIC = Writer("univerb (atomic)", {"mode": "atomic"})
OURS = "Ours"

EXTRA = (
    Column("MAUVE matched", better="higher", beside="MAUVE"),
    Column("Diversity alone", better="higher", beside="Diversity"),
    Column("PPL per sample", better="lower", beside="PPL"),
    Column("Units", better="lower", decimals=1),
    Column("Passes", better="lower", decimals=1),
    Column("Bytes per unit", better="higher"),
    Column("Phrase share", "Tokens in phrases (%)", decimals=1),
    Column("Hit rate", "Units that are phrases (%)", decimals=1),
    Column("Phrase length", "Tokens per phrase"),
    Column("Latency single", "Latency in single precision (s)", "lower", beside="Latency"),
    Column("Latency uncached", "Latency without cache (s)", "lower", beside="Latency"),
    Column("Prepare", "Prepare (s)", "lower"),
    Column("Total", "Prepare and decode (s)", "lower"),
)
COMPRESSED = (
    Column("Bytes pooled", "All bytes / all units", "higher", beside="UTF-8 Bytes"),
    *(column for column in EXTRA if column.name in ("Phrase share", "Hit rate")),
)
# Seconds of preparation where there is nothing to prepare.
_NOTHING = 1e-3
NOTES = (
    "MAUVE is a mean over 5 seeds of the clusters ± their standard deviation; its texts are put "
    "together as CoG's script does. `MAUVE matched` cuts both sides to the same length.",
    "Rep-n and Diversity: prefix and text, cut to the reference's length. `Diversity alone`: the "
    "text alone, all of it.",
    "Latency: median seconds for 128 base tokens from the prefix on, one text at a time, systems "
    "in turns, with a cache; what retrieval and vectors take is `Prepare`. With phrases the "
    "shipped profile may read weights in half precision (`weights`), without them never: "
    "`Latency in single precision` has the same weights on both sides.",
    "Texts go on to the budget: the end token counts as any other.",
)


class Member(NamedTuple):
    """A system of a table, and the paper's row that it stands for."""

    writer: Writer
    stands_for: str


def members(table: PaperTable) -> list[Member]:
    """Return the systems of a table."""
    if table.name == "real-time":
        return [
            Member(Writer(OURS + "(70)", share=Share(0.7)), "Ours(70)"),
            Member(
                Writer(OURS + "(70) + real-time", share=Share(0.7, True)), "Ours(70) + real-time"
            ),
            Member(Writer(OURS + "(100)"), "Ours(100)"),
        ]
    ours = [Member(DEFAULT, OURS), Member(ATOMIC, OURS)]
    return [Member(TRANSFORMER, table.baseline), *ours]


def language_run(lab: Lab, table: PaperTable, test_set: str) -> Run:
    """Measure the systems of a table on a test set.

    Args:
        lab: The model, and how it is measured.
        table: Of the paper.
        test_set: One of `TEST_SETS`.

    Returns:
        The run.
    """
    bench = lab.bench(test_set)
    jobs = [
        (member, Job(member.writer, decoding))
        for decoding in table.decodings
        for member in members(table)
    ]
    figures = bench.measure([job for _, job in jobs])
    n = len(figures[0].texts)
    setup = bench.setup(n, splitter=figures[0].quality.splitter)
    rows = tuple(
        RunRow(
            name=member.writer.name,
            cells=cells(own),
            stands_for=member.stands_for,
            decoding=job.decoding,
            setup=None if len(own.texts) == n else replace(setup, n=len(own.texts)),
        )
        for (member, job), own in zip(jobs, figures, strict=True)
    )
    places = [(row.name, row.decoding) for row in rows]
    by_place = dict(zip(places, figures, strict=True))
    goals = all_goals(by_place, TRANSFORMER.name, are_set=has_goals(table.name, test_set))
    return Run(setup, rows, EXTRA, NOTES, bench.facts, goals)


def compression_run(lab: Lab, table: PaperTable, test_sets: Mapping[str, str]) -> Run:
    """Count the units of texts, and those that the LM's tokenizer makes of the same texts.

    Args:
        lab: The model, and how it is measured.
        table: Of the paper.
        test_sets: The test set of each section.

    Returns:
        The run.
    """
    rows: list[RunRow] = []
    facts: dict[str, str] = {}
    for section, test_set in test_sets.items():
        bench = lab.bench(test_set)
        facts |= bench.facts
        writers = (DEFAULT, ATOMIC)
        written = bench.write([Job(writer, GREEDY) for writer in writers])
        setup = bench.setup(len(written[0]))
        for writer, texts in zip(writers, written, strict=True):
            encode = lab.lm.tokenizer.encode
            plain = [retokenised(own.text, len(encode(own.text).ids)) for own in texts]
            both = {
                f"{TRANSFORMER.name}, on the texts of {writer.name}": (plain, "Transformer"),
                writer.name: ([own.as_units() for own in texts], OURS),
            }
            rows += [
                RunRow(name, _compressed(own), stands_for, section, setup=setup)
                for name, (own, stands_for) in both.items()
            ]
    assert rows[0].setup is not None
    return Run(rows[0].setup, tuple(rows), COMPRESSED, (), facts)


def _compressed(texts: Sequence[Units]) -> dict[str, Measured]:
    own = compression(texts)
    return {
        "NSL": Measured(own.units),
        "UTF-8 Bytes": Measured(own.bytes_per_unit),
        "Bytes pooled": Measured(own.bytes_per_unit_pooled),
        "Phrase share": Measured(100 * own.phrase_share),
        "Hit rate": Measured(100 * own.hit_rate),
    }


def cells(figures: Figures) -> dict[str, Measured]:
    """Return the cells of a system's row.

    Args:
        figures: What was measured.

    Returns:
        By column; what could not be measured is not there.
    """
    own, units = figures.quality, figures.quality.compression
    found: dict[str, Measured] = {}
    for name, score in (("MAUVE", own.mauve_cog), ("MAUVE matched", own.mauve_matched)):
        if score:
            found[name] = Measured(100 * score.mean, 100 * score.spread, score.texts)
    found |= {f"Rep-{n}": Measured(value) for n, value in own.repetition.rep.items()}
    lengths = units.phrase_lengths
    texts = figures.texts
    values: Mapping[str, float | None] = {
        "Diversity": 100 * own.repetition.diversity,
        "PPL": own.ppl,
        "Diversity alone": 100 * own.whole.diversity,
        "PPL per sample": own.ppl_per_sample,
        "Units": units.units,
        "Passes": sum(text.steps for text in texts) / len(texts),
        "Bytes per unit": units.bytes_per_unit,
        "Phrase share": 100 * units.phrase_share,
        "Hit rate": 100 * units.hit_rate,
        "Phrase length": _mean_length(lengths) if lengths else None,
    }
    found |= {name: Measured(value) for name, value in values.items() if value is not None}
    return found | _pace(figures)


def _mean_length(lengths: Mapping[int, int]) -> float:
    return sum(size * count for size, count in lengths.items()) / sum(lengths.values())


def _pace(figures: Figures) -> dict[str, Measured]:
    pace = figures.latency
    if pace is None:
        return {}
    found = {"Latency": Measured(pace.decode.median, n=pace.texts)}
    if figures.single:
        found["Latency single"] = Measured(figures.single.decode.median, n=pace.texts)
    if pace.prepare.median > _NOTHING:
        found["Prepare"] = Measured(pace.prepare.median, n=pace.texts)
        found["Total"] = Measured(pace.total.median, n=pace.texts)
    if pace.decode_uncached:
        found["Latency uncached"] = Measured(pace.decode_uncached.median, n=pace.uncached)
    return found
