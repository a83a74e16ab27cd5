"""The passages that a text is about: short documents as they are, others searched."""

from collections.abc import Sequence

import numpy
import pytest

from conftest import TEXT
from univerb.applications.passages import check_documents, find_passages
from univerb.documents.chunks import Chunk
from univerb.errors import DocumentError, OptionError
from univerb.phrase import Document
from univerb.retrieval.base import Hit
from univerb.retrieval.dense import VectorIndex

DOCUMENTS = [
    Document("\n" + TEXT, "lease"),
    Document("The tenant shall pay the rent on time. The rent is due each month.", "law"),
]
QUESTION = "When shall the tenant pay the rent?"
NOISE = "A ship sails across the wide sea to a far harbour. " * 40


class Fixed:
    """Finds the same chunks whatever is asked, and remembers how many it was asked for."""

    def __init__(self, *chunks: Chunk) -> None:
        self.chunks, self.asked = chunks, []

    def search(self, query: str, k: int) -> list[Hit]:
        self.asked.append(k)
        return [Hit(chunk, 1.0 - n) for n, chunk in enumerate(self.chunks)]


class ByLength:
    """An embedding model to whom the longest text is the nearest."""

    name = "by length"

    def features(self, texts: Sequence[str]) -> dict[str, numpy.ndarray]:
        return {"vectors": numpy.array([[len(text)] for text in texts], numpy.float32)}

    def index(self, shards):
        vectors = numpy.concatenate([shard["vectors"] for shard in shards])
        return VectorIndex(vectors, lambda _: numpy.ones((1, 1), numpy.float32))


def test_short_documents_are_passages_as_they_are():
    passages = find_passages(QUESTION, DOCUMENTS)
    assert passages == (Chunk("lease", 1, TEXT), Chunk("law", 0, DOCUMENTS[1].text))
    assert find_passages("Something else entirely", DOCUMENTS) == passages


def test_long_documents_are_searched():
    documents = [Document(NOISE + TEXT + NOISE, "long"), Document("Bread rises by yeast.", "bread")]
    passages = find_passages(QUESTION, documents, k=2)
    assert "tenant" in passages[0].text and passages[0].start > 0 and len(passages) <= 2
    for passage in passages:
        text = {document.name: document.text for document in documents}[passage.document]
        assert text[passage.start : passage.end] == passage.text


def test_more_documents_than_passages_are_searched():
    documents = [
        Document(f"Number {n} is {'rent' if n == 7 else 'calm'}.", str(n)) for n in range(9)
    ]
    assert find_passages("Which has the rent?", documents, k=1)[0].document == "7"


def test_nothing_is_found_where_nothing_fits():
    assert find_passages("xyzzy", [Document(NOISE, "sea"), Document(NOISE + "x", "c")]) == ()
    assert find_passages("any", []) == () == find_passages("any", Fixed())


def test_any_retriever():
    chunks = [Chunk("x", n, "q") for n in range(9)]
    retriever = Fixed(*chunks)
    assert find_passages("q", retriever, k=2) == (chunks[0], chunks[1])
    assert retriever.asked == [2]


def test_an_embedding_model_ranks_again_and_both_ranks_count():
    chunks = [Chunk("x", 10 * n, text) for n, text in enumerate(["a b c", "a", "b c", "a b c d"])]
    retriever = Fixed(*chunks)
    # Ranks 1, 4, 3, 2 by length: the first and the last have the best sums, in that order.
    assert find_passages("q", retriever, 4, ByLength())[:2] == (chunks[0], chunks[3])
    assert find_passages("q", retriever, 1, ByLength()) == (chunks[0],)
    assert min(retriever.asked) > 4, "there is nothing to rank again"
    assert find_passages("q", Fixed(chunks[1]), 4, ByLength()) == (chunks[1],)


@pytest.mark.parametrize("k", [0, -1, None, "3", 1.5])
def test_a_number_of_passages_that_makes_no_sense(k):
    with pytest.raises(OptionError, match="at least 1"):
        find_passages(QUESTION, DOCUMENTS, k)


@pytest.mark.parametrize(
    ("documents", "word"),
    [
        ([], "read_documents"),
        ("lease.txt", "read_documents"),
        (["a text"], "read_documents"),
        (None, "read_documents"),
        ([Document("a", "x"), Document("b", "x")], "2 documents are called 'x'"),
    ],
)
def test_documents_that_cannot_be_used(documents, word):
    with pytest.raises(DocumentError, match=word):
        check_documents(documents)


def test_a_retriever_and_documents_of_different_names_can_be_used():
    check_documents(DOCUMENTS)
    check_documents(tuple(DOCUMENTS))
    check_documents(Fixed())
