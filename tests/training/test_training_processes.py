"""Real processes: two compute what one computes, killed runs end as if they had not been killed."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import train_jobs
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_world import generates, make_world, write_config
from toy_task import ToyTask, make_config, read_log

from univerb.errors import CheckpointError, OptionError
from univerb.modeling.card import read_card
from univerb.modeling.dynamic import DynamicLM
from univerb.training.processes import Processes
from univerb.training.snapshots import read_snapshot, snapshot_paths
from univerb.training.trainer import Trainer, train

# Generous: a start of torch and transformers takes long where other tests run beside it.
pytestmark = pytest.mark.slow

ALONE = Processes.single("cpu")
KINDS = ["in-batch", "pre-batch", "prefixes", "self-retrieval", "generation"]
# Dropout draws other masks for another number of processes.
SHARED = {
    # A bias so high that phrases fire: what is counted then is compared, too.
    "frozen": {"encoder": {"bias": 3.0, "query": 4}},
    "full": {"regime": "full", "negatives": {"kinds": KINDS}},
    "lora": {
        "regime": "lora",
        "negatives": {"kinds": KINDS},
        "lora": {"dropout": 0.0},
        "encoder": {"heads": "tied", "dropout": 0.0},
    },
}
# GPT-2 has dropout: what it draws must come again.
CUT = {
    "cut-frozen": {"model": "gpt2", "frozen": {"max_options": 2, "keep_groups": 1}},
    "cut-lora": {"model": "gpt2", "regime": "lora", "negatives": {"kinds": KINDS}},
}
TOY = {
    "steps": 8,
    "accumulate": 3,
    "save_every": 3,
    "validate_every": 4,
    "optimiser": {"clip": 0.5, "weight_decay": 0.01},
}
CRASHED = {"steps": 30, "save_every": 2, "validate_every": 10}
# A few moments of a run, and before and after the n-th call of functions of `os`.
MOMENTS = [0.02, 0.1, 0.2]
CALLS = [["replace", 1, False], ["replace", 4, True], ["fsync", 3, True], ["fsync", 10, False]]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("world"))
    for name, sections in (SHARED | CUT).items():
        write_config(folder, name, **sections)
    write_config(folder, "fsdp", model="gpt2", regime="full", run={"steps": 2, "parallel": "fsdp"})
    return folder


def start(world: Path, jobs: list, processes: int = 1) -> list:
    """Run jobs in processes of their own, and return how each ended."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [
            sys.executable,
            *(launch if processes > 1 else []),
            *(train_jobs.__file__, json.dumps(jobs)),
        ],
        capture_output=True,
        cwd=world,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(world / "cache")},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def job(name: str, out: str, **more) -> dict:
    return {"command": ["train", f"{name}.yaml", "--out", out], **more}


@pytest.fixture(scope="module")
def one(world) -> tuple[Path, list]:
    """Runs by one process: whole ones, interrupted ones, and one that is killed often."""
    moments = [*MOMENTS, *CALLS]
    random.Random(0).shuffle(moments)
    toy = {"folder": "crashed", "config": CRASHED, "task": {"dropout": 0.2}}
    jobs = [{"toy": {"folder": "one-toy", "config": TOY}}, {"crash": toy, "moments": moments}]
    jobs += [job(name, f"one-{name}") for name in (*SHARED, *CUT)]
    for name in CUT:
        jobs += [job(name, name, signal="SIGTERM", at=2), job(name, name, signal="SIGKILL", at=5)]
        jobs.append(job(name, name))
    answers = start(world, jobs)
    assert answers[2:] == [0, 0, 0, 0, 0, *[130, -9, 0] * 2]
    return world, answers[1]


@pytest.fixture(scope="module")
def two(world) -> tuple[Path, list]:
    """Runs by two processes."""
    ddp, fsdp = TOY | {"parallel": "ddp"}, TOY | {"parallel": "fsdp"}
    # In the 13th micro-batch, which is in step 5, one of the processes is asked to stop.
    jobs = [
        {"toy": {"folder": "toy-ddp", "config": ddp}},
        {"toy": {"folder": "toy-fsdp", "config": fsdp, "stop": (0, 12)}},
        {"toy": {"folder": "toy-fsdp", "config": fsdp}},
        {"toy": {"folder": "toy-cut", "config": ddp, "stop": (1, 12)}},
        *(job(name, f"two-{name}") for name in SHARED),
        job("fsdp", "fsdp"),
    ]
    answers = start(world, jobs, processes=2)
    assert answers[4:] == [0, 0, 0, 0]
    return world, answers[:4]


