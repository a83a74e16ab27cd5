"""The training loop on a toy task: steps, schedule, resuming, stopping, and what it writes."""

import errno
import json
import math
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from toy_task import SIZE, ToyTask, make_config, read_log

from univerb.errors import CheckpointError, MissingExtra, OptionError, TrainingError
from univerb.training import snapshots, trainer
from univerb.training.callback import Callback
from univerb.training.config import OptimiserConfig
from univerb.training.dry_run import dry_run
from univerb.training.metrics_logger import LOG, MetricsLogger
from univerb.training.processes import Processes
from univerb.training.snapshots import (
    RunProgress,
    Snapshot,
    locked,
    read_newest,
    read_snapshot,
    snapshot_paths,
    write_snapshot,
)
from univerb.training.trainer import SETTINGS, learning_rate, train

ALONE = Processes.single("cpu")


class Watcher(Callback):
    def __init__(self, at=None, action=lambda: None):
        self.warnings, self.starts, self.saves, self.bests = [], [], [], []
        self._at, self._action = at, action

    def on_train_begin(self, step):
        self.starts.append(step)

    def on_step_end(self, step, figures):
        if step == self._at:
            self._action()

    def on_validation(self, step, figures, is_best):
        self.bests += [step] * is_best

    def on_save(self, step, path):
        self.saves.append(step)

    def on_warning(self, message):
        self.warnings.append(message)


def run(folder, steps=8, *, task=None, watcher=None, resume=True, optimiser=None, **how):
    task = task or ToyTask(ALONE, dropout=0.2)
    config = make_config(steps, optimiser, **{"save_every": 2, **how})
    return train(task, config, folder, ALONE, callback=watcher, resume=resume), task


def final(folder):
    return read_snapshot(snapshot_paths(folder)[0]).tensors


def drafts(folder):
    return list(folder.glob(".*.draft"))


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def interrupt():
    os.kill(os.getpid(), signal.SIGTERM)


# What a step computes


@settings(max_examples=40)
@given(st.floats(0, 0.99), st.integers(1, 300), st.floats(1e-6, 1.0, allow_subnormal=False))
def test_the_rate_rises_in_a_line_and_falls_to_nothing(warmup, steps, peak):
    optimiser = OptimiserConfig(rate=peak, warmup=warmup)
    rates = [learning_rate(optimiser, step, steps) for step in range(steps)]
    rising = math.ceil(warmup * steps)
    assert max(rates) == pytest.approx(peak)
    assert rates[:rising] == pytest.approx([peak * i / rising for i in range(1, rising + 1)])
    falls = [*rates[rising:], 0.0]
    steps_down = [a - b for a, b in zip(falls, falls[1:], strict=False)]
    assert steps_down == pytest.approx([peak / max(steps - rising, 1)] * (steps - rising))


@pytest.mark.parametrize("small_scale", [1.0, 7.0])
def test_a_run_equals_a_direct_loop_over_adamw(tmp_path, small_scale):
    optimiser = {"weight_decay": 0.1, "clip": 0.3, "small_scale": small_scale}
    config = make_config(6, optimiser, save_every=6)
    train(ToyTask(ALONE), config, tmp_path, ALONE)

    task = ToyTask(ALONE)
    task.net.train()
    parameters = [p for p in task.net.parameters() if p.requires_grad]
    small = [p for p in parameters if p.numel() <= 16]
    assert 0 < len(small) < len(parameters)
    large = [p for p in parameters if p.numel() > 16]
    direct = torch.optim.AdamW([{"params": small}, {"params": large}], weight_decay=0.1)
    for step in range(6):
        direct.zero_grad()
        for place in range(2):
            (task.loss(2 * step + place).total / 2).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.3)
        for group, scale in zip(direct.param_groups, (small_scale, 1.0), strict=True):
            group["lr"] = scale * learning_rate(config.optimiser, step, 6)
        direct.step()
    found = final(tmp_path)
    for name, parameter in task.net.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[f"parameter.net.{name}"], parameter.detach())
    assert "parameter.net.frozen" not in found
    assert "step.net.never" not in found


