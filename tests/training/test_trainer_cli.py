"""`univerb train`: what it prints, where it writes, and how it ends."""

import os
import signal
import types

import pytest
import yaml
from toy_task import ToyTask, make_config

from univerb.training import task_factory
from univerb.training.snapshots import snapshot_paths


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A config file, and the toy task in the place of the regime that it names."""
    monkeypatch.chdir(tmp_path)
    made = types.SimpleNamespace(spoil=None)

    def make_task(config, processes, retriever):
        assert retriever is None
        task = ToyTask(processes)
        task.spoil = made.spoil or task.spoil
        return task

    monkeypatch.setattr(task_factory, "make_task", make_task)
    settings = make_config(6, save_every=2, validate_every=3).model_dump(mode="json")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(settings))
    return made


def test_train_says_where_the_encoder_lies_and_how_to_use_it(run, toy, tmp_path):
    ran = run("train", "toy.yaml")
    assert ran.code == 0, ran.err
    assert "finished at step 6; best score" in ran.out
    assert "--model runs/toy/encoder" in ran.out
    assert "validation at step 3: score" in ran.err
    assert "saved runs/toy/step-00000006.safetensors" in ran.err
    names = {path.name for path in (tmp_path / "runs" / "toy").iterdir()}
    assert {"encoder", "log.jsonl", "step-00000006.safetensors"} <= names


def test_an_interrupted_run_says_how_to_go_on_and_does(run, toy, tmp_path):
    def stop(index, loss):
        if index == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    toy.spoil = stop
    ran = run("train", "toy.yaml", "--out", "here")
    assert ran.code == 130
    assert "run the same command again" in ran.out
    toy.spoil = None
    ran = run("train", "toy.yaml", "--out", "here")
    assert ran.code == 0
    assert "resuming after step 3" in ran.err
    ran = run("train", "toy.yaml", "--out", "here", "--fresh", "--threads", "1")
    assert "resuming" not in ran.err
    assert len(snapshot_paths(tmp_path / "here")) == 2


def test_a_dry_run_prints_what_is_needed_and_writes_nothing(run, toy, tmp_path):
    ran = run("train", "toy.yaml", "--dry-run")
    assert ran.code == 0, ran.err
    for part in ("97 parameters train", "rows/s", "for 6 steps", "of memory in each process"):
        assert part in ran.out
    assert [path.name for path in tmp_path.iterdir()] == ["toy.yaml"]


def test_a_bad_setting_is_one_line(run, toy, tmp_path):
    (tmp_path / "bad.yaml").write_text("data: {documents: [a]}\nrun: {steps: 0}\n")
    ran = run("train", "bad.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert "run.steps" in ran.err
    (tmp_path / "file").write_text("")
    assert "cannot write 'file'" in run("train", "toy.yaml", "--out", "file").err
