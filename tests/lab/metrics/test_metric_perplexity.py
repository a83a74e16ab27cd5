"""Perplexity from log-probabilities: hand-computed streams and samples, and what always holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics.perplexity import (
    WINDOW,
    per_sample_perplexity,
    stream_perplexity,
    stream_text,
    windows,
)

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=6)


def test_texts_of_a_stream_are_paragraphs():
    assert stream_text(["a b", "c"]) == "a b\n\nc"


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 7))
def test_windows_tile_the_stream(ids, size):
    found = windows(ids, size)
    assert [token for own in found for token in own] == ids
    assert all(len(own) == size for own in found[:-1])


def test_windows_are_those_of_the_published_script():
    assert [len(own) for own in windows(range(2500))] == [WINDOW, WINDOW, 452] == [1024, 1024, 452]


def test_a_window_counts_with_its_first_token():
    """Means of ln 2 over 4 tokens and of ln 4 over 2: 8 ln 2 over 6."""
    half, quarter = math.log(0.5), math.log(0.25)
    assert stream_perplexity([[half] * 3, [quarter]]) == pytest.approx(2 ** (8 / 6))
    assert stream_perplexity([[half, quarter], []]) == pytest.approx(2**1.5)


def test_samples_are_averaged_after_the_exponential():
    half, eighth = math.log(0.5), math.log(0.125)
    assert per_sample_perplexity([[half] * 3, [eighth], []]) == pytest.approx((2 + 8) / 2)


@given(LOGPROBS)
def test_one_text_is_its_geometric_mean(logprobs):
    expected = math.exp(-sum(logprobs) / len(logprobs))
    assert stream_perplexity([logprobs]) == pytest.approx(expected)
    assert per_sample_perplexity([logprobs]) == pytest.approx(expected)


@given(st.lists(LOGPROBS, min_size=1, max_size=5))
def test_perplexity_lies_among_those_of_its_parts(each):
    own = [stream_perplexity([one]) for one in each]
    for found in (stream_perplexity(each), per_sample_perplexity(each)):
        assert min(own) * (1 - 1e-9) <= found <= max(own) * (1 + 1e-9)


@pytest.mark.parametrize("perplexity", [stream_perplexity, per_sample_perplexity])
def test_nothing_and_the_impossible(perplexity):
    assert math.isnan(perplexity([])) and math.isnan(perplexity([[]]))
    assert perplexity([[0.0, -math.inf]]) == math.inf
    assert perplexity([[-2000.0]]) == math.inf
    assert perplexity([[0.0]]) == 1.0
