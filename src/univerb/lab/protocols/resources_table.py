"""The table of FLOPs and memory over the number of phrases.

The formulas are those of docs/method.md, Metrics: FLOPs and memory.
"""

from collections.abc import Sequence
from functools import partial

from torch import nn

from univerb.lab.metrics.cost import (
    GIB,
    GPT2,
    VALUE,
    Shape,
    coordinate_flops,
    extra_compute_share,
    extra_memory_share,
    generation_flops,
    paper_memory,
)
from univerb.lab.protocols.experiment import Experiment
from univerb.lab.protocols.generation_runner import GREEDY, GenerationJob, TextSystem
from univerb.lab.protocols.passages import COG, PREFIX
from univerb.lab.tables.paper import Column, PaperTable
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult
from univerb.modeling.dynamic import DynamicLM

CHUNKS = 512
"""Enough chunks for most numbers of phrases."""
PASSAGES = 16
TINYLLAMA = Shape(32_000, 2048, 22, parameters=1_100_048_384)
_TERA = 1e12
_SECTION = "TinyLlama with the GPT-2 encoder"
EXTRA = (
    Column("FLOPS cached", "FLOPS with a cache (T)", "lower", decimals=4, variant_of="FLOPS"),
    Column("Phrases", "Phrases in the vocabulary", decimals=0),
    Column("Memory here", "Memory of univerb (GB)", "lower", decimals=4, variant_of="Memory"),
)
NOTES = (
    "Rows of GPT-2 are the paper's formulas at GPT-2's shapes, with the paper's number of units. "
    "FLOPS: sum over steps of 2n(V+p)d + L(24nd^2 + 4n^2 d), without a cache. Memory: LM, encoder "
    "and 2 (V + p) d 4 bytes, in GiB.",
    "The other rows are the model at hand: units as it generated them with that number of phrases "
    f"of the {CHUNKS} chunks that a prefix retrieves, those first that save the most tokens.",
    "`Memory of univerb`: V is not copied, and phrases have two rows.",
)


def resources_table(experiment: Experiment, table: PaperTable) -> TableResult:
    """Compute the formulas at GPT-2's shapes, and measure the model at hand."""
    run = experiment.on(COG)
    setup = run.setup(len(run.passages(GREEDY)[:PASSAGES]), documents=CHUNKS)
    paper_rows = [row for row in table.rows if not row.section]
    rows = [_gpt2_row(int(row.name), int(row.values["Avg Tokens"]), setup) for row in paper_rows]
    rows += measured_rows(experiment, [int(row.name) for row in paper_rows], setup)
    rows.append(_tinyllama_row(setup))
    return TableResult(setup, tuple(rows), EXTRA, NOTES, run.facts)


def _gpt2_row(phrases: int, units: int, setup: Setup) -> SystemRow:
    memory = {"Memory": TableCell(paper_memory(GPT2, GPT2, phrases))}
    cells = _flops(GPT2, units, phrases) | memory
    formula = _formula_setup("gpt2", setup)
    return SystemRow(f"{phrases}, GPT-2 by formula", cells, str(phrases), setup=formula)


def measured_rows(experiment: Experiment, numbers: Sequence[int], setup: Setup) -> list[SystemRow]:
    """Generate with each number of phrases, and return a row for each."""
    lm, shape = experiment.lm, shape_of(experiment.lm)
    jobs = [GenerationJob(_system(number), GREEDY) for number in numbers]
    generated = experiment.on(COG).generate(jobs, PASSAGES)
    model_bytes = _bytes(lm.model) + _bytes(lm.encoder)
    rows = []
    for number, texts in zip(numbers, generated, strict=True):
        units = sum(text.units for text in texts) / len(texts)
        phrases = round(sum(text.phrases for text in texts) / len(texts))
        cells = {
            "Avg Tokens": TableCell(units),
            **_flops(shape, round(units), phrases),
            "Phrases": TableCell(phrases),
            "Memory here": TableCell((model_bytes + 2 * phrases * shape.width * VALUE) / GIB),
        }
        rows.append(SystemRow(f"{number}, {setup.model}", cells, str(number)))
    return rows


def shape_of(lm: DynamicLM) -> Shape:
    """Return what the formulas need to know of an LM, its phrase encoder apart."""
    parameters = sum(weight.numel() for weight in lm.model.parameters())
    is_conditional = lm.scoring.is_conditional
    return Shape(
        vocabulary=lm.static_size,
        width=lm.width,
        layers=int(lm.model.config.get_text_config().num_hidden_layers),
        parameters=parameters,
        buffers=_bytes(lm.model) - sum(weight.nbytes for weight in lm.model.parameters()),
        coordinates=coordinate_flops(lm.width) if is_conditional else 0,
    )


def _bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers, shared ones once."""
    tensors = (*module.parameters(), *module.buffers())
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _system(phrases: int) -> TextSystem:
    if not phrases:
        return TextSystem("0", has_phrases=False)
    return TextSystem(str(phrases), {"mode": "atomic"}, k=CHUNKS, max_phrases=phrases)


def _tinyllama_row(setup: Setup) -> SystemRow:
    cells = {
        "Extra memory": TableCell(100 * extra_memory_share(TINYLLAMA, GPT2, 32_000)),
        "Extra compute": TableCell(100 * extra_compute_share(TINYLLAMA, 128, 32_000)),
    }
    formula = _formula_setup("tinyllama", setup)
    return SystemRow("32000, by formula", cells, "32000", _SECTION, setup=formula)


def _formula_setup(model: str, setup: Setup) -> Setup:
    return Setup(model=model, data="none", n=0, seed=0, threads=setup.threads, timed="nothing")


def _flops(shape: Shape, units: int, phrases: int) -> dict[str, TableCell]:
    flops = partial(generation_flops, shape, PREFIX, units, phrases)
    columns = {"FLOPS": flops(cached=False), "FLOPS cached": flops(cached=True)}
    return {name: TableCell(value / _TERA) for name, value in columns.items()}
