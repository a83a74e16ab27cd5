"""`univerb batch`, as a user runs it, stops it, and runs it again."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from conftest import TEXT
from univerb.cli.app import main


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = []
    for number in range(30):
        # Documents of its own make each take a while.
        body = {
            "prompt": f"The tenant {number}",
            "max_tokens": 40,
            "ignore_eos": True,
            "documents": [f"{TEXT} {number} is a number of its own."],
        }
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line | ({"url": "/v1/wrong"} if number == 9 else {})))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def run(monkeypatch, capfd):
    """Run the command in this process; returns its exit code and what it printed."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, os.environ.get(name, "error" if "VERB" in name else "1"))

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys, "argv", ["univerb", "batch", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            code: int | str | None = 0
        except SystemExit as end:
            code = end.code
        out, err = capfd.readouterr()
        return int(code or 0), out, err

    return call


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "univerb", "batch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_job_from_start_to_end(run, tmp_path: Path, requests: Path, tiny_folder: Path):
    output = tmp_path / "out.jsonl"
    code, out, err = run(requests, "-o", output, "--model", tiny_folder, "--max-tokens", 4)
    assert (code, out) == (0, "")
    assert err.endswith(f"30 requests, 1 refused, 0 from an earlier run: '{output}'\n")
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["custom_id"] for one in answers] == [f"r{n}" for n in range(30)]
    assert [n for n, one in enumerate(answers) if one["response"]["status_code"] != 200] == [9]
    code, _, err = run(requests, "-o", output, "--model", tiny_folder)
    assert code == 1 and "exists" in err and "--restart" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--docs", "a.txt", "--corpus", "b"], "not from both"),
        (["--docs", "-"], "standard input"),
        (["--workers", "0"], "--workers is 0"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--temperature", "-1"], "temperature is -1"),
        (["-o", "/"], "is a folder"),
        (["--model", "/no/such/model"], "no folder"),
    ],
)
def test_options_that_make_no_sense_end_it_with_one_line(
    run, tmp_path, requests, tiny_folder, arguments, words
):
    code, out, err = run(requests, "-o", tmp_path / "out.jsonl", "--model", tiny_folder, *arguments)
    assert (code, out) == (1, "") and err.startswith("error: ") and words in err
    assert err.count("\n") == 1 and not (tmp_path / "out.jsonl.partial").exists()


def test_a_file_that_is_no_batch_never_loads_the_model(run, tmp_path, tiny_folder):
    source = tmp_path / "in.jsonl"
    source.write_text("hello")
    code, _, err = run(source, "-o", tmp_path / "out.jsonl", "--model", tmp_path)
    assert code == 1 and "not a batch file" in err


@pytest.mark.slow
def test_killed_and_run_again_with_more_workers(
    run, tmp_path: Path, requests: Path, tiny_folder: Path
):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    common = ["--model", tiny_folder, "--batch-size", 2]
    assert run(requests, "-o", whole, *common)[0] == 0
    partial = tmp_path / "out.jsonl.partial"
    job = start(requests, "-o", output, *common)
    while job.poll() is None:
        if partial.exists() and partial.read_bytes().count(b"\n") > 6:
            job.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    job.communicate()
    assert job.returncode == -signal.SIGKILL and not output.exists()
    done = partial.read_bytes().count(b"\n") - 1
    code, out, err = run(requests, "-o", output, *common, "--workers", 2)
    assert (code, out) == (0, ""), err
    assert f"30 requests, 1 refused, {done} from an earlier run" in err
    assert err.count("\n") == 1, "no bars and no warnings of the workers"
    assert output.read_bytes() == whole.read_bytes()
    assert not partial.exists()


def test_the_input_is_never_replaced_by_the_answers(run, requests, tiny_folder):
    before = requests.read_text()
    code, _, err = run(requests, "-o", requests, "--model", tiny_folder, "--restart")
    assert code == 1
    assert "is the input too" in err
    assert requests.read_text() == before