def test_micro_batches_are_counted_from_the_start_of_the_run(tmp_path):
    _, task = run(tmp_path, 6, accumulate=3, watcher=Watcher(4, interrupt))
    _, again = run(tmp_path, 6, accumulate=3)
    assert task.indices == [*range(15)]
    assert again.indices == [15, 16, 17]


def test_dropout_is_on_in_training_and_off_in_validation(tmp_path):
    seen = []

    class Task(ToyTask):
        def loss(self, index):
            seen.append(self.net.training)
            return super().loss(index)

        def validate(self):
            assert not torch.is_grad_enabled()
            seen.append(self.net.training)
            return super().validate()

    run(tmp_path, 2, task=Task(ALONE), accumulate=1, validate_every=1)
    assert seen == [True, False, True, False]


def test_bfloat16_is_autocast(tmp_path):
    dtypes = []

    class Task(ToyTask):
        def loss(self, index):
            dtypes.append((torch.ones(2, SIZE) @ torch.ones(SIZE, 2)).dtype)
            return super().loss(index)

    for dtype in ("bfloat16", "float32"):
        run(tmp_path / dtype, 1, task=Task(ALONE), accumulate=1, dtype=dtype)
    assert dtypes == [torch.bfloat16, torch.float32]


def test_a_task_in_which_nothing_trains_is_refused(tmp_path):
    task = ToyTask(ALONE)
    task.net.requires_grad_(False)
    with pytest.raises(OptionError, match="nothing in the model trains"):
        run(tmp_path, task=task)


# Stopping and going on


def test_a_run_that_was_interrupted_goes_on_bit_for_bit(tmp_path):
    run(tmp_path / "whole", 9, validate_every=3)
    result, _ = run(tmp_path / "cut", 9, watcher=Watcher(3, interrupt), validate_every=3)
    assert (result.step, result.reason) == (4, "interrupted")
    watcher = Watcher()
    result, _ = run(tmp_path / "cut", 9, watcher=watcher, validate_every=3)
    assert (watcher.starts, result.reason) == ([4], "finished")
    assert_equal(final(tmp_path / "cut"), final(tmp_path / "whole"))


def test_how_often_a_run_saves_and_validates_changes_nothing_and_may_change(tmp_path):
    run(tmp_path / "often", 9, validate_every=1, save_every=1)
    run(tmp_path / "seldom", 9, validate_every=7, save_every=4, watcher=Watcher(4, interrupt))
    run(tmp_path / "seldom", 9, validate_every=2, save_every=3, keep=4)
    assert_equal(final(tmp_path / "often"), final(tmp_path / "seldom"))


def test_sigint_is_noted_and_the_usual_handlers_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    result, _ = run(tmp_path, watcher=Watcher(1, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert result.reason == "interrupted"
    assert result.export.is_dir()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, watcher=Watcher(3, twice))
    assert [p.name for p in snapshot_paths(tmp_path)] == ["step-00000002.safetensors"]


def test_a_finished_run_is_not_run_again(tmp_path):
    run(tmp_path, 4)
    before = (tmp_path / LOG).read_bytes()
    result, task = run(tmp_path, 4)
    assert (result.step, result.reason, task.indices) == (4, "finished", [])
    assert (tmp_path / LOG).read_bytes() == before


def test_a_fresh_run_forgets_what_was_there(tmp_path):
    run(tmp_path, 6)
    result, task = run(tmp_path, 3, resume=False)
    assert (result.step, task.indices) == (3, [*range(6)])
    assert [line["step"] for line in read_log(tmp_path) if line["kind"] == "step"] == [1, 2, 3]
    assert [p.name for p in snapshot_paths(tmp_path)][0] == "step-00000003.safetensors"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"steps": 9}, "run.steps"),
        ({"seed": 1}, "run.seed"),
        ({"optimiser": {"rate": 0.01}}, "optimiser.rate"),
        ({"accumulate": 1}, "run.accumulate"),
    ],
)
def test_a_run_does_not_go_on_with_settings_that_change_it(tmp_path, change, key):
    run(tmp_path, 8, watcher=Watcher(2, interrupt))
    with pytest.raises(CheckpointError, match=rf"{key} = .* not .*--fresh"):
        run(tmp_path, **change)


