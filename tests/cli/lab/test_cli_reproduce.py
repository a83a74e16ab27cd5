"""`univerb lab reproduce` as a user types it: pages on disk, a killed process, bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from conftest import make_llama, make_tokenizer, saved, saved_encoder
from tiny_data import tiny_data
from univerb.lab.protocols.asqa_answers import AsqaProtocol
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.modeling.checkpoint import describe, write_checkpoint
from univerb.modeling.dynamic import DynamicLM

OPTIONS = ("--limit", 20, "--limit-nucleus", 3, "--timed", 0, "--max-tokens", 8, "-k", 3)


def models(encoder):
    """The default featuriser is a package that not every machine has."""
    return "--model", encoder, "--featuriser", encoder.parent / "tiny"


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
    ran = run("lab", "reproduce", "table1", *models(model), *OPTIONS, "-o", out)
    assert ran.code == 0, ran.err
    for text in ("Table 1 of the paper: WikiText-103, greedy", "20.47", "[1] model: tiny here"):
        assert text in ran.out
    assert max(map(len, ran.out.splitlines()[:20])) <= 90
    for suffix in ("md", "json", "tex", "png"):
        assert (out / f"main.{suffix}").stat().st_size > 100
    page = (out / "main.md").read_text()
    for line in (
        "model: tiny here, gpt2 in the paper",
        "data: wikitext-103 test",
        "scorer = generator: yes: the LM judges its own texts",
        "phrases: all n-grams of 2-8 tokens",
    ):
        assert f"- {line}" in page.replace("\\[1\\] ", "")
    assert str(tmp_path) not in page
    assert len(json.loads((out / "main.json").read_text())["result"]["rows"]) == 3
    # The same texts, scored in another precision.
    natural = ("main", "--test-set", "wikitext-natural", "--scorer-dtype", "bfloat16", "--json")
    ran = run("lab", "reproduce", *natural, *models(model), *OPTIONS, "-o", tmp_path / "out")
    half = ran.json["main-wikitext-natural"]["result"]
    single = json.loads((out / "main.json").read_text())["result"]
    assert list(ran.json) == ["main-wikitext-natural"]
    assert half["setup"]["scorer"] == "tiny (bfloat16)" != single["setup"]["scorer"]


def test_options_reach_the_experiment(run, folder, model, tmp_path, monkeypatch):
    seen = {}

    def make_reports(experiment, name, resources):
        seen.update(experiment=experiment, resources=resources)
        return []

    monkeypatch.setattr("univerb.cli.lab.reproduce.make_reports", make_reports)
    plain = ("--bare", folder / "tiny", "--transformer", folder / "tiny", "--training", "wikitext")
    asked = ("--asqa-range", "3-7", "--asqa-documents", 2, "--shots", 0, "--chat", "no")
    phrases = ("--parser", "stanza", "--encode-marker", "--segment", "--stored")
    options = (*plain, *asked, *phrases, "--asqa-file", "mine.json")
    ran = run(
        "lab", "reproduce", "asqa", *models(model), *OPTIONS, *options, "-o", tmp_path / "out"
    )
    assert ran.code == 0, ran.err
    experiment, resources = seen["experiment"], seen["resources"]
    assert (experiment.task.offered, experiment.task.overshoot) == ("stored", "allow")
    assert experiment.training == "wikitext" and experiment.is_tuned
    assert experiment.bare is not experiment.transformer is not None
    assert experiment.scorer.name == "tiny"
    assert (resources.segment, str(resources.asqa_file)) == (True, "mine.json")
    assert resources.asqa == AsqaProtocol(
        first=3,
        last=7,
        documents=2,
        shots=0,
        chat=False,
        parser="stanza",
        encode_marker=True,
        decoding={"mode": "atomic", "segment": True},
    )
    run("lab", "reproduce", "asqa", *models(model), *OPTIONS, "-o", tmp_path / "out")
    assert (seen["resources"].asqa, seen["experiment"].training) == (AsqaProtocol(first=40), "none")
    assert seen["experiment"].task.offered == "all"


def test_every_model_is_loaded_on_the_device_that_was_named(run, model, tmp_path, monkeypatch):
    lm, devices = DynamicLM.from_pretrained(str(model)), []

    def loader(result):
        def load(*arguments, device, **options):
            devices.append(device)
            return result

        return load

    def make_reports(experiment, name, resources):
        resources.entailment(), resources.reader()
        return []

    place = "univerb.cli.lab.reproduce"
    scorer = TextScorer.of(lm)
    loaded = {"model": lm, "scorer": scorer, "featuriser": scorer, "entailment": 0, "reader": 0}
    for name, result in loaded.items():
        monkeypatch.setattr(f"{place}.load_{name}", loader(result))
    monkeypatch.setattr(f"{place}.make_reports", make_reports)
    options = ("--scorer", "x", "--reader", "x", "--bare", "x", "--transformer", "x")
    ran = run("lab", "reproduce", "main", "--device", "cuda:1", *options, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    # Three LMs, and each of the models that score.
    assert devices == ["cuda:1"] * 7


def test_a_trained_lm_is_named_and_does_not_score_itself(run, model, tmp_path):
    lm = DynamicLM.from_pretrained(str(model))
    names = {"name": "tiny-run", "trained_from": lm.model.name_or_path}
    backbone = describe(lm.model, lm.tokenizer).model_copy(update=names)
    trained = tmp_path / "run" / "encoder"
    tuned = saved(trained / "tiny-run", DynamicLM.wrap(make_llama(seed=3), make_tokenizer()))
    write_checkpoint(trained, lm.encoder, backbone, lm.profile)
    options = ("--model", trained, "--featuriser", tuned, *OPTIONS, "--json")
    ran = run("lab", "reproduce", "main", *options, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    result = ran.json["main"]["result"]
    setup = result["setup"]
    assert (setup["model"], setup["tokenizer"], setup["scorer"]) == ("tiny-run", "tiny", "tiny")
    assert (result["facts"]["scorer = generator"], setup["training"]) == ("no", "not said")
    # The LM before its training is known, and is a row.
    names = ["bare LM", "LM trained with phrases, without them"]
    assert [row["name"] for row in result["rows"][:2]] == names


def command(model, out):
    typed = ["lab", "reproduce", "compression", *models(model), *OPTIONS, "-o", out]
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
        (("asqa", "--asqa-file", "nowhere.json"), "'nowhere.json'. Name the file with --asqa-file"),
        (("asqa", "--asqa-range", "40"), "--asqa-range is '40'; give numbers such as 40-199"),
        (("asqa", "--asqa-range", "9" * 5000 + "-"), "give numbers such as 40-199"),
        (("main", "--featuriser", "nowhere/at/all"), "there is no folder 'nowhere/at/all'"),
        (("main", "--transformer", "nowhere/at/all"), "there is no folder 'nowhere/at/all'"),
        (("main", "--test-set", "wikitxt"), "Did you mean 'wikitext'"),
        (("scale-up", "--test-set", "acts"), "Choose of wikitext-cog, wikitext, wikitext-natural"),
        (("main", "--test-set", "lawmt"), "has no test set 'lawmt'"),
    ],
)
def test_bad_input_is_one_line(run, model, tmp_path, arguments, message):
    ran = run("lab", "reproduce", *models(model), *OPTIONS, *arguments, "-o", tmp_path / "out")
    assert ran.code == 1
    assert message in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_a_file_where_the_folder_should_be(run, model, tmp_path):
    (tmp_path / "out").write_text("mine")
    ran = run("lab", "reproduce", "main", *models(model), "-o", tmp_path / "out")
    assert ran.code == 1
    assert "--out" in ran.err
    assert (tmp_path / "out").read_text() == "mine"
