"""The tables of preference: what people and a language model think of two systems' texts.

Neither sits in this machine. The first run writes what is to be judged below the results' folder;
once the verdicts lie beside it, the next run puts them into the table.
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
from univerb.lab.protocols.continuations import GREEDY, Job
from univerb.lab.protocols.experiment import Lab
from univerb.lab.protocols.language import DEFAULT, TRANSFORMER
from univerb.lab.protocols.passages import LAWMT, WIKITEXT
from univerb.lab.tables.measured import Measured, Run, RunRow
from univerb.lab.tables.paper import PaperTable

CASES = 100
_SECTIONS = {"WikiText103": WIKITEXT, "LawMT": LAWMT}
_OVERALL, _ASPECT = "Overall Evaluation", "Comparison in * aspect"


def human_run(lab: Lab, table: PaperTable, folder: Path) -> Run:
    """Write a blind sheet, or put filled ones together.

    Args:
        lab: The model, and how it is measured.
        table: Of the paper.
        folder: Where the sheet lies; filled ones are `filled-*.csv` beside it.

    Returns:
        The run, without rows as long as nobody judged.
    """
    sheet, key = folder / "sheet.csv", folder / "key.json"
    pairs = _pairs(lab, WIKITEXT)
    if not key.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # A run that was killed left a part of it, which nobody can have filled in.
        sheet.unlink(missing_ok=True)
        write_sheet(pairs, sheet, key, DEFAULT.name, TRANSFORMER.name, lab.task.seed)
    filled = sorted(folder.glob("filled-*.csv"))
    own = SheetKey.read(key)
    if not own.is_of(pairs):
        raise OptionError(
            f"{sheet.name} in {str(folder)!r} is of other texts than those of this run. Run it as "
            "it was when the sheet was written, or move that folder away."
        )
    setup = lab.bench(WIKITEXT).setup(len(own.sides), judge="human" if filled else "")
    if not filled:
        waiting = (
            f"Nobody has judged yet. Give {sheet.name} to annotators, put what they fill in beside "
            "it as filled-NAME.csv, and run this again.",
        )
        return Run(setup, (), notes=waiting, facts=lab.bench(WIKITEXT).facts)
    judged = human_preference(own, [read_sheet(path, own) for path in filled])
    rows = tuple(
        RunRow(
            f"{DEFAULT.name} to {TRANSFORMER.name}, {one.criterion}",
            _cells(one.majority.rates),
            "Transformer" if one.criterion == "overall" else one.criterion.capitalize(),
            _OVERALL if one.criterion == "overall" else _ASPECT,
        )
        for one in judged
    )
    agreed = [f"{one.criterion}: {one.agreement}" for one in judged if one.agreement]
    notes = (f"{len(filled)} annotators; rates are over what most of them say.", *agreed)
    return Run(setup, rows, notes=notes, facts=lab.bench(WIKITEXT).facts)


def judge_run(lab: Lab, table: PaperTable, folder: Path, judge: str = "") -> Run:
    """Write prompts for a judge, or put its replies together.

    Args:
        lab: The model, and how it is measured.
        table: Of the paper.
        folder: Where prompts lie; replies are `SECTION.replies.jsonl` beside them.
        judge: Who gave the replies.

    Returns:
        The run, with a row for each section that has replies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[RunRow] = []
    notes: list[str] = []
    for section, test_set in _SECTIONS.items():
        pairs = _pairs(lab, test_set)
        prompts = folder / f"{section}.prompts.jsonl"
        write_prompts(prompts, judge_prompts(pairs))
        replies = folder / f"{section}.replies.jsonl"
        if not replies.exists():
            notes.append(
                f"{section} has no verdicts yet. Have {prompts.name} judged (`univerb lab judge`, "
                f"or any other way), put the replies there as {replies.name}, and run this again."
            )
            continue
        found = preference(pairs, read_replies(replies))
        setup = lab.bench(test_set).setup(len(pairs), judge=judge or "as in the replies' file")
        name = f"{DEFAULT.name} to {TRANSFORMER.name}"
        rows.append(RunRow(name, _cells(found.rate_avg.rates), "Transformer", section, setup=setup))
        notes.append(
            f"{section}: rates are means over both orders; {100 * found.position_bias:.0f} % of "
            f"the pairs were decided by their place, {found.unclear} had no clear verdict."
        )
    setup = lab.bench(WIKITEXT).setup(len(_pairs(lab, WIKITEXT)))
    return Run(setup, tuple(rows), notes=tuple(notes), facts=lab.bench(WIKITEXT).facts)


def _cells(rates: Iterable[float]) -> dict[str, Measured]:
    names = ("Better", "No Prefer", "Worse")
    return {name: Measured(rate) for name, rate in zip(names, rates, strict=True)}


def _pairs(lab: Lab, test_set: str) -> list[ContinuationPair]:
    """Draw cases: what the system and the LM without phrases wrote, greedily."""
    bench = lab.bench(test_set)
    ours, theirs = bench.write([Job(DEFAULT, GREEDY), Job(TRANSFORMER, GREEDY)])
    prefixes = [lab.lm.tokenizer.decode(own.prefix) for own in bench.passages(GREEDY)]
    texts = zip(prefixes, ours, theirs, strict=True)
    pairs = [ContinuationPair(prefix, own.text, other.text) for prefix, own, other in texts]
    return sample_pairs(pairs, CASES, lab.task.seed)
