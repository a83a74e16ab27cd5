"""`univerb answer`, as a user types it."""

import dataclasses
import functools
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from conftest import TEXT, make_llama, saved_encoder
from judges import agreeing, refusing
from univerb.applications.answer import Answer
from univerb.applications.cited_text import cited_text
from univerb.cli import answer as cli_answer
from univerb.cli import console as cli_console
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.results import Generation, Piece, Stats
from univerb.documents.chunks import Chunk
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

QUESTION = "When shall the tenant pay the rent?"
ONLY_PHRASES = ["--mode", "atomic", "--phrase-bias", "900", "--max-tokens", "40"]


@pytest.fixture
def ask(run):
    return functools.partial(run, "answer")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answer")
    backbone = make_llama()
    backbone.config.max_position_embeddings = 4096
    return saved_encoder(folder, backbone)


@pytest.fixture(autouse=True)
def answerable(monkeypatch, without_embedder) -> None:
    """Let what a tiny LM finds likely be an answer, and a judge agree with all that it writes."""
    monkeypatch.setattr("univerb.applications.answer.answers_question", lambda *_: True)
    monkeypatch.setattr("univerb.applications.support.default_judge", agreeing)


@pytest.fixture
def all_supported(monkeypatch) -> None:
    """Let all that a tiny LM writes be near enough to its passages to be judged."""
    monkeypatch.setattr("univerb.applications.support._has_words", lambda *_: True)


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Fail as soon as a model would be loaded."""
    monkeypatch.setattr(cli_answer, "load_to_write", lambda *_, **__: pytest.fail("it was loaded"))


def check_sources(lines, text):
    """Check the list of sources: the document has each, and its marker stands in the answer.

    What was copied stands before its marker.
    """
    listed = []
    for line in lines:
        marker, place, quoted = line.split(" ", 2)
        start, end = map(int, place.removeprefix("lease.txt:").split("-"))
        assert quoted == f"“{TEXT[start:end]}”"
        listed.append((marker, f"{TEXT[start:end]}{marker}" in text))
    assert {marker for marker, _ in listed} == set(re.findall(r"\[\d+\]", text))
    assert len(lines) == len(set(lines)) > 0
    return [is_copied for _, is_copied in listed]


def test_a_quote_and_its_sources(ask, model, lease_file):
    ran = ask(QUESTION, "--docs", lease_file, "--model", model, "--style", "inline")
    assert ran.code == 0, ran.err
    text, _, *sources = ran.out.strip().splitlines()
    assert "[1]" in text and " tokens in " not in ran.out
    assert all(check_sources(sources, text))
    bare = re.sub(r"\[\d\]", "", text)
    assert all(sentence.strip(".") in TEXT for sentence in bare.split(". "))


@pytest.mark.usefixtures("all_supported")
def test_text_and_sources(ask, model, lease_file):
    given = ("--docs", lease_file, "--model", model, "--no-quote", "--style", "inline")
    ran = ask(QUESTION, *given, *ONLY_PHRASES)
    assert ran.code == 0, ran.err
    text, _, *sources, stats = ran.out.strip().splitlines()
    assert " tokens in " in stats and "[1]" in text
    check_sources(sources, text)


def sources_of(capsys, text, citations=True, **given):
    """Return the lines that are shown below an answer from two passages."""
    passages = (
        Chunk("lease", 0, "The quiet tenant pays the monthly rent."),
        Chunk("law", 0, "In May every quiet tenant pays the monthly rent."),
    )
    generation = Generation(text, (Piece(text, (3,), 0.0),), "eos", Stats())
    cited = cited_text(generation, passages, judge=agreeing(), **given)
    if not citations:
        cited = dataclasses.replace(cited, citations=())
    cli_answer.show_answer(Answer(QUESTION, cited, passages, generation))
    text, _, *lines, _ = capsys.readouterr().out.strip().splitlines()
    return text, lines


RENT = "[1] lease:0-39 “The quiet tenant pays the monthly rent.”"


def test_the_sources_are_those_of_the_markers_that_are_shown(capsys):
    copied = "[1] lease:0-38 “The quiet tenant pays the monthly rent”"
    text = "The quiet tenant pays the monthly rent. In May bread rises for every quiet tenant."
    shown, lines = sources_of(capsys, text)
    assert shown.count("[") == 1 and lines == [copied]
    assert sources_of(capsys, text, style="none") == (text, [])
    # A passage of which nothing was copied is shown itself.
    assert sources_of(capsys, text, citations=False) == (shown, [RENT])


@pytest.mark.usefixtures("all_supported")
@pytest.mark.parametrize("mode", ["--quote", "--no-quote"])
def test_json_can_be_checked(ask, model, lease_file, tmp_path, mode):
    page = tmp_path / "page.html"
    given = ("--docs", lease_file, "--model", model, mode, "--json", "--html", page)
    data = json.loads(ask(QUESTION, *given, *ONLY_PHRASES).out)
    assert data["question"] == QUESTION and data["schema_version"] == 1
    assert data["found"] and data["citations"] and data["quoted"] == (mode == "--quote")
    for passage in data["passages"]:
        assert TEXT[passage["start"] : passage["end"]] == passage["text"]
    for one in data["citations"]:
        assert TEXT[one["start"] : one["end"]] == one["text"]
        assert data["text"][one["answer_start"] : one["answer_end"]] == one["text"]
        assert one["document"] == "lease.txt"
        assert data["passages"][one["marker"] - 1]["marker"] == one["marker"]
        is_marked = any(one["marker"] in each["markers"] for each in data["sentences"])
        assert is_marked or not one["shown"]
    assert [sentence["support"] for sentence in data["sentences"]]
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_what_is_not_found_is_said(ask, model, lease_file, monkeypatch):
    monkeypatch.setattr("univerb.applications.answer.answers_question", lambda *_: False)
    base = ("--docs", lease_file, "--model", model)
    ran = ask(QUESTION, *base)
    assert (ran.code, ran.out.strip()) == (0, "Not found in the documents.")
    data = json.loads(ask(QUESTION, *base, "--json").out)
    assert not data["found"] and data["citations"] == data["passages"] == []


def test_an_answer_that_nothing_supports_is_noted_and_dropped_if_asked(
    ask, model, lease_file, monkeypatch
):
    monkeypatch.setattr("univerb.applications.support.default_judge", refusing)
    base = (QUESTION, "--docs", lease_file, "--model", model, "--no-quote", "--max-tokens", 8)
    ran = ask(*base, "--phrases", "none")
    assert ran.code == 0 and "nothing in the documents supports" in ran.err and "[1]" not in ran.out
    strict = ask(*base, "--phrases", "none", "--strict")
    assert "supports" not in strict.err and "[1]" in strict.out
    assert strict.out == ask(*base, "--quote").out


def test_a_stream_shows_the_words_as_they_come_and_then_the_answer(ask, model, lease_file):
    given = (QUESTION, "--docs", lease_file, "--model", model, "--no-quote", *ONLY_PHRASES)
    whole, streamed = ask(*given), ask(*given, "--stream")
    plain = json.loads(ask(*given, "--json", "--stream").out)
    assert streamed.out.startswith(plain["generation"]["text"])
    answer = [line for line in whole.out.splitlines() if " tokens in " not in line]
    rest = streamed.out[len(plain["generation"]["text"]) :].strip()
    assert rest.splitlines()[: len(answer)] == answer
    # Quotes are there at once.
    quoted = (QUESTION, "--docs", lease_file, "--model", model, "--quote")
    assert ask(*quoted, "--stream").out == ask(*quoted).out


def test_a_stream_is_not_shown_if_some_of_it_may_be_left_out(ask, no_model, lease_file):
    ran = ask(QUESTION, "--docs", lease_file, "--stream", "--strict")
    assert (ran.code, ran.out) == (1, "") and "--stream" in ran.err and "--strict" in ran.err


def test_a_terminal_is_not_shown_what_it_would_obey(monkeypatch):
    screen = io.StringIO()
    terminal = cli_console.HarmlessConsole(file=screen, force_terminal=True, soft_wrap=True)
    monkeypatch.setattr(cli_answer, "console", terminal)
    cli_answer._echo(Piece(" [b]red\x1b[2J\u202e fox\n", (3,), 0.0))
    cli_answer._echo(Piece(" runs\ufffd", (3,), 0.0))
    assert screen.getvalue() == " [b]red[2J fox\n runs"


def test_options_that_quotes_make_no_use_of_are_noted_once(ask, model, lease_file):
    base = (QUESTION, "--docs", lease_file, "--model", model)
    given = ("--temperature", "0.7", "--stop", "x", "--phrases", "none", "--stream")
    ran = ask(*base, *given)
    notes = [line for line in ran.err.splitlines() if "no effect" in line]
    flags = "--temperature, --stop, --phrases, --stream"
    assert notes == [f"note: no effect on a quote: {flags}. --no-quote writes."]
    assert ran.out == ask(*base, "--quote").out
    for effective in (
        ["--max-tokens", "9", "--style", "inline", "--strict"],
        ["--no-quote", *given],
    ):
        assert "no effect" not in ask(*base, *effective).err


def test_a_stop_text_ends_what_the_lm_writes(ask, model, lease_file):
    given = (QUESTION, "--docs", lease_file, "--model", model, "--no-quote", "--json")
    whole = json.loads(ask(*given, *ONLY_PHRASES).out)["generation"]["text"]
    stop = whole[9:14]
    data = json.loads(ask(*given, *ONLY_PHRASES, "--stop", stop).out)
    assert data["generation"]["text"] == whole[: whole.index(stop)]


@pytest.mark.parametrize("vectors", [True, False])
def test_a_corpus_instead_of_documents(ask, model, tmp_path, vectors):
    lm = DynamicLM.from_pretrained(str(model))
    settings = CorpusSettings(sizes=(2, 8), vectors=vectors)
    build_corpus(tmp_path / "c.uv", [Document(TEXT, "lease.txt")], lm, settings)
    given = ["--corpus", tmp_path / "c.uv", "--model", model, "--json", *ONLY_PHRASES]
    for mode in ("--quote", "--no-quote"):
        ran = ask(QUESTION, mode, *given)
        assert ran.code == 0, ran.err
        data = json.loads(ran.out)
        assert data["citations"] and data["passages"][0]["document"] == "lease.txt"
        for one in data["citations"]:
            assert TEXT[one["start"] : one["end"]] == one["text"]


def test_every_option_is_understood(ask, model, lease_file):
    options = "-k 2 --phrases none --style none --cite all --no-quote --stream"
    more = "--max-tokens 4 --temperature 0.7 --top-p 0.9 --seed 3 --mode unfold --tolerance 0.5"
    given = [*options.split(), *more.split(), "--threads", "1", "--offline"]
    ran = ask(QUESTION, "--docs", "-", "--model", model, *given, stdin=lease_file.read_text())
    [count] = re.findall(r"(\d+) tokens? in ", ran.out)
    assert ran.code == 0 and int(count) <= 4


def test_phrases_and_markers_are_coloured_in_a_terminal(ask, model, lease_file, monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system="truecolor", soft_wrap=True)
    monkeypatch.setattr(cli_answer, "console", terminal)
    monkeypatch.setattr(cli_console, "console", terminal)
    ask(QUESTION, "--docs", lease_file, "--model", model, "--style", "inline")
    # The first passage's colour: behind its phrases, and of its markers. rich keeps what it made of
    # a style for the first console that showed it, which may have had 16 colours.
    assert re.search(r"\x1b\[1;[\d;]*(48;2;143;211;232|106)m\w", screen.getvalue())
    assert re.search(r"\x1b\[1;(38;2;143;211;232|96)m\[1\]", screen.getvalue())


def test_a_shortened_passage_is_noted(ask, model, lease_file, tmp_path):
    config = model.parent / "tiny" / "config.json"
    before = config.read_text()
    try:
        small = json.loads(before) | {"max_position_embeddings": 240}
        config.write_text(json.dumps(small))
        given = ("--docs", lease_file, "--model", model, "--no-quote", "--max-tokens", "130")
        ran = ask(QUESTION, *given)
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


@pytest.mark.parametrize(
    "wrong", [["--style", "x"], ["--cite", "x"], ["--phrases", "x"], ["--shots", "1"]]
)
def test_wrong_choices_are_refused(ask, no_model, lease_file, wrong):
    ran = ask(QUESTION, "--docs", lease_file, *wrong)
    assert ran.code == 2 and ran.out == ""