def exported(run: Path) -> dict[str, torch.Tensor]:
    """Return all weights that users load."""
    files = sorted((run / "encoder").rglob("*.safetensors"))
    return {f"{f.name}.{name}": t for f in files for name, t in load_file(f).items()}


def assert_close(ours: Path, theirs: Path) -> None:
    """Compare what two runs computed: checkpoint, export and log."""
    for read in (lambda run: read_snapshot(snapshot_paths(run)[0]).tensors, exported):
        left, right = read(ours), read(theirs)
        assert left.keys() == right.keys()
        for name, tensor in right.items():
            torch.testing.assert_close(left[name], tensor, atol=1e-5, rtol=0, msg=name)
    for line, other in zip(read_log(ours), read_log(theirs), strict=True):
        assert (line["kind"], line["step"]) == (other["kind"], other["step"])
        for name in line.keys() - {"kind", "seconds", "rows_per_second"}:
            assert line[name] == pytest.approx(other[name], abs=1e-5, rel=1e-5), name


def assert_equal(ours: Path, theirs: Path) -> None:
    """Compare bit for bit."""
    left, right = (read_snapshot(snapshot_paths(run)[0]) for run in (ours, theirs))
    assert left.progress == right.progress
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in right.tensors.items():
        assert torch.equal(left.tensors[name], tensor), name
    weights = exported(theirs)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in exported(ours).items())


# Two processes


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_compute_what_one_computes(one, two, parallel):
    assert_close(two[0] / f"toy-{parallel}", one[0] / "one-toy")


def test_processes_stop_together_and_one_process_resumes_where_two_stopped(one, two):
    folder, ends = two
    assert ends == [[8, "finished"], [5, "interrupted"], [8, "finished"], [5, "interrupted"]]
    result = train(ToyTask(ALONE), make_config(**TOY), folder / "toy-cut", ALONE)
    assert result.reason == "finished"
    assert_close(folder / "toy-cut", one[0] / "one-toy")


@pytest.mark.parametrize("regime", SHARED)
def test_two_processes_train_what_one_trains(one, two, regime):
    assert_close(two[0] / f"two-{regime}", one[0] / f"one-{regime}")
    if regime == "frozen":
        log = read_log(two[0] / "two-frozen")
        assert all(line["saved"] > 0 for line in log)


def test_a_sharded_run_exports_what_users_load(run, two):
    folder = two[0] / "fsdp"
    assert [line["step"] for line in read_log(folder) if line["kind"] == "step"] == [1, 2]
    lm = DynamicLM.from_pretrained(str(folder / "encoder"))
    # Tied weights were shown to the writer as two tensors.
    assert lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight
    assert generates(run, two[0], folder / "encoder")


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


