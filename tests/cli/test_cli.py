"""The command line as a whole: start-up, help, names of verbs, interrupts."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commands import ONLY_PHRASES, checked, refused, spawn, start
from conftest import TEXT
from univerb import __version__


def test_the_real_command_prints_one_json_object_and_nothing_else(tiny_encoder, lease_file):
    ran = spawn(
        *("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json"),
        *("--stream", "--sources", "--explain", "--max-tokens", 16, *ONLY_PHRASES),
    )
    assert ran.code == 0
    data = checked(ran.json, TEXT)
    assert data["stats"]["phrase_share"] == 1.0
    assert {s["document"] for p in data["pieces"] for s in p["sources"]} == {"lease.txt"}
    assert "Traceback" not in ran.err and "Warning" not in ran.err


def test_the_version_needs_no_model():
    ran = spawn("--version", UNIVERB_CACHE="/nowhere")
    assert (ran.code, ran.out, ran.err) == (0, f"univerb {__version__}\n", "")


def test_help_names_users_verbs_first_and_every_verb_has_its_own(run):
    shown = run("--help").out
    verbs = re.findall(r"^│ (\w+) ", shown, re.MULTILINE)
    assert verbs[:5] == ["generate", "answer", "index", "adapt", "batch"] and verbs[-1] == "lab"
    assert "generate" in run().out + run().err
    tools = re.findall(r"^│ (\w+) ", run("lab", "--help").out, re.MULTILINE)
    measuring = {"reproduce", "speed", "phrases", "answers", "pairs", "judge", "compare", "harness"}
    assert set(tools) == measuring | {"runs", "data"}
    for words in [[verb] for verb in verbs] + [["lab", tool] for tool in tools]:
        assert f"univerb {' '.join(words)} " in run(*words, "-h").out


def test_a_command_that_is_suggested_can_be_pasted(run, tmp_path):
    missing = tmp_path / "my corpus; rm it"
    *_, command = run("inspect", missing).err.partition("Build one with: ")
    assert shlex.split(command) == ["univerb", "index", "DOCS", "-o", str(missing)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "compare", "x", "--html", "n" * 300],
        ["answer", "x", "--docs", "y", "--html", "n" * 300],
        ["batch", "n" * 300, "-o", "y"],
        ["index", "x", "-o", "n" * 300],
        ["inspect", "n" * 300],
        ["train", "n" * 300],
        ["phrases", "x", "--model", "n" * 300],
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_a_path_that_no_disk_can_have_is_one_clear_line(run, arguments):
    refused(run(*arguments))


@pytest.mark.parametrize(
    ("old", "new"),
    [("bench --limit 2", "speed"), ("eval phrases -h", "phrases"), ("judge", "judge")],
)
def test_verbs_of_earlier_versions_name_the_present_ones(run, old, new):
    ran = run(*old.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"`univerb lab {new}`" in ran.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--help", "{'univerb.cli.generate', 'univerb.lab', 'pydantic', 'torch'}"),
        ("generate x --docs nothing.txt", "{'univerb.lab', 'torch', 'transformers'}"),
        ("generate x --model /no/such/model", "{'univerb.lab', 'torch', 'transformers'}"),
        ("lab speed --help", "{'torch', 'transformers'}"),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments, expected):
    script = "import runpy, sys\ntry: runpy.run_module('univerb', run_name='__main__')\n"
    script += f"except SystemExit: print({expected} & set(sys.modules))"
    command = [sys.executable, "-c", script, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_an_interrupt_ends_quietly():
    process = start("generate", "x", "--docs", "-", "--json")
    # More than a pipe holds: it has begun to read, and the end does not come.
    process.stdin.write(b"text " * 100_000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 130
    assert out == b"" and b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(tiny_folder, tmp_path):
    (tmp_path / "long.txt").write_text(TEXT * 400)
    process = start(
        "phrases", tmp_path / "long.txt", "--model", tiny_folder, "--limit", 0, "--json"
    )
    assert process.stdout.readline() == b"{\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=900)
    assert b"Traceback" not in err and b"BrokenPipe" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_one_line():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "univerb", "info", "--json"], stdout=full, stderr=subprocess.PIPE
        )
    assert ran.returncode != 0
    assert b"None" not in ran.stderr
