"""Two real processes: they compute what one computes, shard, stop together and go on."""

import json
import os
import subprocess
import sys

import pytest
import torch
import toy_task
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from toy_task import ToyTask, make_config, read_log

from univerb.errors import OptionError
from univerb.training.processes import Processes
from univerb.training.snapshots import read_snapshot, snapshot_paths
from univerb.training.trainer import Trainer, train

ALONE = Processes.single("cpu")
CONFIG = {
    "steps": 8,
    "accumulate": 3,
    "save_every": 3,
    "validate_every": 4,
    "optimiser": {"clip": 0.5, "weight_decay": 0.01},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Several runs by two processes, one after the other, so that they start only once."""
    folder = tmp_path_factory.mktemp("two")
    ddp, fsdp = CONFIG | {"parallel": "ddp"}, CONFIG | {"parallel": "fsdp"}
    # In the 13th micro-batch, which is in step 5, one of the processes is asked to stop.
    jobs = [
        {"folder": str(folder / "ddp"), "config": ddp},
        {"folder": str(folder / "fsdp"), "config": fsdp, "stop": (0, 12)},
        {"folder": str(folder / "fsdp"), "config": fsdp},
        {"folder": str(folder / "cut"), "config": ddp, "stop": (1, 12)},
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", toy_task.__file__, json.dumps({"jobs": jobs})],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train(ToyTask(ALONE), make_config(**CONFIG), folder, ALONE)
    return folder


def final(folder):
    tensors = read_snapshot(snapshot_paths(folder)[0]).tensors
    return {n: t for n, t in tensors.items() if not n.startswith("random")}


def assert_close(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_compute_what_one_computes(two, one, parallel):
    folder, _ = two
    assert_close(final(folder / parallel), final(one))
    export = "encoder/net.safetensors"
    assert_close(load_file(folder / parallel / export), load_file(one / export))
    figures = ("loss", "error", "extra", "grad_norm", "rate", "score")
    for ours, theirs in zip(read_log(folder / parallel), read_log(one), strict=True):
        assert ours["step"] == theirs["step"]
        for name in figures:
            assert ours.get(name) == pytest.approx(theirs.get(name), abs=1e-5)


def test_processes_stop_together_when_one_is_asked_to(two):
    reasons = [(answer["step"], answer["reason"]) for answer in two[1]]
    assert reasons == [(8, "finished"), (5, "interrupted"), (8, "finished"), (5, "interrupted")]


def test_one_process_goes_on_where_two_stopped(two, one):
    folder = two[0] / "cut"
    result = train(ToyTask(ALONE), make_config(**CONFIG), folder, ALONE)
    assert result.reason == "finished"
    assert_close(final(folder), final(one))


def test_dropout_is_a_function_of_seed_micro_batch_and_process():
    def loss(index, seed=0, rank=0):
        processes = Processes(rank, 1, torch.device("cpu"))
        trainer = Trainer(ToyTask(ALONE, dropout=0.5), make_config(seed=seed), processes)
        torch.rand(index)
        return trainer.micro_batch(index, is_last=True)["loss"]

    assert loss(3) == loss(3)
    assert len({loss(3), loss(3, seed=1), loss(3, rank=1)}) == 3


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_follow_each_other_and_differ_by_at_most_one(n, size):
    parts = [Processes(rank, size, torch.device("cpu")).share(n) for rank in range(size)]
    assert [i for part in parts for i in part] == [*range(n)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_single_process_exchanges_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(toy_task.torch, "distributed", None)
    alone = Processes.from_environment()
    rows = torch.ones(2, 3)
    assert alone.gather(rows) is rows
    assert alone.all_reduce({"a": 1.0}) == alone.broadcast({"a": 1.0}) == {"a": 1.0}
    alone.barrier()
    alone.close()


def test_a_gpu_is_left_alone_where_the_cpu_is_asked_for(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Processes.from_environment().device.type == "cuda"
    assert Processes.from_environment(on_cpu=True).device.type == "cpu"


def test_a_process_without_work_says_so(tmp_path):
    task = ToyTask(ALONE)
    task.spoil = lambda _, loss: loss.detach()
    with pytest.raises(OptionError, match=r"process 0.*run\.batch"):
        train(task, make_config(), tmp_path, ALONE)