def test_early_stop_keeps_the_best(tmp_path):
    task = ToyTask(ALONE)
    task.scores = [3.0, 1.0, 2.0, math.nan, 0.5]
    watcher = Watcher()
    result, _ = run(tmp_path, 20, task=task, watcher=watcher, validate_every=2, patience=2)
    assert (result.reason, result.step) == ("stopped early", 8)
    assert (result.best_step, result.best_score, watcher.bests) == (4, 1.0, [2, 4])
    assert (result.export / "step").read_text() == "4"
    # It stays stopped.
    result, task = run(tmp_path, 20, validate_every=2, patience=2)
    assert (result.reason, task.indices, result.best_step) == ("stopped early", [], 4)


def test_patience_is_remembered_over_a_restart(tmp_path):
    first, second = ToyTask(ALONE), ToyTask(ALONE)
    first.scores, second.scores = [1.0, 2.0], [3.0, 4.0]
    how = {"validate_every": 1, "patience": 2, "save_every": 1}
    run(tmp_path, 9, task=first, watcher=Watcher(1, interrupt), **how)
    result, _ = run(tmp_path, 9, task=second, **how)
    assert (result.reason, result.step, result.best_step) == ("stopped early", 3, 1)


def test_without_a_score_the_last_step_is_exported(tmp_path):
    class Task(ToyTask):
        def validate(self):
            return {}

    result, task = run(tmp_path, 4, task=Task(ALONE), patience=1, validate_every=1)
    assert (result.step, result.best_step) == (4, None)
    weights = load_file(result.export / "net.safetensors")
    assert torch.equal(weights["head.weight"], task.net.head.weight)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_and_spoils_nothing(tmp_path, value):
    task = ToyTask(ALONE)
    task.spoil = lambda index, loss: loss * value if index == 9 else loss
    with pytest.raises(TrainingError, match=r"loss is (nan|inf|-inf) at step 5\b.*optimiser.rate"):
        run(tmp_path, task=task)
    snapshot = read_snapshot(snapshot_paths(tmp_path)[0])
    assert snapshot.progress.step == 4
    assert all(t.isfinite().all() for t in snapshot.tensors.values() if t.is_floating_point())


def test_a_gradient_that_is_no_number_ends_the_run(tmp_path):
    task = ToyTask(ALONE)
    # The root of nothing is nothing, but its slope is infinite.
    task.spoil = lambda index, loss: loss + (task.net.bias - task.net.bias.detach()).abs().sqrt()
    with pytest.raises(TrainingError, match=r"norm of the gradient is \w+ at step 1\b"):
        run(tmp_path, task=task)


# What it writes


def test_the_log_has_each_step_once_however_the_run_went(tmp_path):
    run(tmp_path, 7, watcher=Watcher(3, interrupt), validate_every=3)
    with (tmp_path / LOG).open("a") as log:
        log.write('{"kind": "step", "step": 5, "loss": 1.0}\n{"kind": "st')
    run(tmp_path, 7, validate_every=3)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [*range(1, 8)]
    wanted = {"loss", "error", "rate", "grad_norm", "rows_per_second", "seconds"}
    assert all(wanted <= line.keys() for line in steps)
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [3, 6, 7]


def test_a_term_of_some_micro_batches_is_the_mean_over_those(tmp_path):
    run(tmp_path, 2, task=ToyTask(ALONE))
    task, values = ToyTask(ALONE), []
    for index in range(2):
        values.append(task.loss(index).terms.get("extra"))
    assert values[1] is None
    assert read_log(tmp_path)[0]["extra"] == pytest.approx(values[0], rel=1e-6)


