"""`univerb lab answers` and `univerb lab pairs`, as typed."""

import csv
import functools
import gzip
import json
from pathlib import Path

import pytest

from conftest import TEXT, saved_encoder

pytestmark = pytest.mark.usefixtures("without_embedder")
QUESTIONS = """
- question: When shall the tenant pay the rent?
  answers: [first day]
- question: Who is the king of the sea?
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_encoder(tmp_path_factory.mktemp("answers"))


@pytest.fixture
def ask(run, model, tmp_path):
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    (tmp_path / "lease.txt").write_text(TEXT)
    files = ("--questions", tmp_path / "questions.yaml", "--docs", tmp_path / "lease.txt")
    short = ("--max-tokens", "8", "--threads", "1", "-o", tmp_path / "out")
    return functools.partial(run, "lab", "answers", *files, *short, "--model", model)


def test_a_report_a_sheet_and_the_verdicts_in_the_report(ask, tmp_path):
    ran = ask("--system", "quote")
    assert ran.code == 0 and "| quote" in ran.out, ran.err
    sheet = tmp_path / "out" / "markers.csv"
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} markers to judge" in ran.err
    if rows:
        filled = tmp_path / "filled.csv"
        with filled.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["item", "supports"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row | {"supports": "yes"} for row in rows)
        again = ask("--system", "quote", "--judged", filled, "--judge", "a person", "--json").json
        assert again["about"]["markers judged by"] == "a person"
        assert again["figures"]["questions"][0]["supporting"] == 1.0
    assert json.loads((tmp_path / "out" / "answers.json").read_text())["answers"]["questions"]
    assert (tmp_path / "out" / "answers.png").stat().st_size > 1000


def test_a_judge_has_a_name_and_questions_have_a_file(ask, run, model, tmp_path, monkeypatch):
    ran = ask("--judged", tmp_path / "filled.csv")
    assert ran.code == 1 and "--judge" in ran.err
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNIVERB_DATA", raising=False)
    ran = run("lab", "answers", "--model", model, "-o", tmp_path / "out")
    assert ran.code == 1 and "--questions" in ran.err


def test_pairs_are_written_for_the_judge(run, model, tmp_path):
    for name, count in (("valid", 3), ("train-00", 2)):
        path = tmp_path / "data" / "wiki" / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            for n in range(count):
                file.write(json.dumps({"id": f"{name}{n}", "text": f"{n}. {TEXT} {TEXT}"}) + "\n")
    small = ("--limit", "2", "--words", "5", "--max-tokens", "6", "--context", "0")
    folder = tmp_path / "pairs"
    typed = ("--workload", "open", "--data", tmp_path / "data", "--model", model, "-o", folder)
    ran = run("lab", "pairs", *typed, *small, "--threads", "1")
    assert ran.code == 0 and "| open" in ran.out, ran.err
    judged = run(
        "lab", "judge", folder / "phrases.jsonl", folder / "plain.jsonl", "--prompts",
        tmp_path / "prompts.jsonl",
    )  # fmt: skip
    assert judged.code == 0 and "2 pairs" in judged.err
