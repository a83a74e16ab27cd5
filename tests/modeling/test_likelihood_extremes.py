"""Likelihoods of long texts, and of phrases that hardly fit."""

import numpy
import pytest

from univerb.modeling.likelihood import (
    bare_likelihood,
    exact_likelihood,
    fits,
    scored_text,
    strict_likelihood,
)


def test_a_text_of_two_thousand_tokens_does_not_vanish():
    """Token by token e^-20, one phrase in ten places e^-1: far below the smallest float."""
    size, keys = 2000, [(1, 1), (1, 1, 1)]
    own, tokens = numpy.full(size, -20.0), numpy.zeros(size)
    scores = numpy.full((size, 2), -numpy.inf)
    scores[::10, 0] = -1.0
    text = scored_text(fits([1] * size, keys), own, tokens, scores)
    assert bare_likelihood(text) == -40_000.0
    [exact], [strict] = exact_likelihood(text, [0.0]), strict_likelihood(text, [0.0])
    # At each tenth place a phrase saves 39 nats; both ways there pay for the larger softmax.
    saved = 200 * (39.0 - numpy.logaddexp(0.0, -1.0))
    assert exact == pytest.approx(-40_000.0 + saved, rel=1e-9)
    assert strict <= exact


def test_a_phrase_longer_than_the_text_counts_only_as_a_beginning():
    found = fits([4, 5], [(4, 5, 6), (5, 9, 9, 9), (5, 8), (9, 4, 5)])
    assert [[fit.phrase for fit in place] for place in found] == [[0], [1, 2]]
    found = fits([4, 5], [(4, 5, 6), (5, 9, 9, 9), (4, 6)])
    text = scored_text(found, numpy.zeros(2), numpy.ones(2), numpy.zeros((2, 3)))
    whole = numpy.logaddexp(1.0, numpy.log(3.0))
    assert strict_likelihood(text, [0.0])[0] == pytest.approx(-2 * whole)
    direct = numpy.exp(-whole) + numpy.exp(-2 * whole) * 2
    assert exact_likelihood(text, [0.0])[0] == pytest.approx(numpy.log(direct))


def test_phrases_that_cannot_be_chosen_change_nothing():
    text = scored_text(
        fits([1, 1, 1], [(1, 1)]),
        numpy.zeros(3),
        numpy.ones(3),
        numpy.full((3, 1), -numpy.inf, dtype=numpy.float32),
    )
    assert exact_likelihood(text, [0.0, 100.0]).tolist() == [-3.0, -3.0]


def test_no_text_has_probability_one():
    text = scored_text(fits([], [(1, 2)]), [], [], numpy.zeros((0, 1)))
    assert exact_likelihood(text, [0.0]).tolist() == strict_likelihood(text, [1.0]).tolist() == [0]
    assert bare_likelihood(text) == 0.0
