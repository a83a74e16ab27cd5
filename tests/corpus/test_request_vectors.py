"""Vectors that requests had to encode: kept for later processes, and never trusted blindly."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy
import pytest

from univerb.corpus.request_vectors import RequestVectors
from univerb.corpus.vector_rows import RowFormat

LAYOUT = RowFormat("int8", 8, is_tied=False)


def make(path: Path, fingerprint: str = "one", layout: RowFormat = LAYOUT, **options: int):
    return RequestVectors(fingerprint, layout, path / "cache" / "v.sqlite", **options)


def some(keys, seed: int = 0):
    return numpy.random.default_rng(seed).normal(size=(2, len(keys), 8)).astype(numpy.float32)


def test_what_one_process_encoded_another_finds(tmp_path):
    keys = [(1, 2), (3,), (70_000, 5, 6)]
    places, *nothing = make(tmp_path).find(keys)
    assert len(places) == 0 and [side.shape for side in nothing] == [(0, 8), (0, 8)]
    assert not (tmp_path / "cache").exists(), "to look for something writes nothing"
    kept = make(tmp_path).add(keys, some(keys))
    places, *sides = make(tmp_path).find([(9,), *reversed(keys)])
    assert places.tolist() == [1, 2, 3]
    for side, before in zip(sides, kept, strict=True):
        assert (side == before[::-1]).all()


def test_other_encoders_and_layouts_have_their_own(tmp_path):
    keys = [(1, 2)]
    make(tmp_path).add(keys, some(keys))
    others = RowFormat("float16", 8, is_tied=False)
    assert not len(make(tmp_path, "two").find(keys)[0])
    assert not len(make(tmp_path, layout=others).find(keys)[0])
    assert len(make(tmp_path).find(keys)[0])


def test_the_oldest_make_room(tmp_path):
    capacity = 64 << 10
    vectors = make(tmp_path, capacity=capacity)
    for number in range(40):
        keys = [(number, index) for index in range(100)]
        vectors.add(keys, some(keys))
    assert (tmp_path / "cache" / "v.sqlite").stat().st_size < 3 * capacity
    assert len(vectors.find([(39, 99)])[0]) and not len(vectors.find([(0, 0)])[0])


@pytest.mark.parametrize("damage", ["garbage", "cut", "flipped", "text", "no table", "a folder"])
def test_a_damaged_cache_is_no_error_and_gives_nothing_wrong(tmp_path, damage):
    vectors, path = make(tmp_path), tmp_path / "cache" / "v.sqlite"
    keys = [(number,) for number in range(50)]
    kept = vectors.add(keys, some(keys))
    data = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"x" * len(data))
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        change = {
            "flipped": "UPDATE vectors SET row = substr(row, 1, 6) || x'ff' || substr(row, 8)",
            "text": "UPDATE vectors SET row = 'text'",
            "no table": "DROP TABLE vectors",
        }[damage]
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(change)
    places, *sides = vectors.find(keys)
    for side, before in zip(sides, kept, strict=True):
        assert (side == before[places]).all()
    vectors.add(keys, some(keys))
    assert [len(side) for side in vectors.add(keys, some(keys))] == [50, 50]


def test_a_cache_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    keys = [(1, 2)]
    assert not len(make(tmp_path).find(keys)[0])
    assert len(make(tmp_path).add(keys, some(keys))[0]) == 1


def test_many_write_at_once(tmp_path):
    keys = [(number,) for number in range(200)]

    def add(seed: int) -> None:
        make(tmp_path).add(keys[seed * 20 :], some(keys[seed * 20 :], seed))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(8)))
    assert len(make(tmp_path).find(keys)[0]) == len(keys)
