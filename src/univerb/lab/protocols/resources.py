"""The table of FLOPs and memory over the number of phrases (METHOD C.6, C.7)."""

from univerb.lab.metrics.cost import (
    GIB,
    GPT2,
    VALUE,
    Shape,
    extra_compute_share,
    extra_memory_share,
    generation_flops,
    paper_memory,
)
from univerb.lab.protocols.continuations import GREEDY, Job, Writer
from univerb.lab.protocols.cost import counted_flops, module_bytes, shape_of
from univerb.lab.protocols.experiment import Lab
from univerb.lab.protocols.passages import PREFIX, WIKITEXT
from univerb.lab.tables.measured import Measured, Run, RunRow, Setup
from univerb.lab.tables.paper import Column, PaperTable

CHUNKS = 512
"""So many have enough n-grams for most numbers of phrases."""
PASSAGES = 16
TINYLLAMA = Shape(32_000, 2048, 22, parameters=1_100_048_384)
_TERA = 1e12
_SECTION = "TinyLlama with the GPT-2 encoder"
EXTRA = (
    Column("FLOPS cached", "FLOPS with a cache (T)", "lower", decimals=4, beside="FLOPS"),
    Column("FLOPS counted", "FLOPS of a pass over 128 positions, counted (T)", decimals=4),
    Column("Phrases", "Phrases that there were", decimals=0),
    Column("Kept", "What univerb keeps (GB)", "lower", decimals=4, beside="Memory"),
)
NOTES = (
    "Rows of GPT-2 are the paper's formulas at GPT-2's shapes, with the paper's own number of "
    "units. FLOPS: sum over steps of 2n(V+p)d + L(24nd^2 + 4n^2 d), without a cache. Memory: LM, "
    "encoder and 2 (V + p) d 4 bytes, in GiB.",
    "The other rows are the model at hand: units as it wrote them with so many phrases of the "
    f"{CHUNKS} chunks that a prefix retrieves, those first that save the most tokens.",
    "`Counted` is torch's counter on the LM's modules, without phrases: each of them adds 2nd to "
    "it. `Kept` is what univerb has in memory: V is not copied, and phrases have two rows.",
)


def resources_run(lab: Lab, table: PaperTable) -> Run:
    """Compute the formulas at GPT-2's shapes, and measure the model at hand.

    Args:
        lab: The model, and how it is measured.
        table: Of the paper.

    Returns:
        The run.
    """
    bench = lab.bench(WIKITEXT)
    setup = bench.setup(len(bench.passages(GREEDY)[:PASSAGES]), documents=CHUNKS)
    numbers = [row for row in table.rows if not row.section]
    rows = [_gpt2_row(int(row.name), int(row.values["Avg Tokens"]), setup) for row in numbers]
    rows += measured_rows(lab, [int(row.name) for row in numbers], setup)
    rows.append(_shares_row(setup))
    return Run(setup, tuple(rows), EXTRA, NOTES, bench.facts)


def _gpt2_row(phrases: int, units: int, setup: Setup) -> RunRow:
    cells = {
        "FLOPS": _flops(GPT2, units, phrases, cached=False),
        "FLOPS cached": _flops(GPT2, units, phrases, cached=True),
        "Memory": Measured(paper_memory(GPT2, GPT2, phrases)),
    }
    by_formula = Setup(
        model="gpt2", data="none", n=0, seed=0, threads=setup.threads, timed="nothing"
    )
    return RunRow(f"{phrases}, GPT-2 by formula", cells, str(phrases), setup=by_formula)


def measured_rows(lab: Lab, numbers: list[int], setup: Setup) -> list[RunRow]:
    """Write with different numbers of phrases, and say what that costs.

    Args:
        lab: The model.
        numbers: Of phrases.
        setup: Of the run.

    Returns:
        A row for each number.
    """
    bench, shape = lab.bench(WIKITEXT), shape_of(lab.lm)
    writers = [_writer(number) for number in numbers]
    written = bench.write([Job(own, GREEDY) for own in writers], PASSAGES)
    own_size = module_bytes(lab.lm.model) + module_bytes(lab.lm.encoder)
    rows = []
    for number, texts in zip(numbers, written, strict=True):
        units = sum(text.units for text in texts) / len(texts)
        there = round(sum(text.phrases for text in texts) / len(texts))
        cells = {
            "Avg Tokens": Measured(units),
            "FLOPS": _flops(shape, round(units), there, cached=False),
            "FLOPS cached": _flops(shape, round(units), there, cached=True),
            "Phrases": Measured(there),
            "Kept": Measured((own_size + 2 * there * shape.width * VALUE) / GIB),
        }
        if not number:
            cells["FLOPS counted"] = Measured(counted_flops(lab.lm, 128) / _TERA)
        rows.append(RunRow(f"{number}, {setup.model}", cells, str(number)))
    return rows


def _writer(phrases: int) -> Writer:
    if not phrases:
        return Writer("0", has_phrases=False)
    return Writer(str(phrases), {"mode": "atomic"}, k=CHUNKS, max_phrases=phrases)


def _shares_row(setup: Setup) -> RunRow:
    by_formula = Setup(
        model="tinyllama", data="none", n=0, seed=0, threads=setup.threads, timed="nothing"
    )
    cells = {
        "Extra memory": Measured(100 * extra_memory_share(TINYLLAMA, GPT2, 32_000)),
        "Extra compute": Measured(100 * extra_compute_share(TINYLLAMA, 128, 32_000)),
    }
    return RunRow("32000, by formula", cells, "32000", _SECTION, setup=by_formula)


def _flops(shape: Shape, units: int, phrases: int, *, cached: bool) -> Measured:
    return Measured(generation_flops(shape, PREFIX, units, phrases, cached=cached) / _TERA)
