"""kill -9 at any moment: a run goes on from a whole checkpoint and ends with the same bits."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch
import toy_task
from toy_task import read_log

from univerb.training.snapshots import read_snapshot, snapshot_paths

# For each of these functions, before and after its n-th call.
CALLS = [
    [name, count, after]
    for name, count in (("replace", 1), ("replace", 4), ("fsync", 2), ("fsync", 3), ("fsync", 10))
    for after in (False, True)
]


def crash(folder: Path, moments: list) -> list:
    config = {"steps": 40, "save_every": 2, "validate_every": 10}
    job = {"folder": str(folder), "config": config, "task": {"dropout": 0.2}}
    done = subprocess.run(
        [sys.executable, toy_task.__file__, json.dumps({"job": job, "moments": moments})],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]["reached"]


def test_a_run_that_is_killed_twenty_times_ends_as_if_it_had_not_been(tmp_path):
    draw = random.Random(0)
    moments = [draw.uniform(0.0, 0.15) for _ in CALLS] + CALLS
    draw.shuffle(moments)
    reached = crash(tmp_path / "run", moments)
    steps = [step for _, step in reached]
    assert len(reached) == 20
    assert steps == sorted(steps)
    # Most kills are to meet a run that is not over, or the test shows little.
    assert sum(was_killed and step < 40 for was_killed, step in reached) >= 15, reached
    killed, whole = (
        read_snapshot(snapshot_paths(tmp_path / name)[0]) for name in ("run", "run-warm")
    )
    assert killed.progress == whole.progress
    assert killed.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert torch.equal(killed.tensors[name], tensor), name
    for name in ("net.safetensors", "step"):
        parts = [tmp_path / run / "encoder" / name for run in ("run", "run-warm")]
        assert parts[0].read_bytes() == parts[1].read_bytes()
    kinds = [(line["kind"], line["step"]) for line in read_log(tmp_path / "run")]
    assert [step for kind, step in kinds if kind == "step"] == [*range(1, 41)]
    assert [step for kind, step in kinds if kind == "validation"] == [10, 20, 30, 40]
    assert {p.name for p in (tmp_path / "run").glob(".*")} == {".lock", ".log.jsonl.lock"}
