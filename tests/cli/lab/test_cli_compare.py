"""`univerb lab compare`, as typed: systems side by side, phrases traced, pages harmless."""

import functools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conftest import TEXT, Ran, saved_encoder
from univerb.cli.lab import compare as cli_compare
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

SHORT = ("--max-tokens", "12", "--phrase-bias", "50")
# A tiny LM disagrees with every phrase; only `atomic` does not ask it.
TWO = ("--system", "plain", "--system", "atomic", *SHORT)
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{title}'


@pytest.fixture
def compare(run):
    return functools.partial(run, "lab", "compare")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_encoder(tmp_path_factory.mktemp("compare"))


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    path = tmp_path / "lease.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Fail as soon as a model would be loaded."""
    monkeypatch.setattr(cli_compare, "load_model", lambda *_, **__: pytest.fail("it was loaded"))


class Page(HTMLParser):
    """Reads a page: its elements, its texts, and what shows on pointing."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.kinds: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.kinds.append((dict(attrs).get("class") or tag).split(" ")[0])
            self.texts.setdefault(self.kinds[-1], []).append("")

    def handle_endtag(self, _: str) -> None:
        self.kinds.pop()

    def handle_data(self, data: str) -> None:
        is_hidden = "pop" in self.kinds
        for kind in set(self.kinds):
            if not is_hidden or kind == "pop":
                self.texts[kind][-1] += data


def refused(ran: Ran, *words: str) -> None:
    assert (ran.code, ran.out) == (1, "")
    [line] = ran.err.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def systems(ran: Ran) -> dict[str, dict[str, Any]]:
    [case] = ran.json["cases"]
    return {own["name"]: own for own in case["systems"]}


def sourced(written: dict[str, Any]) -> list[str]:
    """Check the places of all phrases against the document, and return their texts."""
    found = [piece for piece in written["pieces"] if piece["is_phrase"]]
    for piece in found:
        for span in piece["sources"]:
            assert span["document"] == "lease.txt"
            assert TEXT[span["start"] : span["end"]] == piece["text"].strip()
    return [piece["text"] for piece in found]


# Systems that write


def test_every_system_writes_what_generate_writes(compare, run, model, lease):
    given = ("The tenant shall", "--docs", lease, "--model", model, "--json", *SHORT)
    names = ("plain", "default", "atomic", "unfold", "verify")
    ran = compare(*given, *(part for name in names for part in ("--system", name)))
    assert ran.code == 0
    found = systems(ran)
    assert list(found) == list(names)
    modes = {"default": (), **{name: ("--mode", name) for name in names[2:]}}
    for name, mode in modes.items():
        alone = run("generate", *given, *mode, "--context", "0").json
        assert (found[name]["text"], found[name]["pieces"]) == (alone["text"], alone["pieces"])
    assert found["plain"]["text"] == found["verify"]["text"]
    assert not sourced(found["plain"]) and sourced(found["atomic"])


def test_the_page_has_the_texts_and_the_sources(compare, model, lease, tmp_path):
    page = tmp_path / "page.html"
    given = ("The tenant shall", "--docs", lease, "--model", model, *TWO)
    found = systems(compare(*given, "--json", "--html", page))
    phrases = sourced(found["atomic"])
    assert phrases
    read = Page(page.read_text("utf-8"))
    assert read.texts["h2"] == ["plain", "atomic"]
    assert read.texts["text"] == ["The tenant shall", *(own["text"] for own in found.values())]
    assert read.texts["sourced"] == [text.strip() for text in phrases]
    assert len(read.texts["pop"]) == len(phrases)
    assert all("lease.txt, characters " in place for place in read.texts["pop"])


def test_the_terminal_has_both_side_by_side_in_colour(compare, model, lease, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    given = ("The tenant shall", "--docs", lease, "--model", model, *TWO)
    console = Console(width=100, highlight=False, soft_wrap=True, force_terminal=True)
    monkeypatch.setattr(cli_compare, "console", console)
    with console.capture() as captured:
        assert compare(*given).code == 0
    shown = captured.get()
    # Bold with a foreground and a background; rich keeps codes that another console asked for.
    assert re.search(r"\x1b\[1;[\d;]+m", shown)
    assert any("plain" in line and "atomic" in line for line in shown.splitlines())
    assert "lease.txt, characters" in shown and "The tenant shall" in shown


def test_a_corpus_gives_each_prompt_its_phrases(compare, run, model, tmp_path):
    lm = DynamicLM.from_pretrained(str(model))
    build_corpus(tmp_path / "c.uv", [Document(TEXT, "lease.txt")], lm, CorpusSettings(sizes=(2, 8)))
    given = ("The tenant shall", "--corpus", tmp_path / "c.uv", "--model", model, *SHORT)
    found = systems(compare(*given, "--json", "--system", "atomic", "--system", "plain"))
    assert list(found) == ["atomic", "plain"] and sourced(found["atomic"])
    # A comparison shows the LM nothing but the prompt.
    alone = run("generate", *given, "--json", "--mode", "atomic", "--context", "0").json
    assert found["atomic"]["text"] == alone["text"]


# Finished texts


def write_lines(path: Path, *values: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def test_finished_texts_are_shown_as_they_were_written(compare, model, lease, tmp_path):
    given = ("The tenant shall", "--docs", lease, "--model", model, "--json", *TWO)
    written = systems(compare(*given))["atomic"]
    ours = write_lines(tmp_path / "ours.jsonl", {"prefix": "The tenant shall", **written})
    theirs = write_lines(tmp_path / "theirs.jsonl", {"prompt": "The tenant shall", "text": " go"})
    page = tmp_path / "page.html"
    found = systems(compare("--texts", ours, "--texts", theirs, "--json", "--html", page))
    assert [piece["sources"] for piece in found["ours"]["pieces"]] == [
        piece["sources"] for piece in written["pieces"]
    ]
    assert found["theirs"] == {"name": "theirs", "text": " go"}
    read = Page(page.read_text("utf-8"))
    assert read.texts["text"] == ["The tenant shall", written["text"], " go"]
    assert len(read.texts["pop"]) == len(sourced(written))
    shown = compare("--texts", ours, "--texts", theirs).out
    assert "lease.txt" in shown and "1 words" in shown


def test_no_text_becomes_markup(compare, tmp_path):
    pieces = [
        {"text": HOSTILE, "ids": [1]},
        {
            "text": f" {HOSTILE}",
            "ids": [1, 2],
            "is_phrase": True,
            "sources": [{"document": HOSTILE, "start": 0, "end": 4}],
        },
    ]
    line = {"prompt": f"{HOSTILE}\ud800", "text": HOSTILE}
    files = [
        write_lines(tmp_path / "a&lt;b.jsonl", line | {"pieces": pieces}),
        write_lines(tmp_path / "b.jsonl", line | {"text": f"{HOSTILE}\udfff"}),
    ]
    page = tmp_path / "page.html"
    ran = compare("--texts", files[0], "--texts", files[1], "--html", page)
    assert ran.code == 0
    read = Page(page.read_text("utf-8"))
    assert not {"script", "img"} & set(read.tags)
    assert read.texts["text"] == [f"{HOSTILE}?", f"{HOSTILE} {HOSTILE}", f"{HOSTILE}?"]
    assert read.texts["pop"] == [f"{HOSTILE}, characters 0-4"]
    assert read.texts["h2"][0] == "a&lt;b"


# What does not go together


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("p", ("none of several", "--docs, --corpus, --texts")),
        ("p --docs lease.txt --corpus c.uv", ("--docs and --corpus",)),
        ("p --docs lease.txt --texts a.jsonl", ("--docs and --texts", "Give one of")),
        ("p --docs lease.txt --system atomic", ("atomic alone is no comparison",)),
        ("p --docs lease.txt --system plain --system plain", ("plain alone",)),
        ("p --texts a.jsonl --texts a.jsonl", ("prompt is not for --texts",)),
        ("--texts a.jsonl --texts a.jsonl --max-tokens 5", ("--max-tokens is not for --texts",)),
        ("--texts a.jsonl", ("'a.jsonl' has nothing to compare",)),
        ("--texts a.jsonl --texts b.jsonl", ("'b.jsonl' cannot be read",)),
        ("--texts empty --texts empty", ("'empty' has nothing to compare",)),
        ("--docs lease.txt", ("the prompt is empty",)),
        ("--texts a.jsonl --texts lease.txt", ("line 1 of 'lease.txt' is not a JSON",)),
        ("p --docs nowhere.txt", ("nowhere.txt",)),
        ("p --corpus nowhere.uv", ("nowhere.uv",)),
        ("p --docs lease.txt --html .", ("--html '.' cannot be written",)),
        ("p --docs lease.txt --html no/page.html", ("--html", "Name a file in a folder")),
        ("p --docs lease.txt --max-tokens 0", ("--max-tokens is 0",)),
    ],
)
def test_every_wrong_combination_is_one_line(
    compare, lease, tmp_path, monkeypatch, no_model, options, words
):
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    write_lines(Path("a.jsonl"), {"prompt": "p", "text": "a"})
    refused(compare(*options.split()), *words)


def test_codes_for_a_terminal_are_not_passed_on(run, tmp_path):
    line = json.dumps({"prompt": "\x1b]0;title\x07go", "text": "\x1b[31mred \u202eback [red]"})
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        file.write_text(line + "\n")
    ran = run("lab", "compare", "--texts", files[0], "--texts", files[1])
    assert ran.code == 0, ran.err
    assert not {"\x1b", "\x07", "\u202e"} & set(ran.out)
    assert "[red]" in ran.out
    ran = run("lab", "compare", "--texts", files[0], "--texts", files[1], "--html", files[0])
    assert ran.code == 1
    assert files[0].read_text() == line + "\n"
