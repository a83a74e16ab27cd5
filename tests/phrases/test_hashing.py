"""Hashes of stretches and the index over them, against plain dictionaries."""

import numpy
from hypothesis import example, given
from hypothesis import strategies as st

from univerb.phrases.hashing import KeyIndex, RollingHash, prepend_zero, ranges

LAST = 2**64 - 1
KEYS = st.one_of(
    st.integers(0, LAST),
    st.integers(0, 8),
    st.integers(LAST - 8, LAST),
    # Alike in their first bits: all behind one edge.
    st.integers(0, 255).map(lambda low: (0xABCDEF << 40) + low),
)


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=24))
@example([2**31 - 1, -1, 0, 2**31 - 1, -1, 0])
def test_stretches_have_equal_keys_exactly_when_they_are_equal(ids):
    pairs = [(a, b) for a in range(len(ids)) for b in range(a, len(ids) + 1)]
    first, end = numpy.array(pairs).T
    keys = RollingHash(numpy.array(ids, dtype=numpy.int32)).keys(first, end).tolist()
    stretches = [tuple(ids[a:b]) for a, b in pairs]
    assert len(set(zip(stretches, keys, strict=True))) == len(set(stretches)) == len(set(keys))


@given(st.lists(st.integers(-1, 60_000), max_size=8), st.lists(st.integers(-1, 9), max_size=30))
def test_a_key_does_not_depend_on_what_stands_before(stretch, before):
    ids = numpy.array([*before, *stretch], dtype=numpy.int32)
    begin, end = numpy.array([len(before)]), numpy.array([len(ids)])
    alone = RollingHash(ids[len(before) :]).keys(begin - begin, end - begin)
    assert RollingHash(ids).keys(begin, end).tolist() == alone.tolist()


@given(st.sets(KEYS, max_size=60), st.lists(KEYS, max_size=60))
@example(set(), [0, LAST])
@example({0}, [0, 1, LAST])
@example({LAST}, [0, LAST - 1, LAST])
@example({0, LAST}, [0, 1, LAST - 1, LAST])
def test_the_index_finds_what_a_dictionary_finds(known, others):
    ordered = sorted(known)
    asked = [*ordered, *others]
    places = {key: place for place, key in enumerate(ordered)}
    index = KeyIndex(numpy.array(ordered, dtype=numpy.uint64))
    found = index.find(numpy.array(asked, dtype=numpy.uint64))
    assert len(index) == len(known)
    assert found.tolist() == [places.get(key, -1) for key in asked]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=9))
def test_ranges_stand_one_after_the_other(pairs):
    begin, size = numpy.array(pairs, dtype=numpy.int64).reshape(-1, 2).T
    expected = [number for a, n in pairs for number in range(a, a + n)]
    assert ranges(begin, begin + size).tolist() == expected


def test_totals_begin_with_zero_and_keep_their_kind():
    totals = prepend_zero(numpy.array([3, 5], dtype=numpy.uint64))
    assert totals.tolist() == [0, 3, 5]
    assert totals.dtype == numpy.uint64
