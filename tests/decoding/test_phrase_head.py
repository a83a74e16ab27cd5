"""The phrase head: what is looked at is scored right, what is left out is what the docs say."""

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import stir
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.decoding.phrase_head import PhraseHead, Place
from univerb.engines.base import ShortList
from univerb.engines.llamacpp.phrase_weights import NumpyPhraseWeights
from univerb.engines.torch.phrase_weights import TorchPhraseWeights
from univerb.modeling import phrase_table as table
from univerb.modeling.phrase_table import FirstTokenGroups, PhraseTable, PhraseVectors
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

WIDTH, SIZE = 16, 50


class Model:
    """The little of an LM that the head asks for: random vectors, kept in a table."""

    name = "random"

    def __init__(self, seed=0):
        self._random = numpy.random.default_rng(seed)
        self._vectors = {}
        self.encoded = 0
        self._table = PhraseTable(self.vectors, lambda: -1.0)

    def vectors(self, phrases):
        self.encoded += len(phrases)
        for phrase in phrases:
            if phrase.ids not in self._vectors:
                self._vectors[phrase.ids] = self._random.normal(size=WIDTH).astype("f4")
        rows = numpy.array([self._vectors[phrase.ids] for phrase in phrases])
        return PhraseVectors(rows, rows.copy())

    def encode(self, vocabulary):
        return self._table.sync(vocabulary)


def phrases(count, start=0):
    return [
        Phrase((1 + n % 7, n + 10), f" p{n}", weight=n % 3) for n in range(start, start + count)
    ]


def head(model, vocabulary, weights, eos_ids=frozenset(), **options):
    config = GenerationConfig(**{"phrase_bias": 0.5} | options)
    made = PhraseHead(model, weights, vocabulary, config, eos_ids)
    made.update()
    return made


def everything(head, hidden, longest=99):
    return head.logits(at(hidden, longest))


def at(hidden, longest=99, logits=None):
    return Place(hidden, numpy.zeros(SIZE, "f4") if logits is None else logits, [0], longest)


def slow(model, vocabulary, hidden, longest=99):
    """Every active phrase's logit by its number."""
    state = vocabulary.snapshot()
    return {
        number: float(model._vectors[phrase.ids] @ hidden) - 1.0 + 0.5 + phrase.weight
        for number, phrase in enumerate(state.phrases)
        if state.active[number] and len(phrase) <= longest
    }


def found(scored):
    pairs = zip(scored.indices.tolist(), scored.logits.tolist(), strict=True)
    return {number: logit for number, logit in pairs if logit > -math.inf}


ROWS = [lambda: TorchPhraseWeights(torch.device("cpu")), NumpyPhraseWeights]


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("half_from", [10, 10_000])
@given(
    tokens=st.sets(st.integers(0, 12)), gone=st.sets(st.integers(0, 39)), more=st.integers(0, 30)
)
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_every_phrase_one_by_one(make, half_from, tokens, gone, more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "HALF_FROM", half_from)
        model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(40))
        own = head(model, vocabulary, make())
        vocabulary.remove(10_000 + number for number in gone)
        vocabulary.add(phrases(more, start=40))
        own.update()
        hidden = numpy.random.default_rng(1).normal(size=WIDTH).astype("f4")
        expected = slow(model, vocabulary, hidden)
        # Half-precision rows are as near as half precision is.
        near = 2e-2 if half_from == 10 else 1e-5
        whole = everything(own, hidden)
        assert found(whole) == pytest.approx(expected, abs=near) if expected else whole is None
        some = own.logits_by_first_token(numpy.array(sorted(tokens)), at(hidden, 99))
        begin = {
            n: v for n, v in expected.items() if vocabulary.phrase(10_000 + n).ids[0] in tokens
        }
        assert (found(some) if some else {}) == pytest.approx(begin, abs=near)
        for number in range(vocabulary.size):
            assert own.is_masked(number) == (number not in expected)


def test_the_best_of_half_precision_rows_are_multiplied_in_single_precision(monkeypatch):
    monkeypatch.setattr(table, "HALF_FROM", 10)
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(500))
    own = head(model, vocabulary, TorchPhraseWeights(torch.device("cpu")))
    hidden = 9 * numpy.random.default_rng(2).normal(size=WIDTH).astype("f4")
    scored = everything(own, hidden)
    view = model.encode(vocabulary)
    assert view.outputs.dtype == numpy.float16
    rows = view.outputs[view.rows[scored.indices]].astype("f4")
    best = numpy.argsort(-scored.logits)[:8]
    exact = rows[best] @ hidden + view.bias[view.rows[scored.indices[best]]] + 0.5
    numpy.testing.assert_allclose(scored.logits[best], exact, atol=1e-4)


def test_long_and_banned_phrases_and_those_after_an_end_are_left_out():
    some = [
        Phrase((1, 2), "ab"),
        Phrase((1, 3, 4), "abc"),
        Phrase((1, 9), "x"),
        Phrase((2, 5), "b"),
    ]
    model, vocabulary = Model(), DynamicVocabulary(10_000, some)
    options = {"ban": ("b",), "eos_ids": frozenset({9})}
    hidden = numpy.ones(WIDTH, "f4")
    assert everything(head(model, vocabulary, NumpyPhraseWeights(), **options), hidden) is None
    free = head(model, vocabulary, NumpyPhraseWeights())
    assert sorted(found(everything(free, hidden, 2))) == [0, 2, 3]
    assert sorted(found(free.logits_by_first_token(numpy.array([1]), at(hidden, 2)))) == [0, 2]


