"""The page of an answer: whole, self-contained, and safe whatever the texts are."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from judges import agreeing
from univerb.applications.answer import Answer
from univerb.applications.answer_html import answer_html
from univerb.applications.citations import Citation, CitedText
from univerb.applications.cited_text import cited_text, sentence_at, supported_marks
from univerb.decoding.results import Generation, Piece, Stats
from univerb.documents.chunks import Chunk

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
    texts: list[str], question: str = "Why?", names: str = "ab", is_cut: bool = False
) -> Answer:
    """An answer that quotes the whole of each text, both of them twice."""
    passages = tuple(Chunk(name, 5, text.strip()) for name, text in zip(names, texts, strict=True))
    text, citations = "", []
    for number, passage in [*enumerate(passages, 1)] * 2:
        text += " " if text else ""
        place = passage.start, passage.end, len(text), len(text) + len(passage.text)
        citations.append((number, passage, *place))
        text += passage.text + " and"
    sentence = sentence_at(text, 0, len(text))._replace(support="partly", markers=(1, 2))
    cited = tuple(Citation(*each, answer=text) for each in citations)
    marks = supported_marks(cited, [sentence], "inline")
    whole = CitedText(text, cited, (sentence,), (), marks)
    generation = Generation(text, (Piece(text, (3,), 0.0),), "eos", Stats())
    return Answer(question, whole, passages, generation, truncated=is_cut)


def test_everything_is_on_the_page():
    result = an_answer(["the rent is due", "pay each month"], is_cut=True)
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
    text = "long before " * 20 + "the monthly rent" + " long after" * 20
    start = text.index("the monthly rent")
    generation = Generation("See the monthly rent", (), "eos", Stats())
    passages = (Chunk("a", 0, text),)
    cited = cited_text(generation, passages, judge=agreeing())
    page = Page(answer_html(Answer("Why?", cited, passages, generation)))
    shown = page.texts["pop"]
    assert page.texts["b"] == "the monthly rent"
    assert "before the monthly rent long" in shown
    assert f"a, characters {start}-{start + 16}" in shown
    assert shown.startswith("…") and "…[1] a" in shown and len(shown) < 250


def test_quotes_have_a_page_and_so_has_nothing():
    passage = Chunk("a", 3, "The rent is\ndue each month.")
    text = "The rent is due each month."
    sentence = sentence_at(text, 0, len(text))._replace(support="quoted", markers=(1,))
    citation = Citation(1, passage, 3, 29, 0, 26, answer=text)
    marks = supported_marks([citation], [sentence], "sentence")
    quoted = CitedText(text, (citation,), (sentence,), (), marks)
    page = Page(answer_html(Answer("When?", quoted, (passage,), None)))
    assert "The rent is due each month [1]." in page.texts["visible"]
    assert page.texts["mark"] == "The rent is\ndue each month" == page.texts["b"]
    nothing = Answer("When?", CitedText("Not found in the documents."), (), None)
    page = Page(answer_html(nothing))
    assert "Not found in the documents." in page.texts["visible"] and "mark" not in page.texts


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
