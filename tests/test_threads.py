"""Threads: at most as many as there are processors, and said so where they are asked for."""

import pytest

import univerb
from univerb.errors import OptionError
from univerb.threads import thread_count


def test_threads_are_the_cores_of_this_process():
    assert 1 <= thread_count() <= thread_count(1) * 4096
    for wrong in (0, -1, 1 << 20):
        with pytest.raises(OptionError, match=f"threads is {wrong}"):
            thread_count(wrong)


def test_torch_has_one_number_for_the_whole_process():
    with pytest.raises(OptionError, match="set_num_threads"):
        univerb.load(threads=2)
