"""Case studies: all of both texts, phrases coloured and traced, and safe whatever the texts are."""

import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from univerb.cli.console import pieces_text
from univerb.decoding.results import Generation, Piece, Stats
from univerb.errors import OptionError
from univerb.lab.judging.case_study import (
    NO_SOURCE,
    CaseStudy,
    SystemOutput,
    source_labels,
    terminal_view,
)
from univerb.lab.judging.case_study_html import case_study_html
from univerb.phrase import Phrase, Span


def a_phrase(text: str, *documents: str) -> Piece:
    spans = tuple(Span(name, 5, 5 + len(text.strip())) for name in documents)
    ids = (len(text), ord(text[-1]), 3)
    return Piece(text, ids, -0.5, Phrase(ids, text, spans))


def a_token(text: str) -> Piece:
    return Piece(text, (4,), -0.5)


OURS = SystemOutput(
    "univerb",
    (
        a_phrase(" significantly modified", "ship.md"),
        a_token(" in"),
        a_token(" 1934"),
        a_phrase(" with two", "a", "b", "c", "d", "e"),
        a_phrase(" torpedo tubes"),
    ),
)
THEIRS = SystemOutput("plain LM", tuple(a_token(f" plain{n}") for n in range(60)))
STUDY = CaseStudy("The ship was", (OURS, THEIRS))


