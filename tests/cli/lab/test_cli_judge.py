"""`univerb lab judge`, as a user types it: files, a real server on the loopback, and sheets."""

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Ran
from judge_server import LOOPBACK, Server, completion, serving

CRITERIA = ("overall", "fluency", "coherence", "informativeness", "grammar")


def write_lines(path: Path, values: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    """What two systems wrote for ten prompts; one file has our names, one those of a recipe."""
    good = [{"prompt": f"prefix {n}", "text": f" good {n}"} for n in range(10)]
    poor = [{"prefix": f"prefix {n}", "text": f" poor {n}", "units": 7} for n in range(10)]
    return write_lines(tmp_path / "good.jsonl", good), write_lines(tmp_path / "poor.jsonl", poor)


def judged(prompts: Path, replies: Path, judge: Callable[[str], str]) -> Path:
    """Play a judge that gets prompts in a file and returns one."""
    asked = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    return write_lines(replies, [{"id": own["id"], "reply": judge(own["prompt"])} for own in asked])


def likes_good(prompt: str) -> str:
    return "[[1]]" if prompt.index(" good ") < prompt.index(" poor ") else "[[2]]"


def refused(ran: Ran, *words: str) -> None:
    """Check that a command ended with one clear line and nothing else."""
    assert (ran.code, ran.out) == (1, "")
    [line] = ran.err.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


# Prompts and replies in files


def test_prompts_go_out_and_replies_come_in(run, texts, tmp_path):
    prompts, replies = tmp_path / "prompts.jsonl", tmp_path / "replies.jsonl"
    ran = run("lab", "judge", *texts, "--prompts", prompts)
    assert ran.code == 0 and "10 pairs are in" in ran.err
    judged(prompts, replies, likes_good)
    ran = run("lab", "judge", *texts, "--replies", replies)
    assert (ran.code, ran.err) == (0, "")
    assert "good against poor: 10 pairs" in ran.out
    rates = dict(re.findall(r"^ *(\S.*\S) {2,}(\d\.\d\d +\d\.\d\d +\d\.\d\d)", ran.out, re.M))
    for name in ("rate_avg, both orders", "item_avg, pair by pair", "good first", "poor first"):
        assert rates[name].split() == ["1.00", "0.00", "0.00"]
    # The paper's own, table 14.
    assert rates["paper: Transformer, WikiText103"].split() == ["0.61", "0.05", "0.34"]
    assert rates["paper: Transformer, LawMT"].split() == ["0.46", "0.02", "0.52"]
    assert "Position bias 0%" in ran.out and "rates do not compare" in ran.out


def test_exchanged_inputs_exchange_better_and_worse(run, texts, tmp_path):
    prompts, replies = tmp_path / "prompts.jsonl", tmp_path / "replies.jsonl"
    run("lab", "judge", *texts, "--prompts", prompts, "--cases", 6, "--seed", 3)
    verdicts = iter(["1", "2", "tie", "1", "1", "2", "2", "2", "1", "tie", "1", "1"])
    judged(prompts, replies, lambda _: next(verdicts))
    more = ("--cases", 6, "--seed", 3, "--replies", replies, "--json")
    own, other = (
        run("lab", "judge", *texts, *more).json,
        run("lab", "judge", *texts[::-1], *more).json,
    )
    assert (own["ours"], own["theirs"], own["pairs"]) == ("good", "poor", 6)
    for way in ("rate_avg", "item_avg"):
        one, two = own[way]["rates"], other[way]["rates"]
        assert (one["better"], one["no_preference"]) == (two["worse"], two["no_preference"])
    assert own["ours_first"] != own["theirs_first"]
    assert own["ours_first"]["counts"]["better"] == other["theirs_first"]["counts"]["worse"]
    assert own["position_bias"] == other["position_bias"]


def test_a_judge_of_places_gives_half_and_half(run, texts, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    run("lab", "judge", *texts, "--prompts", prompts)
    replies = judged(prompts, tmp_path / "replies.jsonl", lambda _: "[[1]]")
    ran = run("lab", "judge", *texts, "--replies", replies, "--json")
    rates = {way: ran.json[way]["rates"] for way in ("rate_avg", "item_avg")}
    assert rates["rate_avg"] == {"better": 0.5, "no_preference": 0.0, "worse": 0.5}
    assert rates["item_avg"] == {"better": 0.0, "no_preference": 1.0, "worse": 0.0}
    assert ran.json["position_bias"] == 1.0
    assert "paper: Transformer, LawMT" in ran.json["paper"]
    assert "Position bias 100%" in run("lab", "judge", *texts, "--replies", replies).out


def test_what_a_file_lacks_is_named(run, texts, tmp_path):
    prompts, replies = tmp_path / "prompts.jsonl", tmp_path / "replies.jsonl"
    run("lab", "judge", *texts, "--prompts", prompts)
    judged(prompts, replies, likes_good)
    kept = replies.read_text().splitlines(keepends=True)
    replies.write_text("".join(kept[:-1]))
    refused(run("lab", "judge", *texts, "--replies", replies), "1 of 20 prompts have no reply")
    replies.write_text("".join(kept) + "no json\n")
    refused(run("lab", "judge", *texts, "--replies", replies), "line 21")
    refused(run("lab", "judge", *texts, "--replies", tmp_path / "nowhere"), "cannot be read")
    refused(run("lab", "judge", texts[0], replies, "--replies", replies), "'prefix'")


# A server


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("UNIVERB_JUDGE_KEY", "sk-very-secret")
    with serving() as running:
        yield running


def asking(server: Server, log: Path) -> tuple[object, ...]:
    return ("--endpoint", server.url, "--judge-model", "judge-1", "--log", log)


@LOOPBACK
def test_a_server_is_asked_with_the_key_and_only_once(run, server, texts, tmp_path):
    server.answer = lambda prompt: completion(likes_good(prompt))
    base = ("lab", "judge", *texts, *asking(server, tmp_path / "log.jsonl"))
    first = run(*base, "--json", "--cases", 4)
    assert first.json["rate_avg"]["rates"]["better"] == 1.0
    assert first.json["judge"] == "judge-1" and first.json["pairs"] == 4
    assert len(server.requests) == 8
    assert {headers["Authorization"] for _, headers, _ in server.requests} == {
        "Bearer sk-very-secret"
    }
    assert run(*base, "--json", "--cases", 4) == first and len(server.requests) == 8
    # More cases are asked about; what is known stays.
    assert run(*base, "--json").json["pairs"] == 10
    assert len(server.prompts) == 20 == len(set(server.prompts))
    shown = run(*base)
    assert "judged by judge-1" in shown.out
    for told in (first.out, first.err, shown.out, (tmp_path / "log.jsonl").read_text()):
        assert "sk-very-secret" not in told


@LOOPBACK
def test_a_killed_run_goes_on_and_ends_the_same(run, server, texts, tmp_path):
    def slowly(prompt: str):
        time.sleep(0.05)
        return completion(likes_good(prompt) if "prefix 3" not in prompt else "tie")

    server.answer = slowly
    log = tmp_path / "log.jsonl"
    base = ("lab", "judge", *texts, *asking(server, log), "--workers", 2)
    process = subprocess.Popen(
        [sys.executable, "-m", "univerb", *map(str, base)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not log.exists() or log.read_bytes().count(b"\n") < 6:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(0.2)
    # The first line is the header.
    kept, asked = log.read_bytes().count(b"\n") - 1, len(server.requests)
    assert 5 <= kept < 20
    resumed = run(*base, "--json")
    # Nothing that was kept is asked again.
    assert len(server.requests) - asked == 20 - kept
    whole = run("lab", "judge", *texts, *asking(server, tmp_path / "other.jsonl"), "--json")
    assert resumed.json == whole.json
    assert whole.json["rate_avg"]["counts"] == {"better": 18, "no_preference": 2, "worse": 0}


@LOOPBACK
def test_a_server_that_refuses_is_one_line(run, server, texts, tmp_path):
    server.answer = lambda _: (401, {}, b'{"error": {"message": "no such sk-very-secret"}}')
    ran = run("lab", "judge", *texts, *asking(server, tmp_path / "log"))
    refused(ran, "401", "no such ***")
    unusable = asking(server, tmp_path)
    before = len(server.requests)
    refused(run("lab", "judge", *texts, *unusable), "cannot be written")
    assert len(server.requests) == before


# Sheets


def fill(sheet: Path, to: Path, answer: Callable[[dict[str, str], str], str]) -> Path:
    with sheet.open(encoding="utf-8-sig", newline="") as file:
        records = list(csv.DictReader(file))
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(
            record | {name: answer(record, name) for name in CRITERIA} for record in records
        )
    return to


def test_a_sheet_goes_out_blind_and_comes_back(run, texts, tmp_path):
    sheet, key = tmp_path / "sheet.csv", tmp_path / "key.json"
    ran = run("lab", "judge", *texts, "--sheet", sheet, "--key", key, "--cases", 8)
    assert ran.code == 0 and "8 pairs are in" in ran.err
    assert json.loads(key.read_text())["ours"] == "good"
    # One annotator likes what is good; another one does not care about grammar.
    better = lambda record, _: "1" if "good" in record["continuation 1"] else "2"  # noqa: E731
    first = fill(sheet, tmp_path / "1.csv", better)
    second = fill(sheet, tmp_path / "2.csv", lambda r, n: "tie" if n == "grammar" else better(r, n))
    given = ("--filled", first, "--filled", second, "--key", key)
    ran = run("lab", "judge", *given)
    assert ran.code == 0
    rates = dict(re.findall(r"^ *(\S.*\S) {2,}(\d\.\d\d +\d\.\d\d +\d\.\d\d)", ran.out, re.M))
    assert rates["overall"].split() == ["1.00", "0.00", "0.00"]
    assert rates["grammar"].split() == ["0.50", "0.50", "0.00"]
    # The paper's own, table 2.
    assert rates["paper: CoG, Overall Evaluation"].split() == ["0.53", "0.22", "0.25"]
    assert "grammar: majority 0.00 / 1.00 / 0.00; agreement 0.00, kappa (Cohen) 0.00" in ran.out
    report = run("lab", "judge", *given, "--json").json
    assert [own["criterion"] for own in report["criteria"]] == list(CRITERIA)


def test_a_sheet_is_never_overwritten(run, texts, tmp_path):
    given = ("lab", "judge", *texts, "--sheet", tmp_path / "s.csv", "--key", tmp_path / "k.json")
    assert run(*given).code == 0
    before = (tmp_path / "s.csv").read_bytes()
    refused(run(*given, "--seed", 1), "exists")
    assert (tmp_path / "s.csv").read_bytes() == before


# Options that do not go together


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ("none of several options", "--filled")),
        ("--prompts p --replies r", ("--prompts and --replies", "Give one")),
        ("--sheet s --key k --endpoint http://127.0.0.1/v1", ("--endpoint and --sheet",)),
        ("--endpoint http://127.0.0.1/v1", ("the judge has no model",)),
        ("--endpoint nowhere --judge-model m --log l", ("address is 'nowhere'",)),
        ("--filled f", ("'key.json' cannot be read",)),
        ("--prompts p --key k", ("--key is not for --prompts",)),
        ("--prompts p --workers 2", ("--workers is not for --prompts",)),
        ("--replies r --log l", ("--log is not for --replies",)),
        ("--sheet s --key k --judge-model m", ("--judge-model is not for --sheet",)),
        ("--filled f --key k --cases 5", ("--cases is not for --filled",)),
        ("--filled f --key k", ("'k' cannot be read",)),
        ("--endpoint http://127.0.0.1/v1 --judge-model m --log l --workers 0", ("workers is 0",)),
    ],
)
def test_every_wrong_combination_is_one_line(run, texts, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    refused(run("lab", "judge", *texts, *options.split()), *words)
    assert {path.name for path in tmp_path.iterdir()} == {"good.jsonl", "poor.jsonl"}


def test_texts_are_needed_but_for_filled_sheets(run, texts):
    for given in ((), texts[:1]):
        refused(run("lab", "judge", *given, "--prompts", "p"), "OURS and THEIRS")


def test_an_empty_name_or_address_is_refused(run, texts, tmp_path):
    log = ("--log", tmp_path / "log")
    named = ("--endpoint", "http://127.0.0.1/v1", "--judge-model", "")
    refused(run("lab", "judge", *texts, *named, *log), "the judge has no model")
    refused(
        run("lab", "judge", *texts, "--endpoint", "", "--judge-model", "m", *log), "address is ''"
    )


def test_what_is_read_is_never_written_over(run, texts, tmp_path):
    ours, theirs = texts
    before = ours.read_bytes()
    ran = run("lab", "judge", ours, theirs, "--prompts", ours)
    assert ran.code == 1
    assert "which is read" in ran.err
    other = tmp_path / "precious.json"
    other.write_text('{"a": 1}\n')
    endpoint = ("--endpoint", "http://127.0.0.1:9/v1", "--judge-model", "x")
    ran = run("lab", "judge", ours, theirs, *endpoint, "--log", other)
    assert ran.code == 1
    assert "name another file" in " ".join(ran.err.split())
    assert (other.read_text(), ours.read_bytes()) == ('{"a": 1}\n', before)


def test_texts_of_any_length_come_back_from_a_sheet(run, tmp_path):
    long = [{"prompt": "p", "text": "word " * 40_000}]
    files = [write_lines(tmp_path / f"{name}.jsonl", long) for name in ("a", "b")]
    sheet, key = tmp_path / "sheet.csv", tmp_path / "key.json"
    assert run("lab", "judge", *files, "--sheet", sheet, "--key", key).code == 0
    with sheet.open(encoding="utf-8-sig", newline="") as file:
        csv.field_size_limit(1 << 20)
        rows = list(csv.DictReader(file))
    csv.field_size_limit(131_072)
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"overall": "tie"} for row in rows)
    ran = run("lab", "judge", "--filled", sheet, "--key", key)
    assert ran.code == 0, ran.err
