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
from univerb.cli.options import OUTPUT, AsJson, make_folder, refuse_overwriting, write_pages
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.lab.judging.human_sheet import Judged
    from univerb.lab.judging.judge import Pair, Preference
    from univerb.lab.metrics.agreement import Agreement
    from univerb.lab.tables.paper import PaperRow, PaperTable

MODEL, PEOPLE = "A model judges", "People judge"
CASES, WORKERS = 100, 4
_DRAWN = ("--cases", "--seed")
# The ways to judge: what each needs, and what it may have besides.
_WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--prompts": ((), _DRAWN),
    "--replies": ((), (*_DRAWN, "--judge-model", "--out")),
    "--endpoint": (("--judge-model", "--log"), (*_DRAWN, "--workers", "--out")),
    "--sheet": (("--key",), _DRAWN),
    "--filled": (("--key",), ("--out",)),
}
_BAR = 16
_LOOKS = (("█", "green"), ("░", "bright_black"), ("▒", "red"))
# The paper's aspects have no system to their names.
_ASPECTS_AGAINST = "Transformer"


def judge(
    ours: Annotated[
        Path | None,
        typer.Argument(help="Texts of a system: lines of JSON with prompt (or prefix) and text."),
    ] = None,
    theirs: Annotated[
        Path | None, typer.Argument(help="Texts of another one, for the same prompts.")
    ] = None,
    cases: Annotated[
        int | None, typer.Option(min=1, help=f"Pairs to draw; {CASES} by default, as the paper.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draw and of a sheet's sides.")] = None,
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
        str | None,
        typer.Option(
            help="Ask an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key is in "
            "UNIVERB_JUDGE_KEY.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="The judge's name.", rich_help_panel=MODEL)
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Keeps its replies; a run goes on from there.", rich_help_panel=MODEL),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help=f"Questions at once; {WORKERS} by default.", rich_help_panel=MODEL),
    ] = None,
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
        Path | None,
        typer.Option(help="The JSON file that tells the sides apart.", rich_help_panel=PEOPLE),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write judge.json here.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what two systems wrote, pair by pair, beside the paper's figures."""
    show_warnings()
    options = {
        **{"--prompts": prompts, "--replies": replies, "--endpoint": endpoint, "--sheet": sheet},
        **{"--filled": filled or None, "--key": key, "--judge-model": judge_model, "--log": log},
        **{"--cases": cases, "--seed": seed, "--workers": workers, "--out": out},
    }
    way = _way({name for name, value in options.items() if value is not None})
    if out:
        make_folder("--out", out)
    if filled and key:
        _tell(_by_people(filled, key, ours, theirs), out, as_json)
        return
    if not ours or not theirs:
        raise OptionError(f"{way} needs the texts of two systems. Give OURS and THEIRS.")
    from univerb.lab.judging.judge import read_pairs, read_replies, sample_pairs, system_names

    refuse_overwriting("--prompts", prompts, [ours, theirs])
    refuse_overwriting("--log", log, [ours, theirs])
    pairs = sample_pairs(read_pairs(ours, theirs), cases or CASES, seed or 0)
    names = system_names([ours, theirs])
    if prompts:
        _write_prompts(prompts, pairs, as_json)
    elif sheet and key:
        _write_sheet(sheet, key, pairs, names, seed or 0, as_json)
    elif replies:
        _tell(_by_model(pairs, read_replies(replies), names, judge_model or ""), out, as_json)
    elif endpoint is not None and judge_model is not None and log:
        told = _asked(endpoint, judge_model, log, workers, pairs)
        _tell(_by_model(pairs, told, names, judge_model), out, as_json)


def _way(given: set[str]) -> str:
    """Return the one way to judge that was asked for, with all that it needs and no more."""
    ways = [way for way in _WAYS if way in given]
    if len(ways) != 1:
        raise OptionError(
            f"{' and '.join(ways) or 'no way to judge'} given. Give one of {', '.join(_WAYS)}."
        )
    [way] = ways
    needs, others = _WAYS[way]
    for name in needs:
        if name not in given:
            raise OptionError(f"{way} needs {name}. Give it, too.")
    if useless := sorted(given - {way, *needs, *others}):
        raise OptionError(f"{useless[0]} is not for {way}. Drop one of them.")
    return way


def _write_prompts(path: Path, pairs: "Sequence[Pair]", as_json: bool) -> None:
    from univerb.lab.judging.judge import questions, write_prompts

    asked = questions(pairs)
    write_prompts(path, asked)
    _told_written(
        {"prompts": str(path), "pairs": len(pairs), "questions": len(asked)},
        f"{len(asked)} prompts for {len(pairs)} pairs are in {path}. Have them judged, and give "
        "--replies a file with their ids and the replies.",
        as_json,
    )


def _write_sheet(
    path: Path, key: Path, pairs: "Sequence[Pair]", names: list[str], seed: int, as_json: bool
) -> None:
    from univerb.lab.judging.human_sheet import write_sheet

    ours, theirs = names
    write_sheet(pairs, path, key, ours, theirs, seed)
    _told_written(
        {"sheet": str(path), "key": str(key), "pairs": len(pairs)},
        f"{len(pairs)} pairs are in {path}: for annotators, who give each column 1, 2 or tie. Keep "
        f"{key} from them, and give it with --filled.",
        as_json,
    )


def _told_written(found: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console.print(Text(text))


def _asked(
    url: str, model: str, log: Path, workers: int | None, pairs: "Sequence[Pair]"
) -> dict[str, str]:
    from univerb.lab.judging.judge import questions
    from univerb.lab.judging.judge_endpoint import (
        Endpoint,
        ReplyLog,
        ask_all,
        key_from_environment,
    )

    endpoint = Endpoint(url, model, key_from_environment())
    with told_progress() as tell:
        return ask_all(
            endpoint,
            questions(pairs),
            ReplyLog(log, endpoint.judge),
            WORKERS if workers is None else workers,
            on_reply=lambda done, total: tell("verdicts", done, total),
        )


class _Line(NamedTuple):
    """A line of the table."""

    name: str
    rates: Sequence[float]
    """Better, no preference, worse."""
    is_paper: bool = False


class _Found(NamedTuple):
    """What there is to tell."""

    about: str
    lines: list[_Line]
    notes: list[str]
    report: dict[str, Any]
    """The same for JSON."""


def _by_model(
    pairs: "Sequence[Pair]", replies: dict[str, str], names: list[str], model: str
) -> _Found:
    from univerb.lab.judging.judge import preference
    from univerb.lab.tables.paper import paper_table

    found = preference(pairs, replies)
    table, count = paper_table("gpt4"), found.item_avg.total
    lines = [
        _Line("rate_avg, both orders", found.rate_avg.rates),
        _Line("item_avg, pair by pair", found.item_avg.rates),
        *(_Line(f"{n} first", own.rates) for n, own in zip(names, found.orders, strict=True)),
        *(_paper_line(f"{row.label}, {row.section}", row) for row in table.rows),
    ]
    comparable = _comparable(table, count, model)
    return _Found(
        f"{names[0]} against {names[1]}: {count} pairs, judged by {model or 'what replied'}",
        lines,
        [_bias(found), comparable],
        {"ours": names[0], "theirs": names[1], "judge": model}
        | found.to_dict()
        | {"paper": [_paper_dict(row) for row in table.rows], "comparable": comparable},
    )


def _bias(found: "Preference") -> str:
    first, second = found.places
    left_out = f" {found.unclear} pairs without a clear verdict are left out." * bool(found.unclear)
    return (
        f"Position bias {found.position_bias:.0%}: the share of pairs where the same place won in "
        f"both orders. The first place was chosen {first} times, the second {second}.{left_out}"
    )


def _by_people(filled: list[Path], key: Path, ours: Path | None, theirs: Path | None) -> _Found:
    from univerb.lab.judging.human_sheet import Key, human_preference, read_sheet
    from univerb.lab.judging.judge import system_names
    from univerb.lab.tables.paper import paper_table

    own = Key.read(key)
    names = [own.ours, own.theirs]
    if (ours or theirs) and system_names([one for one in (ours, theirs) if one]) != names:
        raise OptionError(
            f"{str(key)!r} is the key of {names[0]!r} against {names[1]!r}. Give --filled the same "
            "OURS and THEIRS, or none."
        )
    found = human_preference(own, [read_sheet(path, own) for path in filled])
    table = paper_table("human")
    comparable = _comparable(table, len(own.sides), "human")
    return _Found(
        f"{names[0]} against {names[1]}: {len(own.sides)} pairs, annotators: {len(filled)}",
        [line for one in found for line in _beside(one, table)],
        [*(_agreed(one, one.agreement) for one in found if one.agreement), comparable],
        {
            **{"ours": names[0], "theirs": names[1], "pairs": len(own.sides)},
            "criteria": [one.to_dict() for one in found],
            "paper": [_paper_dict(row) for row in table.rows],
            "comparable": comparable,
        },
    )


def _agreed(own: "Judged", agreement: "Agreement") -> str:
    majority = " / ".join(f"{rate:.2f}" for rate in own.majority.rates)
    return f"{own.criterion}: majority {majority}; {agreement}; {len(own.disputed)} disputed"


def _beside(own: "Judged", table: "PaperTable") -> list[_Line]:
    """Return the line of a criterion, and the paper's on the same."""
    lines = [_Line(own.criterion, own.rates.rates)]
    for row in table.rows:
        if own.criterion == row.name.lower():
            lines.append(_paper_line(_ASPECTS_AGAINST, row))
        elif row.section.lower().startswith(own.criterion):
            lines.append(_paper_line(row.label, row))
    return lines


def _paper_line(against: str, row: "PaperRow") -> _Line:
    return _Line(f"  paper: {against}", list(row.values.values()), is_paper=True)


def _paper_dict(row: "PaperRow") -> dict[str, Any]:
    rates = zip(("better", "no_preference", "worse"), row.values.values(), strict=True)
    return {"section": row.section, "name": row.name, "rates": dict(rates)}


def _comparable(table: "PaperTable", count: int, judged_by: str) -> str:
    """Say in one line what parts this run from the paper's table."""
    from univerb.lab.tables.comparison import unmet
    from univerb.lab.tables.measured import Setup

    # Who wrote the texts, and of what, is not known here.
    setup = Setup(
        model="", data="", training="", n=count, seed=0, threads=1, timed="", judge=judged_by
    )
    needs = table.rows[0].needs.items()
    shared = {n: need for n, need in needs if all(row.needs[n] == need for row in table.rows)}
    apart = "; ".join(unmet(shared, setup))
    return f"Comparable with the paper? Only in the same setting: {apart}."


def _tell(found: _Found, out: Path | None, as_json: bool) -> None:
    if out:
        write_pages(out, {"judge.json": json.dumps(found.report, indent=2) + "\n"})
    if as_json:
        print_json(found.report)
        return
    table = Table(box=None, header_style="dim")
    table.add_column("", overflow="fold")
    for name, (_, colour) in zip(("better", "no prefer", "worse"), _LOOKS, strict=True):
        table.add_column(Text(name, style=colour), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for line in found.lines:
        rates = (f"{rate:.2f}" for rate in line.rates)
        style = "dim" if line.is_paper else ""
        table.add_row(Text(line.name), *rates, _bar(line.rates), style=style)
    console.print(Text(found.about, style="bold"))
    console.print(table)
    for note in found.notes:
        console.print(Text(note, style="dim"))


def _bar(rates: Sequence[float]) -> Text:
    """Draw the shares; neighbours meet where their sums round to."""
    text, drawn = Text(), 0
    for place, (mark, colour) in enumerate(_LOOKS, 1):
        end = round(_BAR * sum(rates[:place]))
        text.append(mark * (end - drawn), style=colour)
        drawn = end
    return text
