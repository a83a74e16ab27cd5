"""`univerb lab judge`: which of two systems writes better, as a model or people see it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, print_json, show_warnings
from univerb.cli.index import told_progress
from univerb.cli.options import (
    OUTPUT,
    AsJson,
    make_folder,
    refuse_overwriting,
    typed_names,
    write_pages,
)
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.lab.judging.system_texts import ContinuationPair

MODEL, PEOPLE = "A model judges", "People judge"
_SAMPLE = {"cases", "seed"}
# The ways to judge: the options that each needs, and those it may have.
_WAYS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "prompts": ((), _SAMPLE),
    "replies": ((), _SAMPLE | {"judge_model", "out"}),
    "endpoint": (("judge_model", "log"), _SAMPLE | {"workers", "out"}),
    "sheet": (("key",), _SAMPLE),
    "filled": (("key",), {"out"}),
}


def judge(
    context: typer.Context,
    ours: Annotated[
        Path | None,
        typer.Argument(help="Texts of a system: lines of JSON with prompt (or prefix) and text."),
    ] = None,
    theirs: Annotated[
        Path | None, typer.Argument(help="Texts of another one, for the same prompts.")
    ] = None,
    cases: Annotated[int, typer.Option(min=1, help="Pairs to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the draw and of a sheet's sides.")] = 0,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Write what to ask a judge, in both orders.", rich_help_panel=MODEL),
    ] = None,
    replies: Annotated[
        Path | None,
        typer.Option(
            help="Read what it replied: lines of JSON with id and reply.", rich_help_panel=MODEL
        ),
    ] = None,
    endpoint: Annotated[
        str,
        typer.Option(
            help="Ask an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key is in "
            "UNIVERB_JUDGE_KEY.",
            rich_help_panel=MODEL,
        ),
    ] = "",
    judge_model: Annotated[str, typer.Option(help="The judge.", rich_help_panel=MODEL)] = "",
    log: Annotated[
        Path, typer.Option(help="Keeps its replies; a run resumes.", rich_help_panel=MODEL)
    ] = Path("replies.jsonl"),
    workers: Annotated[int, typer.Option(help="Concurrent requests.", rich_help_panel=MODEL)] = 4,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Write a blind CSV sheet for annotators.", rich_help_panel=PEOPLE),
    ] = None,
    filled: Annotated[
        list[Path] | None,
        typer.Option(
            help="Read a filled sheet, one for each annotator. Repeatable.", rich_help_panel=PEOPLE
        ),
    ] = None,
    key: Annotated[
        Path,
        typer.Option(help="The JSON file that tells the sides apart.", rich_help_panel=PEOPLE),
    ] = Path("key.json"),
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write judge.json here.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what two systems wrote, pair by pair, beside the paper's figures."""
    show_warnings()
    way = _way(typed_names(context))
    if out:
        make_folder("--out", out)
    if filled:
        _show(_human_result(filled, key), out, as_json)
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
        _say(f"{len(pairs)} pairs are in {prompts}; give --replies their ids and the replies.")
    elif sheet:
        from univerb.lab.judging.human_sheet import write_sheet

        write_sheet(pairs, sheet, key, *names, seed)
        _say(
            f"{len(pairs)} pairs are in {sheet}: annotators give each column 1, 2 or tie. Keep "
            f"{key} from them, and give it with --filled."
        )
    else:
        answers = (
            read_replies(replies) if replies else _asked(endpoint, judge_model, log, workers, pairs)
        )
        _show(_model_result(pairs, answers, names, judge_model), out, as_json)


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


def _say(text: str) -> None:
    console.print(Text(text))


def _asked(
    url: str, model: str, log: Path, workers: int, pairs: "Sequence[ContinuationPair]"
) -> dict[str, str]:
    from univerb.lab.judging.judge import judge_prompts
    from univerb.lab.judging.judge_endpoint import Endpoint, ask_all, key_from_environment

    endpoint = Endpoint(url, model, key_from_environment())
    with told_progress() as tell:
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

    found = preference(pairs, replies)
    ours, theirs = names
    return _Result(
        f"{ours} against {theirs}: {len(pairs)} pairs, judged by {model or 'what replied'}",
        {
            "rate_avg, both orders": found.rate_avg.rates,
            "item_avg, pair by pair": found.item_avg.rates,
            f"{ours} first": found.orders[0].rates,
            f"{theirs} first": found.orders[1].rates,
        },
        [
            f"Position bias {found.position_bias:.0%}: the share of pairs where the same position "
            f"won in both orders. {found.unclear} pairs without a clear verdict are left out."
        ],
        {"ours": ours, "theirs": theirs, "judge": model} | found.to_dict(),
        "gpt4",
    )


def _human_result(filled: list[Path], key: Path) -> _Result:
    from univerb.lab.judging.human_sheet import SheetKey, human_preference, read_sheet

    known = SheetKey.read(key)
    found = human_preference(known, [read_sheet(path, known) for path in filled])
    title = f"{known.ours} against {known.theirs}: {len(known.sides)} pairs"
    return _Result(
        f"{title}, annotators: {len(filled)}",
        {criterion.criterion: criterion.rates.rates for criterion in found},
        [
            f"{one.criterion}: majority {' / '.join(f'{rate:.2f}' for rate in one.majority.rates)};"
            f" {one.agreement}"
            for one in found
            if one.agreement
        ],
        {"ours": known.ours, "theirs": known.theirs, "pairs": len(known.sides)}
        | {"criteria": [criterion.to_dict() for criterion in found]},
        "human",
    )


def _show(result: _Result, out: Path | None, as_json: bool) -> None:
    from univerb.lab.tables.paper import paper_table

    paper = {
        f"paper: {row.label}, {row.section}": list(row.values.values())
        for row in paper_table(result.table).rows
    }
    report = result.report | {"paper": paper}
    if out:
        write_pages(out, {"judge.json": json.dumps(report, indent=2) + "\n"})
    if as_json:
        print_json(report)
        return
    table = Table("", "better", "no prefer", "worse", box=None, header_style="dim")
    for name, rates in (result.rates | paper).items():
        style = "dim" if name in paper else ""
        table.add_row(Text(name), *(f"{rate:.2f}" for rate in rates), style=style)
    console.print(Text(result.title, style="bold"), table)
    for note in [*result.notes, "The paper's texts and judges are others: rates do not compare."]:
        console.print(Text(note, style="dim"))
