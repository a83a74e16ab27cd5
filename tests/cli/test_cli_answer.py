"""`univerb answer`, as a user types it."""

import functools
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from conftest import TEXT, make_llama, saved_encoder
from univerb.cli import answer as cli_answer
from univerb.cli import console as cli_console
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

QUESTION = "When shall the tenant pay the rent?"
ONLY_PHRASES = ["--mode", "atomic", "--phrase-bias", "900", "--max-tokens", "20"]


@pytest.fixture
def ask(run):
    return functools.partial(run, "answer")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answer")
    backbone = make_llama()
    backbone.config.max_position_embeddings = 4096
    return saved_encoder(folder, backbone)


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Fail as soon as a model would be loaded."""
    monkeypatch.setattr(cli_answer, "load_to_write", lambda *_, **__: pytest.fail("it was loaded"))


def test_text_and_sources(ask, model, lease_file):
    ran = ask(QUESTION, "--docs", lease_file, "--model", model, "--style", "inline", *ONLY_PHRASES)
    assert ran.code == 0
    text, _, *sources, stats = ran.out.strip().splitlines()
    assert "[1]" in text and " tokens in " in stats
    for source in sources:
        place, quoted = source.removeprefix("[1] lease.txt:").split(" ", 1)
        start, end = map(int, place.split("-"))
        assert quoted == f"“{TEXT[start:end]}”"
        assert f"{TEXT[start:end]}[1]" in text
    assert len(sources) == len(set(sources)) > 0


def test_json_can_be_checked(ask, model, lease_file, tmp_path):
    page = tmp_path / "page.html"
    ran = ask(
        QUESTION, "--docs", lease_file, "--model", model, "--json", "--html", page, *ONLY_PHRASES
    )
    data = json.loads(ran.out)
    assert data["question"] == QUESTION and data["schema_version"] == 1
    assert data["passages"][0]["text"] == TEXT and data["citations"]
    for one in data["citations"]:
        assert TEXT[one["start"] : one["end"]] == one["text"]
        assert data["text"][one["answer_start"] : one["answer_end"]] == one["text"]
        assert (one["marker"], one["document"]) == (1, "lease.txt")
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("vectors", [True, False])
def test_a_corpus_instead_of_documents(ask, model, tmp_path, vectors):
    lm = DynamicLM.from_pretrained(str(model))
    settings = CorpusSettings(sizes=(2, 8), vectors=vectors)
    build_corpus(tmp_path / "c.uv", [Document(TEXT, "lease.txt")], lm, settings)
    given = ["--corpus", tmp_path / "c.uv", "--model", model, "--json", *ONLY_PHRASES]
    ran = ask(QUESTION, *given)
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert data["citations"] and data["passages"][0]["document"] == "lease.txt"
    for one in data["citations"]:
        assert TEXT[one["start"] : one["end"]] == one["text"]


def test_every_option_is_understood(ask, model, lease_file):
    options = "-k 2 --phrases none --style none --cite all --encode-marker --shots 1 --no-chat"
    more = "--max-tokens 4 --temperature 0.7 --top-p 0.9 --seed 3 --mode unfold --tolerance 0.5"
    given = [*options.split(), *more.split(), "--threads", "1", "--offline"]
    ran = ask(QUESTION, "--docs", "-", "--model", model, *given, stdin=lease_file.read_text())
    assert ran.code == 0 and "4 tokens in" in ran.out


def test_phrases_and_markers_are_coloured_in_a_terminal(ask, model, lease_file, monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system="truecolor", soft_wrap=True)
    monkeypatch.setattr(cli_answer, "console", terminal)
    monkeypatch.setattr(cli_console, "console", terminal)
    ask(QUESTION, "--docs", lease_file, "--model", model, "--style", "inline", *ONLY_PHRASES)
    # The first passage's colour: behind its phrases, and of its markers. rich keeps what it made of
    # a style for the first console that showed it, which may have had 16 colours.
    assert re.search(r"\x1b\[1;[\d;]*(48;2;143;211;232|106)m\w", screen.getvalue())
    assert re.search(r"\x1b\[1;(38;2;143;211;232|96)m\[1\]", screen.getvalue())


def test_a_shortened_passage_is_noted(ask, model, lease_file, tmp_path):
    config = model.parent / "tiny" / "config.json"
    before = config.read_text()
    try:
        small = json.loads(before) | {"max_position_embeddings": 320}
        config.write_text(json.dumps(small))
        ran = ask(QUESTION, "--docs", lease_file, "--model", model, "--max-tokens", "40")
    finally:
        config.write_text(before)
    assert ran.code == 0 and "shortened" in ran.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([QUESTION], "neither of --docs and --corpus"),
        ([QUESTION, "--docs", "LEASE", "--corpus", "c.uv"], "both of --docs and --corpus"),
        ([QUESTION, "--docs", "missing.txt"], "missing.txt"),
        ([QUESTION, "--corpus", "missing.uv"], "missing.uv"),
        ([" ", "--docs", "LEASE"], "question is empty"),
        ([QUESTION, "--docs", "LEASE", "--tolerance", "3"], "tolerance"),
        ([QUESTION, "--docs", "LEASE", "--max-tokens", "0"], "--max-tokens is 0"),
        (
            [QUESTION, "--docs", "LEASE", "-k", "0"],
            "-k is 0; it must be a whole number of at least 1",
        ),
        ([QUESTION, "--docs", "LEASE", "--shots", "2"], "--shots is 2"),
        ([QUESTION, "--docs", "LEASE", "--html", "no/such/folder/page.html"], "cannot be written"),
        ([QUESTION, "--docs", "LEASE", "--html", "."], "cannot be written"),
    ],
)
def test_wrong_input_is_refused_before_the_model_is_loaded(
    ask, no_model, lease_file, arguments, word
):
    ran = ask(*(lease_file if argument == "LEASE" else argument for argument in arguments))
    assert ran.code == 1 and ran.out == ""
    assert word in ran.err.strip().splitlines()[-1]


@pytest.mark.parametrize("more", [[], ["--json"], ["--html", "page.html"]], ids=str)
def test_bytes_that_are_no_text_are_refused(ask, model, lease_file, more, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = b"When \xff shall the tenant pay?".decode(errors="surrogateescape")
    ran = ask(typed, "--docs", lease_file, "--model", model, *more)
    assert (ran.code, ran.out) == (1, "") and "UTF-8" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("wrong", [["--style", "x"], ["--cite", "x"], ["--phrases", "x"]])
def test_wrong_choices_are_refused(ask, no_model, lease_file, wrong):
    ran = ask(QUESTION, "--docs", lease_file, *wrong)
    assert ran.code == 2 and ran.out == ""
