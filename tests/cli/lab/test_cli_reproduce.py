"""`univerb lab reproduce` as a user types it: pages on disk, a killed process, bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from conftest import saved, saved_encoder
from tiny_data import tiny_data
from univerb.modeling.checkpoint import describe, write_checkpoint
from univerb.modeling.dynamic import DynamicLM

OPTIONS = ("--limit", 20, "--limit-nucleus", 3, "--timed", 0, "--max-tokens", 8, "-k", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    tiny_data(folder / "data", 20)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return saved_encoder(folder)


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("UNIVERB_DATA", str(folder / "data"))


def test_pages_of_a_table(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr("univerb.cli.lab.reproduce.console", Console(width=90))
    out = tmp_path / "out"
    ran = run("lab", "reproduce", "table1", "--model", model, *OPTIONS, "-o", out)
    assert ran.code == 0, ran.err
    for text in ("Table 1 of the paper: WikiText-103, greedy", "20.47", "[1] model: tiny here"):
        assert text in ran.out
    assert max(map(len, ran.out.splitlines()[:20])) <= 90
    for name in ("main", "main-wikitext-natural"):
        for suffix in ("md", "json", "tex", "png"):
            assert (out / f"{name}.{suffix}").stat().st_size > 100
    page = (out / "main.md").read_text()
    assert "model: tiny here, gpt2 in the paper" in page
    assert str(tmp_path) not in page
    assert len(json.loads((out / "main.json").read_text())["result"]["rows"]) == 3
    # The same texts, scored in another precision.
    natural = ("main", "--test-set", "wikitext-natural", "--scorer-dtype", "bfloat16", "--json")
    ran = run("lab", "reproduce", *natural, "--model", model, *OPTIONS, "-o", tmp_path / "out")
    half = ran.json["main-wikitext-natural"]["result"]
    single = json.loads((out / "main.json").read_text())["result"]
    assert list(ran.json) == ["main-wikitext-natural"]
    assert half["setup"]["scorer"] == "tiny (bfloat16)" != single["setup"]["scorer"]


def test_a_trained_lm_is_named_and_does_not_score_itself(run, model, tmp_path):
    lm = DynamicLM.from_pretrained(str(model))
    names = {"name": "tiny-run", "trained_from": lm.model.name_or_path}
    backbone = describe(lm.model, lm.tokenizer).model_copy(update=names)
    trained = tmp_path / "run" / "encoder"
    saved(trained / "tiny-run", lm)
    write_checkpoint(trained, lm.encoder, backbone, lm.profile)
    options = ("--model", trained, *OPTIONS, "--test-set", "wikitext", "--json")
    ran = run("lab", "reproduce", "main", *options, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    setup = ran.json["main"]["result"]["setup"]
    assert (setup["model"], setup["tokenizer"]) == ("tiny-run", "tiny")
    assert setup["scorer"] == setup["featuriser"] == "tiny"


def command(model, out):
    typed = ["lab", "reproduce", "compression", "--model", model, *OPTIONS, "-o", out]
    return [sys.executable, "-m", "univerb", *map(str, typed)]


@pytest.mark.slow
def test_a_killed_process_continues_and_ends_with_the_same_tables(model, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, part = tmp_path / "whole", tmp_path / "part"
    subprocess.run(command(model, whole), env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        command(model, part), env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    # Killed as soon as something is kept; if it was faster than this loop, it just continues.
    while process.poll() is None:
        if any(path.stat().st_size for path in (part / "cache").glob("*.jsonl")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    process.wait()
    subprocess.run(command(model, part), env=environment, check=True, capture_output=True)
    for name in ("compression.md", "compression.json"):
        assert (part / name).read_text() == (whole / name).read_text()


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
