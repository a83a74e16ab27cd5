"""Training runs side by side: what is read from their folders, and what the table says."""

import json
from pathlib import Path

import pytest
import yaml

from univerb.errors import CheckpointError
from univerb.lab.runs import RunsReport, read_run

SETTINGS = {"regime": "frozen", "frozen": {"unit_price": 0.5}, "run": {"steps": 3, "keep": 2}}


def write_run(folder: Path, gains: list[float | None], **sections) -> Path:
    folder.mkdir()
    settings = {name: values | sections.get(name, {}) if isinstance(values, dict) else values
                for name, values in SETTINGS.items()}  # fmt: skip
    (folder / "training.yaml").write_text(yaml.safe_dump(settings))
    entries = []
    for step, gain in enumerate(gains, start=1):
        entries.append({"kind": "step", "step": step, "seconds": 1800.0, "rows_per_second": 2.0})
        entries.append({"kind": "validation", "step": step, "gain": gain, "right": 1.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_a_run_is_what_its_settings_and_its_log_say(tmp_path):
    found = read_run(write_run(tmp_path / "a", [0.1, None, 0.3]))
    assert (found.name, found.steps, found.rows, found.hours) == ("a", 3, 10_800, 1.5)
    assert found.settings["frozen.unit_price"] == 0.5 and found.settings["run.steps"] == 3
    assert [metrics.get("gain") for metrics in found.validations] == [0.1, None, 0.3]


def test_a_run_under_way_is_read_to_its_last_whole_line(tmp_path):
    folder = write_run(tmp_path / "a", [0.1, 0.2])
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "st')
    assert read_run(folder).steps == 2


def test_settings_that_change_what_is_learned_are_named(tmp_path):
    first = write_run(tmp_path / "a", [0.1])
    other = write_run(tmp_path / "b", [0.2], frozen={"unit_price": 1.0, "teacher": 0.0},
                      run={"keep": 9})  # fmt: skip
    report = RunsReport([read_run(first), read_run(other)])
    changes = [report.changes(run) for run in report.runs]
    assert changes == [{}, {"frozen.unit_price": 1.0, "frozen.teacher": 0.0}]
    back = RunsReport([report.runs[1], report.runs[0]])
    assert back.changes(report.runs[0]) == {"frozen.unit_price": 0.5, "frozen.teacher": None}


def test_the_command_writes_table_and_curves(run, tmp_path):
    folders = [write_run(tmp_path / "a", [0.1, 0.2]), write_run(tmp_path / "b", [])]
    ran = run("lab", "runs", *folders, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    page = (tmp_path / "out" / "runs.md").read_text()
    assert "0.2000" in page and "0.1000" not in page and "| b " in page
    assert (tmp_path / "out" / "runs.png").read_bytes().startswith(b"\x89PNG")
    found = run("lab", "runs", *folders, "--json").json["runs"]
    assert [each["steps"] for each in found] == [2, 0]
    assert found == json.loads((tmp_path / "out" / "runs.json").read_text())["runs"]


@pytest.mark.parametrize("damage", [None, "log", "settings", "entries"])
def test_a_folder_that_is_no_run_is_named(tmp_path, damage):
    folder = write_run(tmp_path / "a", [0.1])
    if damage is None:
        folder = tmp_path / "nowhere"
    elif damage == "log":
        (folder / "log.jsonl").write_text("{\n")
    elif damage == "settings":
        (folder / "training.yaml").write_text("[a, b]")
    else:
        (folder / "log.jsonl").write_text('{"kind": "step"}\n')
    with pytest.raises(CheckpointError, match=r"is no run whose.*univerb train"):
        read_run(folder)
