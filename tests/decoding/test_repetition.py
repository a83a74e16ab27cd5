"""Leaving circles: what a text would repeat gives way to a phrase that leads elsewhere."""

from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.decoding import choice
from univerb.decoding.choice import choose_escape, followers, ways_back
from univerb.decoding.loop import batch, generate
from univerb.decoding.phrase_head import Scored
from univerb.engines.torch.sampling import make_sampler
from univerb.lab.metrics.repetition import rep_n
from univerb.phrase import Phrase

PROMPT = "The tenant shall have"
GREEDY = make_sampler()


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 4))
def test_followers_are_what_came_next_before(ids, size):
    text = "".join(map(str, ids))
    last = text[-size:]
    expected = Counter(
        int(text[at + size])
        for at in range(len(text) - size)
        if len(last) == size and text.startswith(last, at)
    )
    assert followers(ids, size) == expected


def test_the_likeliest_phrase_that_leads_elsewhere_is_chosen():
    first, logits = numpy.array([2, 7, 2, 8]), numpy.array([5.0, 3.0, 4.0, 1.0], numpy.float32)
    phrases = Scored(numpy.array([0, 1, 2, 3]), first, logits)
    assert choose_escape(10, phrases, {7, 8}, GREEDY).unit == 10 + 1
    assert choose_escape(10, phrases, {8}, GREEDY).unit == 10 + 3
    assert choose_escape(10, phrases, {3}, GREEDY) is None
    assert choose_escape(10, phrases, (), GREEDY) is None


def test_the_lm_circles(circling):
    assert rep_n(flat(generate(circling, PROMPT, max_tokens=80, ignore_eos=True)), 4) > 50


@pytest.mark.parametrize("mode", ["unfold", "atomic"])
def test_a_phrase_breaks_the_circle(circling, lease, mode):
    given = {"mode": mode, "phrase_bias": -50.0, "max_tokens": 80, "ignore_eos": True}
    stays, leaves = (
        generate(circling, PROMPT, circling.vocabulary([lease]), escape=size, **given)
        for size in (0, 4)
    )
    assert not stays.phrases and leaves.phrases
    assert rep_n(flat(leaves), 4) < rep_n(flat(stays), 4) - 10


@pytest.mark.parametrize(
    "escape, turns, begun",
    [
        pytest.param(4, 1, 8, id="twice as many tokens for the second time"),
        pytest.param(12, 2, 12, id="as many for the third"),
    ],
)
def test_when_a_circle_is_left(circling, lease, escape, turns, begun):
    given = {"mode": "unfold", "phrase_bias": -50.0, "max_tokens": 80, "ignore_eos": True}
    plain, left = (
        flat(generate(circling, PROMPT, circling.vocabulary([lease]), escape=size, **given))
        for size in (0, escape)
    )
    same = next(at for at, (a, b) in enumerate(zip(plain, left, strict=True)) if a != b)
    period = next(p for p in range(1, 40) if plain[30 + p : 60 + p] == plain[30:60])
    earliest = turns * period + begun
    assert earliest <= same < earliest + 5


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 3), st.integers(1, 3))
def test_ways_back_are_those_of_long_repeats_and_of_frequent_ones(ids, token, escape):
    once, longer = followers(ids, escape), followers(ids, 2 * escape)
    expected = set(once) if once[token] >= 2 else set()
    expected |= set(longer) if longer[token] >= 1 else set()
    assert ways_back(ids, token, escape) == expected


def test_what_came_long_ago_may_come_again(circling, lease, monkeypatch):
    given = {"mode": "unfold", "phrase_bias": -50.0, "max_tokens": 80, "ignore_eos": True}
    plain = flat(generate(circling, PROMPT, **given | {"mode": None}))
    period = next(p for p in range(1, 40) if plain[30 + p : 60 + p] == plain[30:60])
    for recent, leaves in ((period + 7, False), (period + 8, True)):
        monkeypatch.setattr(choice, "RECENT", recent)
        text = generate(circling, PROMPT, circling.vocabulary([lease]), escape=4, **given)
        assert (flat(text) != plain) == leaves


def test_no_phrase_is_glued_to_the_word_before(circling):
    tokenizer = circling.tokenizer
    bare = [n for n in range(1, circling.static_size) if not tokenizer.has_space(n)][40:60]
    vocabulary = circling.vocabulary([Phrase((n, n), tokenizer.decode([n, n])) for n in bare])
    given = {"mode": "unfold", "phrase_bias": -50.0, "max_tokens": 60, "ignore_eos": True}
    stays, tried = (generate(circling, PROMPT, vocabulary, escape=size, **given) for size in (0, 4))
    assert flat(tried) == flat(stays)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_change_nothing_about_it(circling, lease, temperature):
    given = {"mode": "unfold", "phrase_bias": -50.0, "max_tokens": 80, "ignore_eos": True}
    given |= {"temperature": temperature, "seed": 3}
    own = flat(generate(circling, PROMPT, **given | {"mode": None}))
    phrases = [Phrase(tuple(own[at : at + 4]), "x") for at in range(40, 60)]
    plain, guessed = (
        generate(circling, PROMPT, circling.vocabulary([*phrases, lease]), escape=4, draft=raised,
                 **given)
        for raised in (-1000.0, 200.0)
    )  # fmt: skip
    assert flat(guessed) == flat(plain) != own
    assert guessed.stats.steps < plain.stats.steps


def test_an_escape_is_explained_by_the_phrases_that_lead_elsewhere(circling, lease):
    text = generate(circling, PROMPT, circling.vocabulary([lease]), mode="atomic", escape=4,
                    phrase_bias=-50.0, max_tokens=60, ignore_eos=True, explain=True)  # fmt: skip
    escaped = next(piece for piece in text.pieces if piece.phrase)
    assert escaped.text in [one.text for one in escaped.candidates if one.is_phrase]


def test_verify_and_a_text_without_phrases_circle_as_the_lm_does(circling, lease):
    given = {"max_tokens": 60, "ignore_eos": True, "escape": 4}
    plain = flat(generate(circling, PROMPT, **given | {"escape": 0}))
    assert flat(generate(circling, PROMPT, **given)) == plain
    verified = generate(circling, PROMPT, circling.vocabulary([lease]), mode="verify", **given)
    assert flat(verified) == plain


def test_a_text_of_a_batch_leaves_its_circle_as_it_does_alone(circling, lease):
    given = {"max_tokens": 60, "ignore_eos": True, "escape": 4, "phrase_bias": -5.0}
    prompts = [PROMPT, "Rent is due"]
    vocabularies = [circling.vocabulary([lease]) for _ in prompts]
    together = batch(circling, prompts, vocabularies, mode="unfold", **given)
    for prompt, vocabulary, text in zip(prompts, vocabularies, together, strict=True):
        alone = generate(circling, prompt, vocabulary, mode="unfold", **given)
        assert flat(text) == flat(alone)


def test_verify_reads_what_it_wrote_before_in_one_pass_and_names_no_phrase_for_it(circling):
    given = {"max_tokens": 80, "ignore_eos": True}
    plain = generate(circling, PROMPT, **given)
    vocabulary = circling.vocabulary([Phrase(tuple(flat(plain)[40:44]), "x")])
    one, several = (
        generate(
            circling, PROMPT, vocabulary, mode="verify", phrase_bias=-50.0, draft=draft, **given
        )
        for draft in (-1.0, 1.0)
    )
    assert flat(one) == flat(several) == flat(plain)
    assert several.stats.steps < one.stats.steps / 2
    assert not several.phrases
