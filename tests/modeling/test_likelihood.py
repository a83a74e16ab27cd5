"""The likelihood over V + P against the enumeration of all segmentations; long and odd texts."""

import functools
import itertools
import math

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from univerb.modeling.likelihood import (
    ScoredText,
    bits_per_byte,
    exact_likelihood,
    match_phrases,
    scored_text,
    segmentations,
    strict_likelihood,
)

BIASES = (-8.0, -1.0, 0.0, 2.5, 9.0)
WIDTH = 3
END = 0
"""No phrase contains it."""
TOKEN = st.integers(0, WIDTH - 1)
IDS = st.lists(TOKEN, min_size=1, max_size=7)
PHRASES = st.lists(
    st.lists(st.integers(1, WIDTH - 1), min_size=1, max_size=4).map(tuple), max_size=6, unique=True
)


class ToyLM:
    """An LM whose logits are a fixed random function of the text so far."""

    def __init__(self, seed, phrases):
        self.seed, self.phrases = seed, phrases
        self._rows = functools.cache(self._made)

    def row(self, prefix):
        return self._rows(tuple(prefix))

    def _made(self, prefix):
        noise = numpy.random.default_rng([self.seed, len(prefix), *prefix])
        return noise.normal(size=WIDTH) * 2, noise.normal(size=len(self.phrases)) * 2

    def scored(self, ids) -> ScoredText:
        rows = [self.row(ids[:place]) for place in range(len(ids))]
        logits = numpy.array([row[0] for row in rows]).reshape(len(ids), WIDTH)
        scores = numpy.array([row[1] for row in rows]).reshape(len(ids), len(self.phrases))
        own = logits[numpy.arange(len(ids)), ids]
        tokens = numpy.log(numpy.exp(logits).sum(-1))
        return scored_text(match_phrases(ids, self.phrases), own, tokens, scores)

    def share(self, ids, place, unit, bias):
        """The probability of a unit: a token, or -1 - a phrase's number."""
        logits, scores = self.row(ids[:place])
        weights = numpy.exp(numpy.concatenate([logits, scores + bias]))
        return weights[unit if unit >= 0 else WIDTH - 1 - unit] / weights.sum()


def ways(ids, phrases, place=0):
    """All ways to begin with a text, as lists of (place, unit, size)."""
    if place >= len(ids):
        return [[]]
    left = tuple(ids[place:])
    units = [(place, ids[place], 1)]
    units += [
        (place, -1 - number, len(key))
        for number, key in enumerate(phrases)
        if left[: len(key)] == key[: len(left)]
    ]
    return [[unit, *more] for unit in units for more in ways(ids, phrases, place + unit[2])]


def way_share(lm, ids, way, bias):
    return math.prod(lm.share(ids, place, unit, bias) for place, unit, _ in way)


@given(st.integers(0, 999), IDS, PHRASES)
@settings(max_examples=40)
@example(0, [1, 2], [(1, 2), (1, 2, 1), (2, 1)])
@example(0, [1] * 7, [(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)])
@example(0, [0], [])
def test_exact_is_the_sum_over_all_segmentations(seed, ids, phrases):
    lm = ToyLM(seed, phrases)
    text, every = lm.scored(ids), ways(ids, phrases)
    for bias in BIASES:
        expected = math.log(sum(way_share(lm, ids, way, bias) for way in every))
        assert exact_likelihood(text.biased(bias)) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 999), IDS, PHRASES)
@settings(max_examples=50)
@example(0, [1, 1, 1, 2], [(1, 1), (1, 1, 1), (2, 1)])
def test_strict_is_one_of_them_with_the_longest_phrases(seed, ids, phrases):
    lm = ToyLM(seed, phrases)
    plain = lm.scored(ids)
    inside = [way for way in ways(ids, phrases) if way[-1][0] + way[-1][2] <= len(ids)]
    longest = max(inside, key=lambda way: [size * 2 - (unit >= 0) for _, unit, size in way])
    for bias in BIASES:
        text = plain.biased(bias)
        expected = math.log(way_share(lm, ids, longest, bias))
        assert strict_likelihood(text) == pytest.approx(expected, abs=1e-9)
        assert strict_likelihood(text) <= exact_likelihood(text) + 1e-9


@given(st.integers(0, 999), st.lists(TOKEN, max_size=5), PHRASES, st.sampled_from(BIASES))
@settings(max_examples=50)
@example(0, [], [(1, 2), (1,)], 0.0)
@example(0, [1, 2], [(2, 1, 1), (1, 2, 1, 1)], 2.5)
def test_what_can_follow_adds_up_to_what_is_there(seed, ids, phrases, bias):
    lm = ToyLM(seed, phrases)

    def mass(text):
        return math.exp(exact_likelihood(lm.scored(text).biased(bias)))

    assert sum(mass([*ids, token]) for token in range(WIDTH)) == pytest.approx(mass(ids))
    if END not in ids:
        # The end token is part of no phrase: only whole segmentations reach it.
        whole = [w for w in ways(ids, phrases) if not w or w[-1][0] + w[-1][2] <= len(ids)]
        ended = sum(way_share(lm, ids, way, bias) for way in whole)
        ended *= lm.share([*ids, END], len(ids), END, bias)
        assert mass([*ids, END]) == pytest.approx(ended)


@given(st.integers(0, 999), IDS, PHRASES)
def test_without_phrases_or_any_boldness_it_is_the_bare_one(seed, ids, phrases):
    lm = ToyLM(seed, phrases)
    text, none = lm.scored(ids), ToyLM(seed, []).scored(ids)
    bare = pytest.approx(float((text.token_logits - text.token_total).sum()), abs=1e-9)
    for bias in BIASES:
        assert exact_likelihood(none.biased(bias)) == bare
        assert strict_likelihood(none.biased(bias)) == bare
    assert exact_likelihood(text.biased(-1e6)) == bare