def test_figures_that_are_no_numbers_are_null_in_the_log(tmp_path):
    with MetricsLogger(tmp_path, 0) as journal:
        journal.write("validation", 1, {"score": math.nan, "bits": 1.5})
    line = (tmp_path / LOG).read_text()
    assert json.loads(line) == {"kind": "validation", "step": 1, "score": None, "bits": 1.5}


def test_tensorboard_is_written_if_it_is_there(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    run(tmp_path / "with", 2, tensorboard=True)
    assert any((tmp_path / "with" / "tensorboard").iterdir())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"univerb\[train\]"):
        run(tmp_path / "without", 2, tensorboard=True)


def test_a_dry_run_tells_what_the_run_needs_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make_config(1000)
    needs = dry_run(ToyTask(ALONE), config, ALONE)
    assert needs.trainable == 2 * (SIZE * SIZE + SIZE) + SIZE + 1 + 3 + 2 + 1
    assert needs.rows_per_second > 0
    assert needs.run_seconds == pytest.approx(1000 * needs.step_seconds)
    assert needs.peak_bytes > 1 << 20
    assert not any(tmp_path.iterdir())
    run(tmp_path / "run", 2)
    size = snapshot_paths(tmp_path / "run")[0].stat().st_size
    assert needs.snapshot_bytes < size < needs.snapshot_bytes + 8192


# Checkpoints


def test_only_so_many_checkpoints_stay(tmp_path):
    run(tmp_path, 9, keep=3)
    assert [int(p.name[5:13]) for p in snapshot_paths(tmp_path)] == [9, 8, 6]
    names = {p.name for p in tmp_path.iterdir()}
    assert names - {p.name for p in snapshot_paths(tmp_path)} == {
        ".lock",
        f".{LOG}.lock",
        LOG,
        SETTINGS,
        "encoder",
    }


