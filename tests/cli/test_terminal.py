"""Nothing that a document, its name or an argument holds is obeyed by a terminal."""

import contextlib
import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from commands import ONLY_PHRASES
from conftest import TEXT, make_llama, saved_encoder
from univerb.cli.app import main
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

CLIPBOARD = "\x1b]52;c;aGVsbG8=\x07"
# Ask the terminal where its cursor is, in both spellings; turn the direction of writing; delete.
CODES = f"{CLIPBOARD}\x1b[6n\x9b6n\u202e\x7f"
NAME = f"{CODES}lease.txt"
EVIL = f"The tenant {CODES} shall have quiet {CODES} enjoyment of the premises. {TEXT}"
OBEYED = [part.encode() for part in ("\x1b]", "\x07", "\x1b[6n", "\x9b", "\u202e", "\x7f")]
FORCED = ["--mode", "atomic", "--phrase-bias", "900", "--max-tokens", "30"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = make_llama()
    backbone.config.max_position_embeddings = 4096
    return saved_encoder(tmp_path_factory.mktemp("terminal"), backbone)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / f"{CODES}c.uv"
    lm = DynamicLM.from_pretrained(str(model))
    build_corpus(folder, [Document(EVIL, NAME)], lm, CorpusSettings(vectors=False))
    return folder


@pytest.fixture
def evil_file(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_text(EVIL, encoding="utf-8")
    return path


@pytest.fixture
def terminal(monkeypatch, run):
    """Run a command whose output and errors go to a terminal; returns what it was sent."""

    def call(*arguments: object) -> bytes:
        master, slave = os.openpty()
        received: list[bytes] = []

        def read() -> None:
            try:
                while data := os.read(master, 65536):
                    received.append(data)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        with open(slave, "w", encoding="utf-8") as screen, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            patch.setattr(sys, "stderr", screen)
            patch.setattr(sys, "argv", ["univerb", *map(str, arguments)])
            patch.setenv("TERM", "xterm-256color")
            with contextlib.suppress(SystemExit):
                main()
        reader.join(timeout=60)
        os.close(master)
        return b"".join(received)

    return call


def harmless(output: bytes, *shown: bytes) -> None:
    assert b"Traceback" not in output
    for code in OBEYED:
        assert code not in output, output
    for part in shown:
        assert part in output, output


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ("--sources", b"lease.txt:"),
        ("--stream", b"s decode"),
        ("--compare", b"52;c;"),
        ("--explain", b" <- "),
        ("--json", b"lease.txt"),
    ],
)
def test_generate(terminal, model, evil_file, more, shown):
    base = ("generate", f"The {CODES} tenant", "--model", model, "--docs", evil_file)
    harmless(terminal(*base, more, *FORCED), shown)


@pytest.mark.usefixtures("without_embedder")
@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (["--style", "inline"], b"lease.txt:"),
        (["--style", "none"], b"tenant"),
        (["--no-quote", *FORCED], b"s decode"),
        (["--no-quote", "--stream", *FORCED], b"s decode"),
    ],
    ids=str,
)
def test_answer(terminal, monkeypatch, model, evil_file, more, shown):
    monkeypatch.setattr("univerb.applications.answer.answers_question", lambda *_: True)
    base = ("answer", f"Who {CODES} pays?", "--model", model, "--docs", evil_file)
    harmless(terminal(*base, *more), shown)


@pytest.mark.parametrize("more", [["--limit", 0], ["--json"], ["--source", "words"]], ids=str)
def test_phrases(terminal, model, evil_file, more):
    harmless(terminal("phrases", evil_file, "--model", model, *more), b"lease.txt")


def test_inspect(terminal, corpus):
    harmless(terminal("inspect", corpus, "--verify"), b"lease.txt")
    harmless(terminal("inspect", corpus, "--json"), b"lease.txt")


def test_index_and_adapt(terminal, model, evil_file, lease_file, tmp_path):
    folder = tmp_path / f"{CODES}new.uv"
    base = ("index", evil_file, "-o", folder, "--no-vectors", "--model", model)
    harmless(terminal(*base), b"new.uv")
    evil_file.write_text(TEXT)
    harmless(terminal(*base), b"error:", b"lease.txt", b"--replace")
    base = ("adapt", evil_file, "--held-out", lease_file, "-o", folder, "--model", model)
    harmless(terminal(*base, "--no-vectors"), b"new.uv")


def test_comparisons_of_the_lab(terminal, model, evil_file, tmp_path):
    base = ("lab", "compare", f"The {CODES} tenant", "--model", model, "--max-tokens", 8)
    harmless(terminal(*base, "--docs", evil_file), b"tenant")
    files = []
    for number in (1, 2):
        files += ["--texts", tmp_path / f"{CODES}{number}.jsonl"]
        files[-1].write_text(json.dumps({"prompt": f"A {CODES} b", "text": EVIL}) + "\n")
    harmless(terminal("lab", "compare", *files), b"quiet")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "x", "--docs", NAME],
        ["generate", "x", "--model", f"./{CODES}"],
        ["generate", "x", "--mode", CODES],
        ["generate", "x", f"--{CODES}"],
        ["inspect", "a", NAME],
        ["phrases", NAME],
        ["batch", NAME, "-o", NAME],
        ["train", NAME],
        ["lab", "speed", "--workload", CODES],
        ["lab", CODES],
        [CODES],
    ],
    ids=lambda value: repr(" ".join(value))[:30],
)
def test_errors_name_what_was_typed_without_its_codes(terminal, arguments):
    harmless(terminal(*arguments), b"rror")


def test_notes(terminal, model):
    base = ("generate", "x", "--model", model, "--phrase", f"{CODES}", "--max-tokens", 1)
    harmless(terminal(*base), b"note:")


def test_a_pipe_gets_the_text_as_it_was_written(run, model):
    base = ("generate", "The tenant", "--model", model, *ONLY_PHRASES, "--max-tokens", 1)
    phrase = f"quiet {CODES} enjoyment"
    assert f" {phrase}\n" in run(*base, "--phrase", phrase).out
    assert f" {phrase}\n" in run(*base, "--phrase", phrase, "--stream").out
    data = run(*base, "--phrase", phrase, "--json")
    assert data.json["text"] == f" {phrase}"
    harmless(data.out.encode())


def test_a_name_that_is_no_text_can_be_shown(run, terminal, model, tmp_path):
    path = tmp_path / os.fsdecode(b"le\xffase.txt")
    harmless(terminal("phrases", path), b"error:", b"ase.txt' does not exist")
    path.write_text(TEXT)
    harmless(terminal("phrases", path, "--model", model), b"ase.txt:")
    assert run("phrases", path, "--model", model, "--json").json["total"]
    command = "index", path, "-o", tmp_path / os.fsdecode(b"\xff.uv"), "--model", model
    harmless(terminal(*command, "--no-vectors"), b"1 documents")


@pytest.mark.parametrize("more", [[], ["--stream"], ["--sources"]], ids=str)
def test_a_terminal_without_unicode_gets_what_it_can_show(run, model, monkeypatch, more):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    base = ("generate", "x", "--model", model, "--phrase", "über alles", "--max-tokens", 1)
    assert run(*base, *ONLY_PHRASES, *more).code == 0
    assert b"?ber alles" in raw.getvalue()