def test_a_short_list_has_the_likeliest_first_tokens_and_few_of_each(monkeypatch):
    few = ShortList(min_phrases=1, first_tokens=2, per_token=3, max_gap=99.0)
    monkeypatch.setattr(NumpyPhraseWeights, "short_list", few)
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(70))
    own = head(model, vocabulary, NumpyPhraseWeights(), exact=False)
    logits = numpy.zeros(SIZE, "f4")
    logits[[3, 5]] = 4.0, 3.0
    scored = own.logits(at(numpy.ones(WIDTH, "f4"), logits=logits))
    assert sorted(scored.first_tokens.tolist()) == [3, 3, 3, 5, 5, 5]
    # The first ones that were put in: phrases 2, 9, 16 begin with token 3.
    assert sorted(scored.indices[scored.first_tokens == 3].tolist()) == [2, 9, 16]
    monkeypatch.setattr(NumpyPhraseWeights, "short_list", few._replace(max_gap=0.5))
    scored = own.logits(at(numpy.ones(WIDTH, "f4"), logits=logits))
    assert scored.first_tokens.tolist() == [3, 3, 3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sets(st.integers(0, 12)))
def test_groups_are_all_rows_of_each_token(first, tokens):
    rows = numpy.arange(len(first))
    groups = FirstTokenGroups(numpy.array(first, dtype=int))
    stretches = groups.find(numpy.array(sorted(tokens), dtype=int))
    got = sorted(n for stretch in stretches for n in rows[stretch].tolist())
    assert got == [n for n, token in enumerate(first) if token in tokens]


def test_phrases_that_cannot_be_chosen_are_let_go_and_come_back(monkeypatch):
    monkeypatch.setattr(table, "KEEP_COLD", 5)
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(40))
    before = model.encode(vocabulary)
    kept = before.outputs.copy()
    vocabulary.remove(range(10_000, 10_030))
    small = model.encode(vocabulary)
    assert len(small.outputs) == 10 and small.rows[:30].max() == -1
    assert numpy.array_equal(before.outputs, kept), "an older view must not change under its reader"
    assert small.in_order() is not small
    assert numpy.array_equal(small.in_order().bias[30:], before.bias[30:])
    asked = model.encoded
    vocabulary.add(phrases(2, start=4))
    back = model.encode(vocabulary)
    assert model.encoded == asked + 2, "only what came back is asked for"
    for number in (4, 5, 35):
        assert numpy.array_equal(back.outputs[back.rows[number]], kept[number])
        assert numpy.array_equal(back.input(number), before.input(number))


def test_a_vocabulary_that_was_emptied_can_still_be_read(monkeypatch):
    monkeypatch.setattr(table, "KEEP_COLD", 5)
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(40))
    model.encode(vocabulary)
    vocabulary.remove(range(10_000, 10_040))
    own = head(model, vocabulary, NumpyPhraseWeights())
    assert everything(own, numpy.ones(WIDTH, "f4")) is None
    assert (model.encode(vocabulary).in_order().bias == -math.inf).all()


def test_large_vocabularies_write_what_small_ones_do(tiny, monkeypatch):
    """Half precision, other orders and short-lists that miss nothing leave the text as it is."""
    stir(tiny)
    texts = [f"the tenant shall {verb} the premises at noon" for verb in ("keep", "leave", "clean")]
    plain = [
        generate(tiny, "the tenant", tiny.vocabulary(texts), mode=mode, phrase_bias=9.0).text
        for mode in ("atomic", "unfold")
    ]
    monkeypatch.setattr(table, "HALF_FROM", 2)
    whole = ShortList(min_phrases=1, first_tokens=tiny.static_size, per_token=99, max_gap=99.0)
    monkeypatch.setattr(TorchPhraseWeights, "short_list", whole)
    large = [
        generate(
            tiny, "the tenant", tiny.vocabulary(texts), mode=mode, phrase_bias=9.0, exact=False
        ).text
        for mode in ("atomic", "unfold")
    ]
    assert large == plain


def test_a_state_beyond_half_precision_is_scored(monkeypatch):
    monkeypatch.setattr(table, "HALF_FROM", 4)
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(70))
    own = head(model, vocabulary, TorchPhraseWeights(torch.device("cpu")), exact=True)
    small = numpy.linspace(-1, 1, WIDTH, dtype="f4")
    few, many = (everything(own, scale * small).logits - own._bias for scale in (1.0, 1e5))
    numpy.testing.assert_allclose(many / 1e5, few, atol=0.01)


def test_a_phrase_that_came_after_the_last_look_cannot_be_chosen_yet():
    model, vocabulary = Model(), DynamicVocabulary(10_000, phrases(5))
    own = head(model, vocabulary, NumpyPhraseWeights())
    vocabulary.add(phrases(5, start=5))
    assert not own.is_masked(4)
    assert own.is_masked(5)
    own.update()
    assert not own.is_masked(5)
