"""The tables of preference: what people and a language model think of two systems' texts.

Neither is part of this program. The first run writes what is to be judged below the results'
folder; once the verdicts lie beside it, the next run puts them into the table.
"""

from collections.abc import Iterable
from pathlib import Path

from univerb.errors import OptionError
from univerb.lab.judging.human_sheet import SheetKey, human_preference, read_sheet, write_sheet
from univerb.lab.judging.judge import (
    judge_prompts,
    preference,
    read_replies,
    sample_pairs,
    write_prompts,
)
from univerb.lab.judging.system_texts import ContinuationPair
from univerb.lab.protocols.experiment import Experiment
from univerb.lab.protocols.generation_runner import GREEDY, GenerationJob, TextSystem
from univerb.lab.protocols.language_tables import default_system, plain_systems
from univerb.lab.protocols.passages import COG, LAWMT
from univerb.lab.tables.table_results import SystemRow, TableCell, TableResult

CASES = 100
_SECTIONS = {"WikiText103": COG, "LawMT": LAWMT}
_OVERALL, _ASPECT = "Overall Evaluation", "Comparison in * aspect"


def human_table(experiment: Experiment, folder: Path) -> TableResult:
    """Write a blind sheet to a folder, or combine the filled ones, `filled-*.csv` beside it."""
    sheet, key_file = folder / "sheet.csv", folder / "key.json"
    pairs = _pairs(experiment, COG)
    if not key_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # A run that was killed left a part of it, which nobody can have filled in.
        sheet.unlink(missing_ok=True)
        seed = experiment.task.seed
        ours, theirs = (system.name for system in _systems(experiment))
        write_sheet(pairs, sheet, key_file, ours, theirs, seed)
    filled, key = sorted(folder.glob("filled-*.csv")), SheetKey.read(key_file)
    if not key.is_of(pairs):
        raise OptionError(
            f"{sheet.name} in {str(folder)!r} is of other texts than those of this run. Run it as "
            "it was when the sheet was written, or move that folder away."
        )
    run = experiment.on(COG)
    setup = run.setup(len(key.sides), judge="human" if filled else "")
    if not filled:
        waiting = (
            f"Nobody has judged yet. Give {sheet.name} to annotators, put what they fill in beside "
            "it as filled-NAME.csv, and run this again."
        )
        return TableResult(setup, (), notes=(waiting,), facts=run.facts)
    judged = human_preference([read_sheet(path, key) for path in filled])
    rows = tuple(
        SystemRow(
            f"{_name(experiment)}, {criterion.criterion}",
            _cells(criterion.majority.rates),
            "Transformer" if criterion.criterion == "overall" else criterion.criterion.capitalize(),
            _OVERALL if criterion.criterion == "overall" else _ASPECT,
        )
        for criterion in judged
    )
    agreement = [f"{each.criterion}: {each.agreement}" for each in judged if each.agreement]
    notes = (f"{len(filled)} annotators; rates are over what most of them say.", *agreement)
    return TableResult(setup, rows, notes=notes, facts=run.facts)


def judge_table(experiment: Experiment, folder: Path, judge: str = "") -> TableResult:
    """Write prompts for a judge to a folder, or combine its replies.

    There is a row for each section with replies, `SECTION.replies.jsonl` beside the prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[SystemRow] = []
    notes: list[str] = []
    for section, test_set in _SECTIONS.items():
        pairs = _pairs(experiment, test_set)
        prompts = folder / f"{section}.prompts.jsonl"
        write_prompts(prompts, judge_prompts(pairs))
        replies = folder / f"{section}.replies.jsonl"
        if not replies.exists():
            notes.append(
                f"{section} has no verdicts yet. Have {prompts.name} judged (`univerb lab judge`, "
                f"or any other way), put the replies beside it as {replies.name}, and run this "
                "again."
            )
            continue
        verdict = preference(pairs, read_replies(replies))
        judged_by = judge or "as in the replies' file"
        setup = experiment.on(test_set).setup(len(pairs), judge=judged_by)
        cells = _cells(verdict.rate_avg.rates)
        rows.append(SystemRow(_name(experiment), cells, "Transformer", section, setup=setup))
        notes.append(
            f"{section}: rates are means over both orders; {100 * verdict.position_bias:.0f} % of "
            f"the pairs were decided by their position, {verdict.unclear} had no clear verdict."
        )
    run = experiment.on(COG)
    setup = run.setup(len(_pairs(experiment, COG)))
    return TableResult(setup, tuple(rows), notes=tuple(notes), facts=run.facts)


def _cells(rates: Iterable[float]) -> dict[str, TableCell]:
    names = ("Better", "No Prefer", "Worse")
    return {name: TableCell(rate) for name, rate in zip(names, rates, strict=True)}


def _pairs(experiment: Experiment, test_set: str) -> list[ContinuationPair]:
    """Sample cases: greedy texts of the system and of the LM without phrases."""
    run = experiment.on(test_set)
    jobs = [GenerationJob(system, GREEDY) for system in _systems(experiment)]
    prefixes = [experiment.lm.tokenizer.decode(each.prefix) for each in run.passages(GREEDY)]
    texts = zip(prefixes, *run.generate(jobs), strict=True)
    pairs = [ContinuationPair(prefix, ours.text, theirs.text) for prefix, ours, theirs in texts]
    return sample_pairs(pairs, CASES, experiment.task.seed)


def _systems(experiment: Experiment) -> list[TextSystem]:
    """Return the system that is judged, and the LM without phrases that it is judged against."""
    return [default_system(experiment.lm), plain_systems(experiment)[0]]


def _name(experiment: Experiment) -> str:
    ours, theirs = _systems(experiment)
    return f"{ours.name} to {theirs.name}"
