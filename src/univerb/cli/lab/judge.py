"""`univerb lab judge`: which of two systems writes better, as a model or people see it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, errors, print_json, show_warnings
from univerb.cli.lab.options import refuse_overwriting, typed_names
from univerb.cli.options import AsJson
from univerb.cli.progress import progress_bars
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.lab.judging.system_texts import ContinuationPair

_model = partial(typer.Option, rich_help_panel="A model judges")
_people = partial(typer.Option, rich_help_panel="People judge")
_SAMPLE = {"cases", "seed"}
# The ways to judge: the options that each needs, and those it may have.
_WAYS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "prompts": ((), _SAMPLE),
    "replies": ((), _SAMPLE | {"judge_model"}),
    "endpoint": (("judge_model", "log"), _SAMPLE | {"workers"}),
    "sheet": (("key",), _SAMPLE),
    "filled": (("key",), set()),
}


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
    way = _way(typed_names(context))
    if filled:
        _show(_human_result(filled, key), as_json)
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
        _show(_model_result(pairs, answers, names, judge_model), as_json)


def _way(typed: set[str]) -> str:
    """Return the one way to judge that was asked for, with all that it needs and no more."""
    ways = [way for way in _WAYS if way in typed]
    if len(ways) != 1:
        given = " and ".join(f"--{way}" for way in ways) or "no way to judge"
        raise OptionError(f"{given} given. Give one of {', '.join(f'--{way}' for way in _WAYS)}.")
    [way] = ways
    needs, others = _WAYS[way]
    for name in needs:
        if name not in typed:
            raise OptionError(f"--{way} needs {_flag(name)}. Give it, too.")
    allowed = {way, *needs, *others, "ours", "theirs", "as_json"}
    if useless := sorted(typed - allowed):
        raise OptionError(f"{_flag(useless[0])} is not for --{way}. Drop one of them.")
    return way


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _asked(
    url: str, model: str, log: Path, workers: int, pairs: "Sequence[ContinuationPair]"
) -> dict[str, str]:
    from univerb.lab.judging.judge import judge_prompts
    from univerb.lab.judging.judge_endpoint import Endpoint, ask_all, key_from_environment

    endpoint = Endpoint(url, model, key_from_environment())
    with progress_bars() as tell:
        return ask_all(
            endpoint, judge_prompts(pairs), log, workers, lambda *counts: tell("verdicts", *counts)
        )


class _Result(NamedTuple):
    title: str
    rates: dict[str, Sequence[float]]
    """Better, no preference and worse, by name of the line."""
    notes: list[str]
    report: dict[str, Any]
    """The same for JSON."""
    table: str
    """The paper's."""


def _model_result(
    pairs: "Sequence[ContinuationPair]", replies: dict[str, str], names: list[str], model: str
) -> _Result:
    from univerb.lab.judging.judge import preference

    verdicts = preference(pairs, replies)
    ours, theirs = names
    return _Result(
        f"{ours} against {theirs}: {len(pairs)} pairs, judged by {model or 'what replied'}",
        {
            "rate_avg, both orders": verdicts.rate_avg.rates,
            "item_avg, pair by pair": verdicts.item_avg.rates,
            f"{ours} first": verdicts.orders[0].rates,
            f"{theirs} first": verdicts.orders[1].rates,
        },
        [
            f"Position bias {verdicts.position_bias:.0%}: the same position won in both "
            f"orders; {verdicts.unclear} pairs without a clear verdict are left out."
        ],
        {"ours": ours, "theirs": theirs, "judge": model} | verdicts.to_dict(),
        "gpt4",
    )


def _human_result(filled: list[Path], key: Path) -> _Result:
    from univerb.lab.judging.human_sheet import SheetKey, human_preference, read_sheet

    known = SheetKey.read(key)
    criteria = human_preference(known, [read_sheet(path, known) for path in filled])
    title = f"{known.ours} against {known.theirs}: {len(known.sides)} pairs"
    return _Result(
        f"{title}, annotators: {len(filled)}",
        {criterion.criterion: criterion.rates.rates for criterion in criteria},
        [
            f"{one.criterion}: majority {' / '.join(f'{rate:.2f}' for rate in one.majority.rates)};"
            f" {one.agreement}"
            for one in criteria
            if one.agreement
        ],
        {"ours": known.ours, "theirs": known.theirs, "pairs": len(known.sides)}
        | {"criteria": [criterion.to_dict() for criterion in criteria]},
        "human",
    )


def _show(result: _Result, as_json: bool) -> None:
    from univerb.lab.tables.paper import paper_table

    paper = {
        f"paper: {row.label}, {row.section}": list(row.values.values())
        for row in paper_table(result.table).rows
    }
    report = result.report | {"paper": paper}
    if as_json:
        print_json(report)
        return
    table = Table("", "better", "no prefer", "worse", box=None, header_style="dim")
    for name, rates in (result.rates | paper).items():
        style = "dim" if name in paper else ""
        table.add_row(Text(name), *(f"{rate:.2f}" for rate in rates), style=style)
    console.print(Text(result.title, style="bold"))
    console.print(table)
    for note in [*result.notes, "The paper's texts and judges are others: rates do not compare."]:
        console.print(Text(note, style="dim"))
