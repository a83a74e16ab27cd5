"""`univerb lab harness`, as a user types it."""

import functools
import json
import os
import sys
from pathlib import Path

import datasets
import lm_eval.tasks
import pytest
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from conftest import TEXT, saved_encoder
from univerb.cli.lab import harness as cli_harness

TASK = """
task: lease_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.json}}, cache_dir: {folder}/cache}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list: [{{metric: acc}}]
"""
ROW = {"question": "The tenant shall", "choices": ["pay the rent", "give notice"], "label": 0}

OFFLINE = ("UNIVERB_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return saved_encoder(tmp_path_factory.mktemp("harness"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Holds a task, its data and a lease; the harness's own tasks take long to read."""
    few = functools.partial(TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few)
    monkeypatch.setattr(evaluator, "add_env_info", lambda _: None)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    for name in OFFLINE:
        monkeypatch.setenv(name, "0")
    (tmp_path / "data.json").write_text("\n".join([json.dumps(ROW)] * 3))
    (tmp_path / "choice.yaml").write_text(TASK.format(folder=tmp_path))
    (tmp_path / "lease.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def ask(run, folder):
    return functools.partial(run, "lab", "harness", "lease_choice", "--tasks-folder", folder)


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Fail as soon as a model would be loaded."""
    monkeypatch.setattr(cli_harness, "load_model", lambda *_, **__: pytest.fail("it was loaded"))


def test_prints_a_table_or_the_results(ask, model, folder):
    given = ("--docs", folder / "lease.txt", "--phrase-bias", 2, "--limit", 2, "--offline")
    ran = ask("--model", model, *given)
    assert ran.code == 0, ran.err
    header, _, row = ran.out.strip().splitlines()
    assert "Metric" in header and "lease_choice" in row and "acc" in row
    results = ask("--model", model, *given, "--json").json
    assert results["config"]["phrases"] == ["1 documents and phrases"]
    assert results["config"]["phrase_bias"] == 2.0
    assert results["n-samples"]["lease_choice"]["effective"] == 2
    assert "samples" not in results
    assert [os.environ[name] for name in OFFLINE[1:]] == ["1", "1"]


def test_takes_phrases_of_the_context(ask, model):
    ran = ask("--model", model, "--phrases", "context", "--json")
    assert ran.code == 0, ran.err
    config = ran.json["config"]
    assert config["phrases"] == ["context"] and config["univerb_model"] == str(model)
    assert ran.json["n-shot"] == {"lease_choice": 0}
    assert os.environ["HF_DATASETS_OFFLINE"] == "0"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--docs", "nowhere.txt"], "nowhere.txt"),
        (["--phrases", "nowhere.txt"], "nowhere.txt"),
        (["--corpus", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_path_is_said_before_the_model_is_loaded(
    ask, folder, monkeypatch, options, message
):
    monkeypatch.chdir(folder)
    ran = ask(*options)
    assert ran.code == 1 and not ran.out
    [line] = ran.err.strip().splitlines()
    assert line.startswith("error:") and message in line


@pytest.mark.usefixtures("no_model")
def test_a_wrong_task_is_said_before_the_model_is_loaded(run, folder):
    ran = run("lab", "harness", "lease_choise", "--tasks-folder", folder)
    assert ran.code == 1 and "Did you mean 'lease_choice'?" in ran.err
    ran = run("lab", "harness", "lease_choice", "--tasks-folder", folder / "nowhere")
    assert ran.code == 1 and "no folder" in ran.err


def test_other_wrong_options_are_one_line(ask, model, folder):
    ran = ask("--model", model, "--phrase-bias", "5000")
    assert ran.code == 1 and "--phrase-bias is 5000" in ran.err
    ran = ask("--model", model, "--chat")
    assert ran.code == 1 and "no chat template" in ran.err
    (folder / "data.json").unlink()
    ran = ask("--model", model)
    assert ran.code == 1 and "data of lease_choice cannot be read" in ran.err


def test_without_the_harness_say_what_to_install(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    ran = ask()
    assert ran.code == 1 and "pip install " in ran.err and "[harness]'" in ran.err
