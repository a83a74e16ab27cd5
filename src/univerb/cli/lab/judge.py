"""`univerb lab judge`: which of two systems writes better, as a model or people see it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, errors, print_json, show_warnings
from univerb.cli.lab.options import chosen_way, refuse_overwriting
from univerb.cli.options import AsJson
from univerb.cli.progress import progress_bars
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.lab.judging.system_texts import ContinuationPair

_model = partial(typer.Option, rich_help_panel="A model judges")
_people = partial(typer.Option, rich_help_panel="People judge")
_SAMPLE = {"ours", "theirs", "cases", "seed"}
_WAYS: dict[str, set[str] | None] = {
    "prompts": _SAMPLE,
    "replies": _SAMPLE | {"judge_model"},
    "endpoint": _SAMPLE | {"judge_model", "log", "workers"},
    "sheet": _SAMPLE | {"key"},
    "filled": {"ours", "theirs", "key"},
}
"""The ways to judge, each with the options that go with it."""


def judge(
    context: typer.Context,
    ours: Annotated[
        Path | None,
        typer.Argument(help="Texts of a system: lines of JSON with prompt (or prefix) and text."),
    ] = None,
    theirs: Annotated[Path | None, typer.Argument(help="Texts of another, same prompts.")] = None,
    cases: Annotated[int, typer.Option(min=1, help="Pairs to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the draw and of a sheet's sides.")] = 0,
    prompts: Annotated[Path | None, _model(help="Write what to ask, in both orders.")] = None,
    replies: Annotated[Path | None, _model(help="Read lines of JSON with id and reply.")] = None,
    endpoint: Annotated[
        str,
        _model(help="Ask a server, such as http://127.0.0.1:8000/v1; key in UNIVERB_JUDGE_KEY."),
    ] = "",
    judge_model: Annotated[str, _model(help="The judge's name.")] = "",
    log: Annotated[Path, _model(help="Keeps the replies; a run resumes.")] = Path("replies.jsonl"),
    workers: Annotated[int, _model(help="Concurrent requests.")] = 4,
    sheet: Annotated[Path | None, _people(help="Write a blind CSV sheet.")] = None,
    filled: Annotated[
        list[Path] | None, _people(help="Read a filled sheet. Repeatable, one per annotator.")
    ] = None,
    key: Annotated[Path, _people(help="Tells the sides apart.")] = Path("key.json"),
    as_json: AsJson = False,
) -> None:
    """Compare what two systems wrote, pair by pair, beside the paper's figures."""
    show_warnings()
    way = chosen_way(context, _WAYS)
    if filled:
        _show_ratings(filled, key, as_json)
        return
    if not ours or not theirs:
        raise OptionError(f"--{way} needs the texts of two systems. Give OURS and THEIRS.")
    from univerb.lab.judging.judge import judge_prompts, read_replies, sample_pairs, write_prompts
    from univerb.lab.judging.system_texts import read_pairs, system_names

    refuse_overwriting("--prompts", prompts, [ours, theirs])
    refuse_overwriting("--log", log, [ours, theirs])
    pairs = sample_pairs(read_pairs(ours, theirs), cases, seed)
    names = system_names([ours, theirs])
    if prompts:
        write_prompts(prompts, judge_prompts(pairs))
        errors.print(Text(f"{len(pairs)} pairs are in {prompts}. Give the answers as --replies."))
    elif sheet:
        from univerb.lab.judging.human_sheet import write_sheet

        write_sheet(pairs, sheet, key, names[0], names[1], seed)
        errors.print(Text(f"{len(pairs)} pairs are in {sheet}. Keep {key} from annotators."))
    else:
        answers = (
            read_replies(replies) if replies else _asked(endpoint, judge_model, log, workers, pairs)
        )
        _show_verdicts(pairs, answers, names, judge_model, as_json)


def _asked(
    url: str, model: str, log: Path, workers: int, pairs: "Sequence[ContinuationPair]"
) -> dict[str, str]:
    from univerb.lab.judging.judge import judge_prompts
    from univerb.lab.judging.judge_endpoint import Endpoint, ask_all, key_from_environment

    endpoint = Endpoint(url, model, key_from_environment())
    with progress_bars() as tell:
        return ask_all(endpoint, judge_prompts(pairs), log, workers, partial(tell, "verdicts"))


def _show_verdicts(
    pairs: "Sequence[ContinuationPair]",
    replies: dict[str, str],
    names: list[str],
    model: str,
    as_json: bool,
) -> None:
    from univerb.lab.judging.judge import preference
    from univerb.lab.metrics.bootstrap import LEVEL

    verdicts, paper, (ours, theirs) = preference(pairs, replies), _paper_rates("gpt4"), names
    if as_json:
        report = {"ours": ours, "theirs": theirs, "judge": model} | verdicts.to_dict()
        print_json(report | {"paper": paper})
        return
    _print_rates(
        f"{ours} against {theirs}: {len(pairs)} pairs, judged by {model or 'what replied'}",
        {
            "rate_avg, both orders": verdicts.rate_avg.rates,
            "item_avg, pair by pair": verdicts.item_avg.rates,
            f"{ours} first": verdicts.orders[0].rates,
            f"{theirs} first": verdicts.orders[1].rates,
            **paper,
        },
        f"Won minus lost, pair by pair: {verdicts.margin}, {LEVEL:.0%} bootstrap interval.",
        f"Position bias {verdicts.position_bias:.0%}: the same position won in both orders; "
        f"{verdicts.unclear} pairs without a clear verdict are left out.",
    )


def _show_ratings(filled: list[Path], key_file: Path, as_json: bool) -> None:
    from univerb.lab.judging.human_sheet import SheetKey, human_preference, read_sheet

    key, paper = SheetKey.read(key_file), _paper_rates("human")
    criteria = human_preference([read_sheet(path, key) for path in filled])
    if as_json:
        report = {"ours": key.ours, "theirs": key.theirs, "pairs": len(key.sides)}
        entries = [criterion.to_dict() for criterion in criteria]
        print_json(report | {"criteria": entries, "paper": paper})
        return
    _print_rates(
        f"{key.ours} against {key.theirs}: {len(key.sides)} pairs, annotators: {len(filled)}",
        {criterion.criterion: criterion.rates.rates for criterion in criteria} | paper,
        *(
            f"{each.criterion}: majority "
            f"{' / '.join(f'{rate:.2f}' for rate in each.majority.rates)}; {each.agreement}"
            for each in criteria
            if each.agreement
        ),
    )


def _paper_rates(name: str) -> dict[str, Sequence[float]]:
    from univerb.lab.tables.paper import paper_table

    rows = paper_table(name).rows
    return {f"paper: {row.label}, {row.section}": list(row.values.values()) for row in rows}


def _print_rates(title: str, rates: Mapping[str, Sequence[float]], *notes: str) -> None:
    """Print the rates of better, no preference and worse, by name of the line."""
    table = Table("", "better", "no prefer", "worse", box=None, header_style="dim")
    for name, values in rates.items():
        table.add_row(Text(name), *(f"{value:.2f}" for value in values))
    console.print(Text(title, style="bold"), table)
    for note in [*notes, "The paper's texts and judges are others: rates do not compare."]:
        console.print(Text(note, style="dim"))
