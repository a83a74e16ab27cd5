"""Fusion of two rankings, methods by name, and the index over chunks in memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.documents.chunks import chunked
from univerb.errors import OptionError
from univerb.phrase import Document
from univerb.retrieval.base import Features, Index
from univerb.retrieval.bm25 import BM25
from univerb.retrieval.dense import Dense, Static
from univerb.retrieval.hybrid import Hybrid, HybridIndex
from univerb.retrieval.methods import ChunkIndex, method_named

TEXTS = ["rent is due", "notice of rent", "premises", "long notice on the premises", "rent rent"]


class Fixed:
    """An index that ranks as it was told."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        return [(number, -float(i)) for i, number in enumerate(self.numbers)][:k]

    def save(self, folder: Path) -> None: ...


class Length:
    """A method that prefers long texts, whatever the query."""

    name = "length"

    def features(self, texts: Sequence[str]) -> Features:
        return {"terms": numpy.array([len(text) for text in texts], dtype=numpy.int64)}

    def index(self, shards: Sequence[Features]) -> Index:
        lengths = [int(n) for shard in shards for n in shard["terms"]]
        return Fixed(sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)))

    def load(self, folder: Path, count: int) -> Index:
        return Fixed([3, 1, 0, 4, 2])


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(0, 10))
def test_fusion_sums_reciprocal_ranks(first, second, k):
    expected = {n: 1 / (61 + first.index(n)) + 1 / (61 + second.index(n)) for n in range(8)}
    found = HybridIndex(Fixed(first), Fixed(second)).rank("any", k)
    assert found == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def test_what_only_one_method_finds_is_found():
    assert [n for n, _ in HybridIndex(Fixed([4]), Fixed([2, 3])).rank("any", 9)] == [2, 4, 3]


def test_hybrid_keeps_the_features_apart(tmp_path: Path):
    method = Hybrid(BM25(), Length())
    shards = [method.features(TEXTS[:2]), method.features(TEXTS[2:])]
    assert set(shards[0]) == {"first.terms", "first.lengths", "first.vocabulary", "second.terms"}
    index = method.index(shards)
    index.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    for query in ("rent", "premises notice", "", "unheard"):
        assert method.load(tmp_path, len(TEXTS)).rank(query, 4) == index.rank(query, 4)
    assert {n for n, _ in index.rank("rent", 9)} == set(range(5))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("bm25", BM25()),
        ("dense:/a/b:c d", Dense("/a/b:c d")),
        ("static:/a(1)", Static("/a(1)")),
        ("hybrid:bm25+static:/a", Hybrid(BM25(), Static("/a"))),
        ("hybrid:dense:/a+b+bm25", Hybrid(Dense("/a+b"), BM25())),
    ],
)
def test_methods_by_name(name: str, method: BM25 | Dense | Static | Hybrid):
    assert method_named(name) == method
    assert method_named(method.name).name == method.name


@pytest.mark.parametrize(
    "name",
    ["", "bm52", "bm25(k1=1)", "bm25:x", "dense", "dense:", "dense(max):/a", "static",
     "static(x):/a", "hybrid:bm25", "hybrid:bm25+", "hybrid:bm25+dens:/a", "hybrid(x):bm25+bm25"],
)  # fmt: skip
def test_unknown_names(name: str):
    with pytest.raises(OptionError, match="Allowed: "):
        method_named(name)


def test_unknown_name_has_a_hint():
    with pytest.raises(OptionError, match="Did you mean 'bm25'"):
        method_named("bm52")


def test_chunk_index_finds_chunks(lease: Document):
    chunks = chunked(lease, max_words=20)
    hits = ChunkIndex(chunks).search("thirty days written notice", 2)
    assert "thirty days written notice" in hits[0].chunk.text
    assert all(hit.chunk in chunks for hit in hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(ChunkIndex(chunks, Length()).search("any", 99)) == len(chunks)


def test_chunk_index_without_chunks_and_with_bad_k():
    assert ChunkIndex([]).search("rent", 3) == []
    with pytest.raises(OptionError, match="k is 0"):
        ChunkIndex([]).search("rent", 0)
