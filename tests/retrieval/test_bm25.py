"""BM25: the formula, whatever the sharding, through disk and threads."""

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.retrieval.base import Index
from univerb.retrieval.bm25 import BM25

WORDS = ["tenant", "rent", "Rent", "notice", "the", "of", "a", "é", "naïve", "東京", "x_1", "don't"]
TEXT = st.lists(st.sampled_from([*WORDS, ".", "\n"]), max_size=8).map(" ".join)
TEXTS = st.lists(TEXT | st.text(max_size=12), max_size=12)
STOP_WORDS = {"the", "of", "a"}


def split(text: str) -> list[str]:
    words = re.findall(r"[^\W]{2,}", text.lower())
    return [word for word in words if word not in STOP_WORDS]


def by_hand(texts: list[str], query: str, k1: float = 1.5, b: float = 0.75) -> list[float]:
    documents = [Counter(split(text)) for text in texts]
    mean = sum(sum(one.values()) for one in documents) / max(len(documents), 1)
    scores = []
    for one in documents:
        score = 0.0
        for term in split(query):
            n = sum(term in other for other in documents)
            if one[term]:
                idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
                norm = k1 * (1 - b + b * sum(one.values()) / mean)
                score += idf * one[term] / (norm + one[term])
        scores.append(score)
    return scores


def built(texts: list[str], cuts: list[int] | None = None) -> Index:
    method = BM25()
    edges = [0, *sorted(cut % (len(texts) + 1) for cut in cuts or []), len(texts)]
    parts = [texts[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    return method.index([method.features(part) for part in parts])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(st.lists(TEXT, max_size=12), TEXT)
def test_scores_are_those_of_the_formula(texts, query):
    expected = by_hand(texts, query)
    found = dict(built(texts).rank(query, len(texts) + 3))
    assert found.keys() == {i for i, score in enumerate(expected) if score > 0}
    assert all(math.isclose(score, expected[i], rel_tol=1e-4) for i, score in found.items())


@given(TEXTS, TEXT, st.integers(0, 6))
def test_best_first_and_ties_by_number(texts: list[str], query: str, k: int):
    index = built(texts)
    every = index.rank(query, 1000)
    assert every == sorted(every, key=lambda pair: (-pair[1], pair[0]))
    assert index.rank(query, k) == every[:k]


@settings(max_examples=40)
@given(TEXTS, TEXT, st.lists(st.integers(0, 12), max_size=4))
def test_sharding_changes_neither_ranking_nor_bytes(tmp_path_factory, texts, query, cuts):
    whole, parts = built(texts), built(texts, cuts)
    assert whole.rank(query, 20) == parts.rank(query, 20)
    folders = [tmp_path_factory.mktemp("index") for _ in range(2)]
    whole.save(folders[0])
    parts.save(folders[1])
    assert files(folders[0]) == files(folders[1])
    assert BM25().load(folders[0], len(texts)).rank(query, 20) == whole.rank(query, 20)


def test_files_have_neither_pickles_nor_texts(tmp_path: Path):
    built(["The tenant pays rent", "Nothing here"]).save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy", ".json"}
    for path in tmp_path.glob("*.npy"):
        assert numpy.load(path, allow_pickle=False).dtype.kind in "if"
    assert not any(b"tenant pays" in content for content in files(tmp_path).values())


@pytest.mark.parametrize("texts", [[], [""], ["the of", "?"]])
def test_texts_without_words(texts: list[str], tmp_path: Path):
    index = built(texts)
    index.save(tmp_path)
    assert index.rank("rent", 3) == BM25().load(tmp_path, len(texts)).rank("rent", 3) == []
    assert BM25().index([]).rank("rent", 3) == []


@pytest.mark.parametrize("query", ["", " ", "the of a", "unheard", "?!"])
def test_queries_without_known_words(query: str):
    assert built(["rent is due", "notice"]).rank(query, 5) == []


def test_features_are_plain_arrays():
    features = BM25().features(["Rent, rent and notice", ""])
    assert features["terms"].tolist() == [1, 1, 0]
    assert features["lengths"].tolist() == [3, 0]
    assert features["vocabulary"].tobytes() == b"notice\nrent"
    kinds = {name: array.dtype.name for name, array in features.items()}
    assert kinds == {"terms": "int32", "lengths": "int32", "vocabulary": "uint8"}


def test_threads_share_an_index(tmp_path: Path):
    texts = [f"rent {i} notice {i % 7} tenant" for i in range(500)]
    built(texts).save(tmp_path)
    index = BM25().load(tmp_path, len(texts))
    queries = [f"notice {i % 7} rent {i}" for i in range(200)]
    expected = [index.rank(query, 9) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.rank(query, 9), queries)) == expected
