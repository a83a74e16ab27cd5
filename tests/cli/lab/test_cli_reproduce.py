"""`univerb lab reproduce` as a user types it: pages on disk, a killed process, bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from conftest import saved_encoder
from tiny_data import tiny_data

OPTIONS = ("--limit", 21, "--limit-nucleus", 3, "--timed", 0, "--max-tokens", 8, "-k", 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    tiny_data(folder / "data", 21)
    return folder


@pytest.fixture(scope="module")
def model(place):
    return saved_encoder(place)


@pytest.fixture(autouse=True)
def own_cache(place, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", str(place / "cache"))
    monkeypatch.setenv("UNIVERB_DATA", str(place / "data"))


@pytest.mark.parametrize("width", [70, 300])
def test_pages_of_a_table(run, model, tmp_path, width, monkeypatch):
    monkeypatch.setattr("univerb.cli.lab.reproduce.console", Console(width=width))
    ran = run("lab", "reproduce", "table1", "--backbone", model, *OPTIONS, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    one = run("lab", "reproduce", "table1", "--test-set", "wikitext-natural", "--model", model,
              *OPTIONS, "-o", tmp_path / "out", "--json")  # fmt: skip
    assert list(one.json) == ["main-wikitext-natural"]
    assert "Table 1 of the paper: WikiText-103, greedy" in ran.out
    assert ("univerb (atomic)" in ran.out) == (width == 300)
    assert "20.47" in ran.out
    assert max(map(len, ran.out.splitlines())) <= width
    for name in ("main", "main-wikitext-natural"):
        for end in ("md", "json", "tex", "png"):
            assert (tmp_path / "out" / f"{name}.{end}").stat().st_size > 100
    page = (tmp_path / "out" / "main.md").read_text()
    assert "model: tiny here, gpt2 in the paper" in page
    assert str(tmp_path) not in page
    found = json.loads((tmp_path / "out" / "main.json").read_text())
    assert len(found["run"]["rows"]) == 3
    assert [own["measure"] for own in found["run"]["goals"]][:2] == ["MAUVE matched", "Diversity"]
    assert "missed" in ran.out
    assert "## What was reached" in page


def test_a_first_page_for_all_tables_of_a_folder(run, model, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "other.json").write_text("[]")
    for table in ("main", "resources"):
        ran = run("lab", "reproduce", table, "--model", model, *OPTIONS, "-o", out)
        assert ran.code == 0, ran.err
    first = (out / "tables.md").read_text()
    assert first.index("main-wikitext-natural") < first.index("resources")
    assert "MAUVE matched" in first
    for link in re.findall(r"\]\((.*?)\)", first):
        assert (out / link).is_file()


def test_json(run, model, tmp_path):
    ran = run(
        "lab",
        "reproduce",
        "compression",
        "--model",
        model,
        *OPTIONS,
        "--json",
        "-o",
        tmp_path / "out",
    )
    assert ran.code == 0, ran.err
    assert list(ran.json) == ["compression"]


def _command(model, out) -> list[str]:
    typed = ["lab", "reproduce", "main", "--model", model, *OPTIONS, "-o", out]
    return [sys.executable, "-m", "univerb", *map(str, typed)]


@pytest.mark.slow
def test_a_killed_process_goes_on_and_ends_with_the_same_tables(model, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, part = tmp_path / "whole", tmp_path / "part"
    subprocess.run(_command(model, whole), env=environment, check=True, capture_output=True)
    process = subprocess.Popen(_command(model, part), env=environment, stderr=subprocess.DEVNULL)
    cache = part / "cache"
    waited = time.monotonic()
    while not (cache.is_dir() and any(own.stat().st_size for own in cache.iterdir())):
        assert process.poll() is None
        assert time.monotonic() - waited < 120
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (part / "main.md").exists()
    subprocess.run(_command(model, part), env=environment, check=True, capture_output=True)
    for name in ("main.md", "main.json", "main-wikitext-natural.json"):
        assert (part / name).read_text() == (whole / name).read_text()


def test_a_scorer_in_another_precision(run, model, tmp_path):
    given = ("real-time", "--model", model, *OPTIONS, "--test-set", "wikitext", "--json")
    pages = [
        run("lab", "reproduce", *given, *more, "-o", tmp_path / "out").json["real-time"]["run"]
        for more in ((), ("--scorer-dtype", "bfloat16"))
    ]
    single, half = (page["rows"][0]["cells"] for page in pages)
    assert [page["setup"]["scorer"] for page in pages] == ["tiny", "tiny (bfloat16)"]
    assert single["PPL"] != half["PPL"] and single["Diversity"] == half["Diversity"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mian",), "Did you mean 'main'"),
        (("main", "--data", "nowhere"), "there is no folder 'nowhere'"),
        (("negatives",), "--ablation CONFIG"),
        (("negatives", "--ablation", "nowhere.yaml"), "nowhere.yaml"),
        (("main", "--wiki-corpus", "nowhere.uv"), "nowhere.uv"),
        (("main", "--scorer", "no/such-model", "--offline"), "no/such-model"),
        (("main", "--scorer-dtype", "float8"), "--scorer-dtype is 'float8'. Allowed: float32"),
        (("asqa",), "asqa_200_with_docs"),
        (("main", "--test-set", "wikitxt"), "Did you mean 'wikitext'"),
        (("main", "--test-set", "lawmt"), "has no test set 'lawmt'"),
    ],
)
def test_bad_input_is_one_line(run, model, tmp_path, arguments, message):
    ran = run("lab", "reproduce", *arguments, "--model", model, *OPTIONS, "-o", tmp_path / "out")
    assert ran.code == 1
    assert message in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_a_file_where_the_folder_should_be(run, model, tmp_path):
    (tmp_path / "out").write_text("mine")
    ran = run("lab", "reproduce", "main", "--model", model, "-o", tmp_path / "out")
    assert ran.code == 1
    assert "--out" in ran.err
    assert (tmp_path / "out").read_text() == "mine"
