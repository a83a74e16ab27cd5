"""Threads: at most as many as there are processors, and said so where they are asked for."""

import pytest

import univerb
import univerb.loading
from univerb.errors import OptionError
from univerb.threads import thread_count


def test_threads_are_the_cores_of_this_process():
    assert 1 <= thread_count() <= thread_count(1) * 4096
    for wrong in (0, -1, 1 << 20):
        with pytest.raises(OptionError, match=f"threads is {wrong}"):
            thread_count(wrong)


@pytest.mark.parametrize("engine", univerb.loading.ENGINES)
def test_more_threads_than_processors_are_refused_before_anything_loads(engine):
    with pytest.raises(OptionError, match="threads is"):
        univerb.load("/no/such/model", engine=engine, threads=1 << 20)