class Page(HTMLParser):
    """Reads a page: its elements, and the texts of each kind."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            kind = dict(attrs).get("class") or ""
            self.open.append((tag, kind))
            for name in {tag, kind}:
                self.texts.setdefault(name, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        is_hidden = any(kind == "pop" for _, kind in self.open)
        for tag, kind in self.open:
            # What is shown on pointing only is no part of the text around it.
            if not is_hidden or kind == "pop":
                for name in {tag, kind} if kind != "pop" else {kind}:
                    self.texts[name][-1] += data


def test_the_page_has_both_texts_with_phrases_coloured():
    page = Page(case_study_html([STUDY], "Two ships"))
    assert page.texts["title"] == page.texts["h1"] == ["Two ships"]
    assert page.texts["text prompt"] == ["The ship was"]
    assert page.texts["h2"] == ["univerb", "plain LM"]
    assert page.texts["text"] == ["".join(p.text for p in own.pieces) for own in STUDY.systems]
    # Neighbours differ in colour.
    assert page.texts["sourced c0"] == ["significantly modified", "torpedo tubes"]
    assert page.texts["sourced c1"] == ["with two"]


def test_sources_show_on_pointing():
    page = Page(case_study_html([STUDY, STUDY]))
    assert page.texts["pop"][:3] == [
        "ship.md, characters 5-27",
        "a, characters 5-13b, characters 5-13c, characters 5-13and 2 more",
        NO_SOURCE,
    ]
    assert len(page.texts["pop"]) == 6 and page.texts["h2"] == ["univerb", "plain LM"] * 2
    source = case_study_html([STUDY])
    assert ".sourced:hover > .pop, .sourced:focus > .pop { display: block; }" in source
    assert ".pop { display: none;" in source


def test_captions_count():
    assert OURS.caption == "11 tokens in 5 units, 82% in phrases"
    assert SystemOutput("empty", ()).caption == "0 tokens in 0 units, 0% in phrases"


def test_a_text_without_pieces_is_shown_as_it_is():
    own = SystemOutput.from_dict("other", {"text": " two <words>"})
    assert own.caption == "2 words"
    assert own.to_dict() == {"name": "other", "text": " two <words>"}
    page = Page(case_study_html([CaseStudy("p", (own, OURS, THEIRS))]))
    assert page.texts["h2"] == ["other", "univerb", "plain LM"]
    assert page.texts["text"][0] == " two <words>"


texts = st.text(min_size=1, max_size=20)
hostile = st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style>", "{prompt}", "&lt;"]
)
any_text = texts | hostile


@given(any_text, any_text, any_text, any_text, any_text)
def test_no_text_becomes_markup(prompt, name, phrase, document, token):
    own = SystemOutput(name, (a_phrase(phrase, document), a_token(token)))
    source = case_study_html([CaseStudy(prompt, (own, own))], name)
    page = Page(source)
    assert {tag for tag, _ in page.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p"),
        *("section", "div", "article", "span"),
    }
    names = {attribute for _, attributes in page.tags for attribute in attributes}
    assert names <= {"lang", "charset", "name", "content", "http-equiv", "class", "tabindex"}
    assert "default-src 'none'" in source and "url(" not in source.split("</style>")[0]


# The terminal


def shown(study: CaseStudy, width: int) -> tuple[str, list[str]]:
    """Print a case as the command line does; return the lines, and what is coloured."""
    console = Console(
        file=io.StringIO(), width=width, highlight=False, soft_wrap=True, force_terminal=True
    )
    view = terminal_view(study, pieces_text)
    with console.capture() as captured:
        console.print(view)
    plain = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
    with plain.capture() as text:
        plain.print(view)
    coloured = [
        segment.text for segment in console.render(view) if segment.style and segment.style.bgcolor
    ]
    assert "\x1b[" in captured.get()
    return text.get(), coloured


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_terminal_shows_both_side_by_side(width):
    text, coloured = shown(STUDY, width)
    lines = text.splitlines()
    assert lines[0] == "The ship was"
    assert any("univerb" in line and "plain LM" in line for line in lines)
    assert all(len(line) <= width for line in lines)
    # Nothing is cut off, however long.
    for piece in OURS.pieces + THEIRS.pieces:
        assert all(word in text for word in piece.text.split())
    assert "ship.md" in text and "and 4 more" in text and NO_SOURCE in text
    phrases = "".join(p.text for p in OURS.pieces if p.is_phrase)
    assert "".join(coloured).replace(" ", "") == phrases.replace(" ", "")


@pytest.mark.parametrize("width", [40, 120])
def test_more_systems_go_below(width):
    systems = tuple(SystemOutput(f"s{n}", (a_token(f" text{n}"),)) for n in range(4))
    text, _ = shown(CaseStudy("p", systems), width)
    titles = [sum(f" s{n} " in line for n in range(4)) for line in text.splitlines()]
    assert [count for count in titles if count] == [2, 2]


def test_names_are_no_terminal_markup():
    text, _ = shown(CaseStudy("[bold]p[/]", (SystemOutput("[red]x[/]", OURS.pieces), THEIRS)), 100)
    assert "[red]x[/]" in text and "[bold]p[/]" in text


# From JSON


def test_a_generation_comes_back_from_its_json():
    generation = Generation("", OURS.pieces, "eos", Stats())
    read = SystemOutput.from_dict("univerb", json.loads(json.dumps(generation.to_dict())))
    assert [(p.text, p.ids, p.phrase, p.sources) for p in read.pieces] == [
        (p.text, p.ids, p.phrase, p.sources) for p in OURS.pieces
    ]
    assert case_study_html([CaseStudy("", (read, THEIRS))]) == case_study_html(
        [CaseStudy("", (OURS, THEIRS))]
    )
    again = SystemOutput.from_dict("univerb", json.loads(json.dumps(OURS.to_dict())))
    assert again.to_dict()["pieces"] == read.to_dict()["pieces"]
    assert again.text == OURS.text


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({}, r"pieces\.0\.text"),
        ({"pieces": None, "text": "a"}, "pieces:"),
        ({"pieces": [{"text": "a"}]}, r"pieces\.0\.ids"),
        (
            {"pieces": [{"text": "a", "ids": [1], "is_phrase": True, "sources": [{}]}]},
            r"pieces\.0\.sources\.0",
        ),
    ],
)
def test_what_is_no_generation_is_refused(value, where):
    with pytest.raises(OptionError, match=where):
        SystemOutput.from_dict("mine", value)


def test_places_are_limited():
    phrase = Phrase((1, 2), "x", tuple(Span(f"d{n}", 0, 1) for n in range(5)))
    assert source_labels(phrase, 5)[-1] == "d4, characters 0-1"
    assert source_labels(phrase, 1) == ["d0, characters 0-1", "and 4 more"]
