"""What is put in comes out bit for bit, within the limit, whoever asks at the same time."""

import threading

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.modeling.vector_cache import VectorCache

WIDTH = 3
ROW = 2 * WIDTH * 4
"""Bytes of a phrase's two vectors."""
ids = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


def vectors(keys, sign=1, width=WIDTH):
    """Vectors that tell whose they are."""
    own = [
        [sign * float(hash(key) % 99991) / 7 + column for column in range(width)] for key in keys
    ]
    return numpy.array(own, numpy.float32).reshape(len(keys), width)


def put(cache, keys):
    cache.add(keys, vectors(keys), vectors(keys, -1))


def numbered(start, count):
    return [(number, 7) for number in range(start, start + count)]


def is_there(cache, keys):
    places, inputs, outputs = cache.find(keys)
    found = [keys[at] for at in places]
    assert places.dtype == numpy.int64
    if found:
        assert numpy.array_equal(inputs, vectors(found))
        assert numpy.array_equal(outputs, vectors(found, -1))
    return set(found)


@given(st.lists(st.lists(ids, max_size=12), max_size=8), st.integers(0, 40))
def test_what_is_found_is_what_was_put_in_and_the_limit_holds(requests, rows):
    cache = VectorCache(rows * ROW)
    for keys in requests:
        is_there(cache, keys)
        put(cache, keys)
        assert len(cache) <= rows
    wanted = {key for request in requests for key in request}
    if rows >= 2 * len(wanted):
        assert is_there(cache, list(wanted)) == wanted


@given(st.lists(ids, max_size=30))
@settings(max_examples=50)
def test_with_room_for_all_nothing_is_lost_and_order_and_repeats_are_kept(keys):
    cache = VectorCache(1 << 20)
    put(cache, keys)
    places, inputs, _ = cache.find(keys)
    assert places.tolist() == list(range(len(keys)))
    assert not keys or numpy.array_equal(inputs, vectors(keys))


def test_values_are_not_rounded():
    odd = numpy.array([[1 / 3, numpy.nan, -0.0]], numpy.float32)
    cache = VectorCache()
    cache.add([(1, 2)], odd, -odd)
    _, inputs, outputs = cache.find([(1, 2)])
    assert inputs.tobytes() == odd.tobytes()
    assert outputs.tobytes() == (-odd).tobytes()


def test_what_was_used_last_stays():
    cache = VectorCache(40 * ROW)
    old, used = numbered(0, 20), numbered(100, 20)
    put(cache, old)
    put(cache, used)
    is_there(cache, old)
    put(cache, numbered(200, 20))
    assert is_there(cache, old) == set(old)
    assert not is_there(cache, used)


def test_more_than_fits_keeps_the_last_of_them():
    cache = VectorCache(10 * ROW)
    keys = numbered(0, 35)
    put(cache, keys)
    assert is_there(cache, keys) == set(keys[-10:])


def test_what_is_there_already_is_left_as_it_is():
    cache = VectorCache()
    put(cache, [(1, 2)])
    cache.add([(1, 2)], vectors([(9, 9)]), vectors([(9, 9)]).copy())
    assert is_there(cache, [(1, 2)]) == {(1, 2)}
    assert len(cache) == 1


def test_tied_vectors_are_kept_once():
    cache, keys = VectorCache(20 * ROW), numbered(0, 40)
    tied = vectors(keys)
    cache.add(keys, tied, tied)
    _, inputs, outputs = cache.find(keys)
    assert inputs is outputs
    assert numpy.array_equal(inputs, tied)
    assert len(cache) == 40, "twice as many fit"


def test_what_comes_out_is_a_copy():
    cache = VectorCache()
    put(cache, [(1, 2)])
    cache.find([(1, 2)])[1][:] = 0
    assert is_there(cache, [(1, 2)])


def test_an_empty_answer_can_be_assigned_to_no_rows_of_any_width():
    places, inputs, outputs = VectorCache().find([(1, 2)])
    table = numpy.ones((4, WIDTH), numpy.float32)
    table[places] = inputs
    table[places] = outputs
    assert table.all()


def test_clear_forgets_everything():
    cache = VectorCache()
    put(cache, numbered(0, 10))
    cache.clear()
    assert len(cache) == 0
    assert not is_there(cache, numbered(0, 10))
    put(cache, numbered(5, 10))
    assert len(cache) == 10


def test_vectors_of_another_width_or_type_replace_the_old():
    cache = VectorCache()
    put(cache, numbered(0, 10))
    half = vectors([(1, 2)], width=8).astype(numpy.float16)
    cache.add([(1, 2)], half, half + 1)
    assert len(cache) == 1
    assert cache.find([(1, 2)])[1].dtype == numpy.float16


def test_without_room_for_a_row_nothing_is_kept():
    cache = VectorCache(ROW - 1)
    put(cache, numbered(0, 10))
    assert len(cache) == 0


def test_threads_never_see_each_others_rows_half_written():
    cache = VectorCache(60 * ROW)
    wrong: list[Exception] = []

    def work(seed):
        random = numpy.random.default_rng(seed)
        try:
            for _ in range(200):
                keys = numbered(int(random.integers(0, 90)), 15)
                is_there(cache, keys)
                put(cache, keys)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) <= 60