def test_a_single_process_exchanges_nothing_and_leaves_a_gpu_alone_if_asked(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Processes.from_environment().device.type == "cuda"
    alone = Processes.from_environment(on_cpu=True)
    assert alone.device.type == "cpu"
    rows = torch.ones(2, 3)
    assert alone.gather(rows) is rows
    assert alone.all_reduce({"a": 1.0}) == alone.broadcast({"a": 1.0}) == {"a": 1.0}
    alone.barrier()
    alone.close()


def test_a_process_without_work_says_so(tmp_path):
    task = ToyTask(ALONE)
    task.spoil = lambda _, loss: loss.detach()
    with pytest.raises(OptionError, match=r"process 0.*run\.batch"):
        train(task, make_config(), tmp_path, ALONE)


# kill -9


def test_a_run_that_is_killed_often_ends_as_if_it_had_not_been(one):
    folder, reached = one
    steps = [step for _, step in reached]
    assert len(steps) == len(MOMENTS) + len(CALLS) and steps == sorted(steps)
    # Most kills are to meet a run that is not over, or the test shows little.
    assert sum(code == -9 and step < CRASHED["steps"] for code, step in reached) >= 5, reached
    assert_equal(folder / "crashed", folder / "crashed-whole")
    kinds = [(line["kind"], line["step"]) for line in read_log(folder / "crashed")]
    assert [step for kind, step in kinds if kind == "step"] == [*range(1, 31)]
    assert [step for kind, step in kinds if kind == "validation"] == [10, 20, 30]
    hidden = {path.name for path in (folder / "crashed").glob(".*")}
    assert hidden == {".lock", ".log.jsonl.lock"}


@pytest.mark.parametrize("name", CUT)
def test_an_interrupted_run_ends_with_the_same_bits(one, name):
    folder = one[0]
    assert_equal(folder / name, folder / f"one-{name}")
    log = read_log(folder / name)
    assert [line["step"] for line in log if line["kind"] == "step"] == [1, 2, 3, 4]


# What users load


def test_a_trained_lm_is_found_where_its_folder_is(run, one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = one[0]
    moved = shutil.copytree(world / "one-full" / "encoder", tmp_path / "elsewhere")
    backbone = read_card(moved).backbone
    assert (backbone.name, backbone.trained_from) == ("llama-one-full", str(world / "llama"))
    lm = DynamicLM.from_pretrained("elsewhere")
    assert (lm.is_trained, lm.profile.mode) == (True, "atomic")
    before = DynamicLM.from_pretrained(str(world / "llama")).model.state_dict()
    after = lm.model.state_dict()
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    for name, tensor in load_file(moved / backbone.name / "model.safetensors").items():
        assert torch.equal(after[name], tensor)
    assert generates(run, world, moved)


def test_an_adapter_is_added_when_asked_for(run, one, tmp_path, monkeypatch):
    # The backbone was named by a relative path; the encoder is used from another folder.
    monkeypatch.chdir(tmp_path)
    world = one[0]
    folder = str(world / "one-lora" / "encoder")
    bare, adapted = (DynamicLM.from_pretrained(folder, adapter=has) for has in (False, True))
    assert adapted.profile.mode == "atomic"
    plain = DynamicLM.from_pretrained(str(world / "llama")).model.state_dict()
    assert all(torch.equal(bare.model.state_dict()[name], t) for name, t in plain.items())
    changed = [n for n, t in plain.items() if not torch.equal(adapted.model.state_dict()[n], t)]
    assert changed and not any("embed" in name or "lm_head" in name for name in changed)
    assert generates(run, world, Path(folder), "--adapter")
    for _ in range(2):  # the second time over what the first one saved
        adapted.save_pretrained(tmp_path / "again")
    again = DynamicLM.from_pretrained(str(tmp_path / "again"), adapter=True)
    again.save_pretrained(tmp_path / "again")
    assert again.profile == adapted.profile
    for name, tensor in adapted.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    assert DynamicLM.from_pretrained(str(tmp_path / "again")).profile == bare.profile
    with pytest.raises(CheckpointError, match="no adapter/ beside the encoder.*regime: lora"):
        DynamicLM.from_pretrained(str(world / "one-frozen" / "encoder"), adapter=True)


def test_a_run_from_an_encoder_counts_its_steps(run, one, monkeypatch):
    world = one[0]
    monkeypatch.chdir(world)
    trained = DynamicLM.from_pretrained(str(world / "one-frozen" / "encoder"))
    assert trained.is_trained
    # Not decoded as an untrained one.
    assert (trained.profile.mode, trained.profile.phrase_bias) == ("unfold", 0.0)
    start_from = {"encoder_from": "one-frozen/encoder", "regime": "lora", "run": {"steps": 1}}
    start_from |= {"losses": {"phrase": 0}, "negatives": {"kinds": ["in-batch"]}}
    name = write_config(world, "on", samples={"positions": "token"}, **start_from)
    ran = run("train", name, "--out", "on")
    assert ran.code == 0, ran.err
    card, before = (read_card(world / name / "encoder") for name in ("on", "one-frozen"))
    assert card.encoder.trained_steps == before.encoder.trained_steps + 1 > 1
    assert (card.profile.mode, card.profile.positions) == ("unfold", "token")


def test_damaged_checkpoints_are_one_clear_line(run, one, tmp_path, monkeypatch):
    monkeypatch.chdir(one[0])
    folder = shutil.copytree(one[0] / "one-frozen", tmp_path / "other")
    newest, *_ = snapshot_paths(folder)
    newest.write_bytes(newest.read_bytes()[:-7])
    ran = run("train", "frozen.yaml", "--out", folder)
    assert ran.code == 0
    assert f"{newest.name}' is damaged" in ran.err
    for snapshot in snapshot_paths(folder):
        snapshot.write_bytes(b"no checkpoint")
    ran = run("train", "frozen.yaml", "--out", folder)
    assert ran.code == 1 and "all 2 checkpoints in" in ran.err and "--fresh" in ran.err