def some(step=1):
    tensors = {
        "a": torch.randn(5, 3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.5),
        "bits": torch.tensor([True, False]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    config = make_config().model_dump(mode="json")
    return Snapshot(RunProgress(step, 0.25, 1, 2), tensors, config)


def test_a_snapshot_comes_back_as_it_was(tmp_path):
    saved = some()
    read = read_snapshot(write_snapshot(tmp_path, saved, 1))
    assert (read.progress, read.config) == (saved.progress, saved.config)
    assert_equal(read.tensors, saved.tensors)


def test_a_snapshot_is_on_the_disk_before_an_older_one_is_deleted(tmp_path, monkeypatch):
    """First its content, then its name, then the name's folder: power may fail between any two."""
    old = write_snapshot(tmp_path, some(1), 1)
    events, fsync, replace, unlink = [], os.fsync, os.replace, Path.unlink

    def synced(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(("sync", path.name, path.stat().st_size if path.is_file() else 0))
        fsync(descriptor)

    def replaced(draft, path):
        events.append(("rename", Path(draft).name, Path(draft).stat().st_size))
        replace(draft, path)

    def deleted(path, **how):
        events.append(("delete", path.name, 0))
        unlink(path, **how)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(Path, "unlink", deleted)
    new = write_snapshot(tmp_path, some(2), 1)
    size, draft = new.stat().st_size, events[0][1]
    assert draft.startswith(f".{new.name}.")
    assert events == [
        ("sync", draft, size),
        ("rename", draft, size),
        ("sync", tmp_path.name, 0),
        ("delete", old.name, 0),
    ]


@settings(max_examples=40)
@given(st.data())
def test_no_byte_of_a_snapshot_changes_unnoticed(data):
    with tempfile.TemporaryDirectory() as folder:
        path = write_snapshot(Path(folder), some(), 1)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[place:]
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            read_snapshot(path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    run(tmp_path / "whole", 8)
    folder = tmp_path / "cut"
    run(folder, 8, watcher=Watcher(5, interrupt))
    newest = snapshot_paths(folder)[0]
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    watcher = Watcher()
    run(folder, 8, watcher=watcher)
    assert watcher.starts == [4]
    assert len(watcher.warnings) == 1
    assert newest.name in watcher.warnings[0]
    assert_equal(final(folder), final(tmp_path / "whole"))


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over_unasked(tmp_path):
    run(tmp_path, 6, watcher=Watcher(3, interrupt))
    for path in snapshot_paths(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="--fresh"):
        run(tmp_path, 6)
    result, _ = run(tmp_path, 6, resume=False)
    assert result.step == 6


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_is_a_clear_error_and_keeps_what_was_there(tmp_path, monkeypatch, name):
    run(tmp_path, 8, watcher=Watcher(3, interrupt), validate_every=100)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(CheckpointError, match=r"(?i)no space left.*make room"):
            run(tmp_path, 8, validate_every=100)
    assert not drafts(tmp_path)
    assert read_newest(tmp_path, pytest.fail).progress.step == 4
    result, _ = run(tmp_path, 8, validate_every=100)
    assert result.reason == "finished"


def test_a_file_that_the_system_cuts_short_is_not_taken_for_a_checkpoint(tmp_path):
    write_snapshot(tmp_path, some(1), 2)
    large = Snapshot(RunProgress(2), {"a": torch.zeros(100_000)}, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"step-00000002.*too large"):
            write_snapshot(tmp_path, large, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    assert read_newest(tmp_path, pytest.fail).progress.step == 1


def test_a_folder_that_cannot_be_written_is_a_clear_error():
    # Below the temporary folder itself: a user without rights has to reach it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, 4, watcher=Watcher(1, interrupt), validate_every=100)
        kept = {path: path.read_bytes() for path in snapshot_paths(folder)}
        os.chmod(folder, 0o555)
        for path in folder.rglob("*"):
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65534)
            for resume in (True, False):
                with pytest.raises(CheckpointError, match=r"cannot write.*denied.*can be written"):
                    run(folder, 4, resume=resume, validate_every=100)
        finally:
            if is_root:
                os.seteuid(0)
            os.chmod(folder, 0o755)
        assert {path: path.read_bytes() for path in snapshot_paths(folder)} == kept
    with pytest.raises(CheckpointError, match="cannot write"):
        run(Path(os.devnull) / "run")


def test_two_runs_do_not_share_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(CheckpointError, match="another run"):
        run(tmp_path)
    run(tmp_path, 2)


def test_what_a_killed_run_left_is_cleared(tmp_path):
    (tmp_path / ".encoder.0123.draft").mkdir()
    (tmp_path / ".step-00000001.safetensors.0123.draft").write_text("half")
    with locked(tmp_path):
        assert not drafts(tmp_path)


def test_an_export_that_fails_leaves_the_one_before(tmp_path):
    class Task(ToyTask):
        def export(self, folder, step):
            super().export(folder, step)
            if step == 4:
                raise OSError(errno.ENOSPC, "No space left on device")

    task = Task(ALONE)
    task.scores = [2.0, 1.0]
    with pytest.raises(CheckpointError, match="No space left"):
        run(tmp_path, 6, task=task, validate_every=2)
    assert (tmp_path / trainer.EXPORT / "step").read_text() == "2"
    assert not drafts(tmp_path)


def test_settings_of_a_newer_checkpoint_and_of_an_older_one(tmp_path):
    config = make_config()
    saved = config.model_dump(mode="json")
    # An older univerb did not know a setting yet: it had what is now the default.
    del saved["losses"]["detach"]
    snapshots.check_same(saved, config)
    saved["losses"]["unheard"] = 1
    with pytest.raises(CheckpointError, match=r"losses\.unheard"):
        snapshots.check_same(saved, config)
