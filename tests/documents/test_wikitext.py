"""WikiText's files: where articles begin, and the forms of their text."""

import io

import pytest

from conftest import data_directory
from univerb.documents.wikitext import (
    article_offsets,
    article_text,
    cog_text,
    detokenised,
    wikitext_articles,
)

FILE = """ \n = Du Fu = \n \n Du Fu was a <unk> poet .
 The line = \n = 1 henry and C = \n ends there . \n \n = = Life = = \n
 He wrote 1 @,@ 500 well @-@ known poems .
 \n = Kiss You = \n \n " Kiss You " is a song . \n"""


def test_an_article_begins_at_a_title_between_blank_lines():
    articles = list(wikitext_articles(FILE.split("\n")))
    assert [title for title, _ in articles] == ["Du Fu", "Kiss You"]
    assert articles[1][1] == ['" Kiss You " is a song .']
    # Headings, and lines that only look like one, are no paragraphs.
    assert len(articles[0][1]) == 4
    assert not any(paragraph.startswith("=") for _, part in articles for paragraph in part)


def test_text_before_the_first_title_is_an_article_without_one():
    assert list(wikitext_articles(["Alone .", "", " = A = ", "", "b"])) == [
        ("", ["Alone ."]),
        ("A", ["b"]),
    ]
    assert list(wikitext_articles([" = A = "])) == [("A", [])]
    assert list(wikitext_articles([])) == []


def test_offsets_cut_a_file_into_its_articles():
    data = FILE.replace("poet", "poète").encode()
    edges = [*article_offsets(io.BytesIO(data)), len(data)]
    parts = [data[a:b].decode() for a, b in zip(edges, edges[1:], strict=False)]
    articles = [article for part in parts for article in wikitext_articles(part.split("\n"))]
    assert articles == list(wikitext_articles(data.decode().split("\n")))
    assert [*article_offsets(io.BytesIO(b"no title\n"))] == [0]


def test_the_three_forms_of_an_article():
    paragraphs = ["A <unk> poet .", "He wrote 1 @,@ 500 well @-@ known poems ."]
    assert article_text(paragraphs, "raw") == "\n".join(paragraphs)
    assert article_text(paragraphs, "cog") == (
        "A <|endoftext|> poet .\nHe wrote 1, 500 well-known poems ."
    )
    assert article_text(paragraphs, "natural") == "He wrote 1,500 well-known poems."


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (" He 's 1 @,@ 500 m ( 3 @.@ 2 ft ) tall . ", "He's 1,500 m (3.2 ft) tall."),
        (' " In Safe Hands " , a guest @-@ star " x "', '"In Safe Hands", a guest-star "x"'),
        ("It does n't ; why ?", "It doesn't; why?"),
    ],
)
def test_detokenised(tokens, text):
    assert detokenised(tokens) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("a guest @-@ starring role", "a guest-starring role"),
        ("1 @.@ 5 and 2 @,@ 000 <unk>", "1.5 and 2, 000 <|endoftext|>"),
    ],
)
def test_cog_replaces_marks_and_unknown_words(tokens, text):
    assert cog_text(tokens) == text


def test_the_test_file_has_sixty_articles():
    path = data_directory() / "wikitext103" / "wiki.test.tokens"
    with path.open("rb") as file:
        assert len(list(article_offsets(file))) == 61  # and what is before the first
    with path.open(encoding="utf-8", newline="\n") as lines:
        titles = [title for title, _ in wikitext_articles(lines)]
    assert len(titles) == 60 and titles[:2] == ["Robert Boulter", "Du Fu"]
