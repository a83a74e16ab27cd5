"""The page of an answer: whole, self-contained, and safe whatever the texts are."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from univerb.applications.answer import Answer
from univerb.applications.answer_html import answer_html
from univerb.applications.citations import cited_text
from univerb.decoding.results import Generation, Piece, Stats
from univerb.documents.chunks import Chunk
from univerb.phrase import Phrase, Span

VOID = {"meta"}


class Page(HTMLParser):
    """Reads a page: its elements, and the text of those that matter."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, (dict(attrs).get("class") or "").split(" ")[0]))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for name in {part for pair in self.open for part in pair if part}:
            self.texts[name] = self.texts.get(name, "") + data
        if "pop" not in {kind for _, kind in self.open}:
            self.texts["visible"] = self.texts.get("visible", "") + data


def an_answer(
    texts: list[str], question: str = "Why?", names: str = "ab", typed: str = ""
) -> Answer:
    """An answer that quotes the whole of each text, both of them twice."""
    passages = tuple(Chunk(name, 5, text.strip()) for name, text in zip(names, texts, strict=True))
    pieces = []
    for passage in (*passages, *passages):
        phrase = Phrase((1, 2), " " + passage.text, (Span(passage.document, 5, passage.end),))
        pieces += [Piece(phrase.text, (1, 2), 0.0, phrase), Piece(f" and{typed}", (3,), 0.0)]
    generation = Generation("".join(p.text for p in pieces), tuple(pieces), "eos", Stats())
    cited = cited_text(generation, passages, "inline", "all")
    return Answer(question, cited, passages, generation, truncated=bool(typed))


def test_everything_is_on_the_page():
    result = an_answer(["the rent is due", "pay each month"], typed=" [2]")
    page = Page(answer_html(result))
    assert page.texts["title"] == page.texts["h1"] == "Why?"
    assert result.rendered in page.texts["visible"]
    assert "shortened" in page.texts["note"]
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["passage-1", "passage-2"]
    # Quoted twice, highlighted once.
    assert page.texts["mark"] == "the rent is duepay each month"
    assert {attrs["href"] for tag, attrs in page.tags if tag == "a"} == {"#passage-1", "#passage-2"}
    titles = [attrs["title"] for tag, attrs in page.tags if "title" in attrs]
    assert titles[0] == "[1] a, characters 5-20"
    assert "shortened" not in answer_html(an_answer(["x y", "z w"]))


def test_a_popover_shows_the_source_in_context():
    text = "long before " * 20 + "the rent" + " long after" * 20
    start = text.index("the rent")
    phrase = Phrase((1, 2), " the rent", (Span("a", start, start + 8),))
    generation = Generation(" the rent", (Piece(" the rent", (1, 2), 0.0, phrase),), "eos", Stats())
    passages = (Chunk("a", 0, text),)
    cited = cited_text(generation, passages, "sentence", "best")
    page = Page(answer_html(Answer("Why?", cited, passages, generation, truncated=False)))
    shown = page.texts["pop"]
    assert page.texts["b"] == "the rent"
    assert "before the rent long" in shown and f"a, characters {start}-{start + 8}" in shown
    assert shown.startswith("…") and "…[1] a" in shown and len(shown) < 250


texts = st.text(min_size=1, max_size=30).filter(str.strip)
hostile = st.sampled_from(
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</style>",
        "{question}",
        "&lt;",
    ]
)


@given(st.lists(texts | hostile, min_size=2, max_size=2), texts | hostile, texts | hostile)
def test_no_text_becomes_markup(given_texts, question, name):
    result = an_answer(given_texts, question, (name, name + "'"))
    source = answer_html(result)
    page = Page(source)
    tags = {tag for tag, _ in page.tags}
    assert tags <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p"),
        *("section", "span", "a", "b", "mark"),
    }
    names = {name for _, attrs in page.tags for name in attrs}
    assert names <= {
        *("lang", "charset", "name", "content", "http-equiv", "class", "id", "href", "title"),
        "tabindex",
    }
    links = [attrs["href"] for _, attrs in page.tags if "href" in attrs]
    assert all(link.startswith("#passage-") for link in links)
    assert "default-src 'none'" in source and "url(" not in page.texts["style"]
