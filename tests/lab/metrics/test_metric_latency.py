"""Seconds per text: what is scaled to 128 tokens, and what is not."""

import pytest

from univerb.errors import OptionError
from univerb.lab.metrics.latency import Timing, latency

FIRST = Timing(prepare=1.0, decode=2.0, tokens=128, steps=100, decode_uncached=8.0)
SECOND = Timing(prepare=3.0, decode=2.0, tokens=64, steps=44)
THIRD = Timing(prepare=0.5, decode=9.0, tokens=128, steps=128)


def test_decoding_is_given_for_128_tokens():
    found = latency([FIRST, SECOND, THIRD])
    assert found.prepare == pytest.approx(1.0)
    assert found.decode == pytest.approx(4.0)
    assert found.total == pytest.approx(7.0)
    assert found.texts == 3


def test_without_a_cache_only_where_measured():
    assert latency([FIRST, SECOND]).decode_uncached == 8.0
    assert latency([SECOND]).decode_uncached is None


@pytest.mark.parametrize("each", [[], [FIRST, Timing(1.0, 1.0, tokens=0, steps=0)]])
def test_texts_of_nothing_have_no_latency(each):
    with pytest.raises(OptionError, match="leave out"):
        latency(each)
