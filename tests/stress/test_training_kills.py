"""A training run that is killed many times, each time at another moment, loses nothing."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "training"))

from test_training_processes import assert_equal, start
from tiny_world import make_world, write_config
from toy_task import read_log

pytestmark = pytest.mark.stress

STEPS, SAVES = 20, 5
KINDS = ["in-batch", "pre-batch", "prefixes", "self-retrieval", "generation"]
# GPT-2 has dropout, pre-batch negatives have a state, options are drawn: all must come again.
REGIMES = {
    "full": (50, {"negatives": {"kinds": KINDS}}),
    "frozen": (20, {"frozen": {"max_options": 2, "keep_groups": 1}}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_kills_of_a_run_leave_complete_checkpoints_and_end_with_the_same_bits(tmp_path, regime):
    world = make_world(tmp_path)
    kills, sections = REGIMES[regime]
    run = {"steps": STEPS, "save_every": SAVES, "validate_every": 10, "batch": 2, "accumulate": 1}
    write_config(world, "run", model="gpt2", regime=regime, run=run, **sections)
    draw = random.Random(0)
    moments = [draw.random() for _ in range(kills)]
    job = {"command": ["train", "run.yaml"], "out": "killed", "moments": moments}
    [reached] = start(world, [job])
    ends = [[code, again] for code, _, again in reached]
    assert ends.count([-9, 0]) >= kills // 2, ends  # the others were over before they were killed
    assert {tuple(end) for end in ends} <= {(-9, 0), (0, 0)}
    steps = [max(saved, default=0) for _, saved, _ in reached]
    assert all(step % SAVES == 0 for step in steps) and len(set(steps)) > 2, steps
    for number in range(kills):
        folder = world / f"killed-{number}"
        assert_equal(folder, world / "killed-whole")
        logged = [line["step"] for line in read_log(folder) if line["kind"] == "step"]
        assert logged == [*range(1, STEPS + 1)]
        assert not list(folder.glob(".*.draft"))