@given(IDS, PHRASES)
def test_matches_are_the_phrases_that_agree(ids, phrases):
    for place, found in enumerate(match_phrases(ids, phrases)):
        left = tuple(ids[place:])
        expected = {n for n, key in enumerate(phrases) if key[: len(left)] == left[: len(key)]}
        assert {match.phrase for match in found} == expected and len(found) == len(expected)
        assert all(match.size == len(phrases[match.phrase]) for match in found)


def test_a_text_that_every_way_must_write_has_probability_one():
    # One token, and phrases of it: whatever is chosen, the text goes on with it.
    ids, phrases = [1] * 5, [(1, 1), (1, 1, 1)]
    found = match_phrases(ids, phrases)
    rows = list(itertools.repeat([0.3, -0.2], len(ids)))
    text = scored_text(found, [0.7] * 5, [0.7] * 5, numpy.array(rows))
    for bias in BIASES:
        assert exact_likelihood(text.biased(bias)) == pytest.approx(0.0, abs=1e-12)


def test_bits_per_byte():
    assert bits_per_byte(-math.log(2) * 24, 12) == pytest.approx(2.0)
    assert bits_per_byte(0.0, 0) == 0.0


def test_a_text_of_two_thousand_tokens_does_not_vanish():
    """Token by token e^-20, one phrase in ten places e^-1: far below the smallest float."""
    size, keys = 2000, [(1, 1), (1, 1, 1)]
    own, tokens = numpy.full(size, -20.0), numpy.zeros(size)
    scores = numpy.full((size, 2), -numpy.inf)
    scores[::10, 0] = -1.0
    text = scored_text(match_phrases([1] * size, keys), own, tokens, scores)
    exact, strict = exact_likelihood(text), strict_likelihood(text)
    # At each tenth place a phrase saves 39 nats; both ways there pay for the larger softmax.
    saved = 200 * (39.0 - numpy.logaddexp(0.0, -1.0))
    assert exact == pytest.approx(-40_000.0 + saved, rel=1e-9)
    assert strict <= exact


def test_a_phrase_longer_than_the_text_counts_only_as_a_beginning():
    found = match_phrases([4, 5], [(4, 5, 6), (5, 9, 9, 9), (5, 8), (9, 4, 5)])
    assert [[match.phrase for match in place] for place in found] == [[0], [1, 2]]
    found = match_phrases([4, 5], [(4, 5, 6), (5, 9, 9, 9), (4, 6)])
    text = scored_text(found, numpy.zeros(2), numpy.ones(2), numpy.zeros((2, 3)))
    whole = numpy.logaddexp(1.0, numpy.log(3.0))
    assert strict_likelihood(text) == pytest.approx(-2 * whole)
    direct = numpy.exp(-whole) + numpy.exp(-2 * whole) * 2
    assert exact_likelihood(text) == pytest.approx(numpy.log(direct))


def test_phrases_that_cannot_be_chosen_change_nothing():
    text = scored_text(
        match_phrases([1, 1, 1], [(1, 1)]),
        numpy.zeros(3),
        numpy.ones(3),
        numpy.full((3, 1), -numpy.inf, dtype=numpy.float32),
    )
    assert exact_likelihood(text) == exact_likelihood(text.biased(100.0)) == -3.0


def test_no_text_has_probability_one():
    text = scored_text(match_phrases([], [(1, 2)]), [], [], numpy.zeros((0, 1)))
    assert exact_likelihood(text) == strict_likelihood(text.biased(1.0)) == 0.0


# Units of any kind, forwards and backwards

UNITS = st.sets(st.tuples(st.integers(0, 5), st.integers(2, 4)))


@given(st.integers(1, 6), UNITS, st.integers(0, 5), st.sampled_from([0.0, 0.5, 3.0]), st.data())
def test_units_are_summed_over_all_segmentations(size, longer, offset, price, data):
    inside = {(at, at + length) for at, length in longer if at + length <= size}
    pairs = sorted({(at, at + 1) for at in range(size)} | inside)
    values = [data.draw(st.floats(-20.0, 5.0)) for _ in pairs]
    begin, end = (numpy.array(side) + offset for side in zip(*pairs, strict=True))
    found = segmentations(begin, end, numpy.array(values), price)

    def all_ways(place):
        if place == size:
            return [[]]
        here = [number for number, (start, _) in enumerate(pairs) if start == place]
        return [[number, *more] for number in here for more in all_ways(pairs[number][1])]

    shares = {
        tuple(way): math.exp(sum(values[n] for n in way) + price * (size - len(way)))
        for way in all_ways(0)
    }
    total = sum(shares.values())
    assert found.log_likelihood == pytest.approx(math.log(total), abs=1e-9)
    for number, posterior in enumerate(found.posterior.tolist()):
        wanted = sum(share for way, share in shares.items() if number in way) / total
        assert posterior == pytest.approx(wanted, abs=1e-9)
    # Each token belongs to one unit.
    for token in range(offset, offset + size):
        covers = (begin <= token) & (token < end)
        assert found.posterior[covers].sum() == pytest.approx(1.0)


def test_a_long_text_of_many_units_neither_over_nor_underflows():
    size, longest = 3000, 8
    pairs = [(a, b) for a in range(size) for b in range(a + 1, min(a + longest, size) + 1)]
    begin, end = (numpy.array(side) for side in zip(*pairs, strict=True))
    for value in (-500.0, 30.0):
        found = segmentations(begin, end, numpy.full(len(pairs), value))
        assert math.isfinite(found.log_likelihood)
        covers = (begin <= size // 2) & (size // 2 < end)
        assert found.posterior[covers].sum() == pytest.approx(1.0)
