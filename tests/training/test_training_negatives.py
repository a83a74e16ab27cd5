"""Negatives and batches, against slow readings of docs/method.md, Negatives."""

import itertools

import numpy
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, save

from conftest import EOS, make_gpt2, make_llama, make_tokenizer, stir
from univerb.phrase import Phrase
from univerb.phrases.tokenized import BREAK
from univerb.tokenizer import Tokenizer
from univerb.training import negatives
from univerb.training.config import NegativeConfig
from univerb.training.mixed_batch import MixedBatch, collate, true_continuations
from univerb.training.negatives import (
    GreedyContinuations,
    PreBatch,
    TextContinuations,
    forbidden_ids,
    prefixes,
    self_retrieval,
)
from univerb.training.samples import Key, Sample
from univerb.training.suffix_array import SuffixArray

V = 320
BARRED = 3
"""The token that no phrase may contain, in random passages of the tokens 0 to 3."""
KINDS = ("in-batch", "prefixes", "self-retrieval", "generation", "corpus-retrieval")
RUNS = st.lists(st.sampled_from([BREAK, 0, 1, 2]), max_size=60).map(
    lambda ids: numpy.array(ids, numpy.int32)
)


@st.composite
def samples(draw) -> Sample:
    ids = draw(st.lists(st.integers(0, 3), min_size=1, max_size=40))
    units, place = [], 0
    while place < len(ids):
        end = min(place + draw(st.integers(1, 5)), len(ids))
        if BARRED in ids[place:end]:
            end = place + 1
        units.append((place, end))
        place = end
    return Sample(ids, units)


BATCHES = st.lists(samples(), min_size=1, max_size=3)


def flags(batch: list[Sample]) -> list[numpy.ndarray]:
    return [numpy.array(sample.ids) == BARRED for sample in batch]


def golds(batch: list[Sample]) -> list[Key]:
    every = [tuple(sample.ids[s:e]) for sample in batch for s, e in sample.units if e - s > 1]
    return list(dict.fromkeys(every))


def places(ids: list[int], key: Key) -> list[int]:
    return [i for i in range(len(ids)) if tuple(ids[i : i + len(key)]) == key]


class Count(GreedyContinuations):
    """Instead of an LM: a phrase is followed by its length and its first token."""

    def __init__(self) -> None:
        pass

    def continuations(self, keys):
        return [(len(key) + 4, key[0]) for key in keys]


def together(batch: list[Sample], run: numpy.ndarray, **options) -> MixedBatch:
    chosen = NegativeConfig(**{"kinds": KINDS, **options})
    return collate(batch, flags(batch), chosen, V, Count(), SuffixArray(run))


def test_the_worked_example_of_the_method():
    sample = Sample(list(range(10, 19)), [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7), (7, 9)])
    other = Sample([50, 12, 13, 14], [(0, 1), (1, 4)])
    kinds = NegativeConfig(kinds=("in-batch", "prefixes", "self-retrieval"))
    batch = collate([sample, other], flags([sample, other]), kinds, V)
    assert batch.sigma.tolist() == [[0, 1, 4, 5, 6, 8], [0, 3, 0, 0, 0, 0]]
    # The phrase of both samples has one place in the pool.
    assert batch.unit_ids.tolist() == [[10, 11, V, 15, 16, V + 1], [50, V, 0, 0, 0, 0]]
    assert batch.unit_mask.tolist() == [[True] * 6, [True] * 2 + [False] * 4]
    assert batch.token_mask.sum(1).tolist() == [9, 4]
    assert batch.pool.keys == [
        (12, 13, 14),
        (17, 18),
        (12, 13),
        (12, 13, 14, 15),
        (12, 13, 14, 15, 16),
    ]
    assert batch.pool.golds == 2
    # A row for each gold: with its successors, and alone where it has none.
    assert sorted(batch.pool.plan.windows) == [(12, 13, 14, 15, 16), (17, 18)]


@given(BATCHES, RUNS)
def test_a_batch_can_be_read_back(batch, run):
    mixed = together(batch, run)
    for row, sample in enumerate(batch):
        assert mixed.token_ids[row, mixed.token_mask[row]].tolist() == sample.ids
        units = mixed.unit_ids[row, mixed.unit_mask[row]].tolist()
        spelled = [(unit,) if unit < V else mixed.pool.keys[unit - V] for unit in units]
        assert list(itertools.chain(*spelled)) == sample.ids
        assert [len(key) for key in spelled] == [end - begin for begin, end in sample.units]
        assert all(unit - V < mixed.pool.golds for unit in units)
        sigma = mixed.sigma[row, mixed.unit_mask[row]].tolist()
        assert sigma == sorted(set(sigma)) and sigma[-1] == len(sample.ids) - 1


@given(BATCHES, RUNS, st.integers(0, 3), st.integers(2, 7))
def test_the_pool_has_what_the_method_says(batch, run, extensions, max_row):
    pool = together(batch, run, extensions=extensions, max_row=max_row).pool
    gold = golds(batch)
    assert pool.keys[: pool.golds] == gold
    assert len(set(pool.keys)) == len(pool.keys)
    for key, row, column in zip(pool.keys, pool.plan.row, pool.plan.column, strict=True):
        assert pool.plan.windows[row][: column + 1] == key
    prefixes = {key[:size] for key in gold for size in range(2, len(key))}
    followed = {key + (len(key) + 4, key[0])[:size] for key in gold for size in (1, 2)}
    for sample in batch:
        for key in golds([sample]):
            for begin in places(sample.ids, key):
                tail = sample.ids[begin + len(key) :]
                tail = tail[: tail.index(BARRED)] if BARRED in tail else tail
                followed |= {key + tuple(tail[: n + 1]) for n in range(min(extensions, len(tail)))}
    surely = set(gold) | prefixes | {key for key in followed if len(key) <= max_row}
    assert surely <= set(pool.keys)
    # What else there is follows a gold phrase in the corpus.
    corpus = run.tolist()
    for key in set(pool.keys) - surely:
        assert len(key) <= max_row and BREAK not in key and places(corpus, key)
        assert any(key[: len(g)] == g and len(key) - len(g) <= extensions for g in gold)
    longest = max((len(key) for key in gold), default=0)
    assert all(len(row) <= max(max_row, longest) for row in pool.plan.windows)


@given(BATCHES)
def test_each_kind_is_a_choice(batch):
    sets = {
        kind: set(collate(batch, flags(batch), NegativeConfig(kinds=(kind,)), V, Count()).pool.keys)
        for kind in ("in-batch", "prefixes", "self-retrieval", "generation", "pre-batch")
    }
    assert sets["in-batch"] == sets["pre-batch"] == set(golds(batch))
    pair = NegativeConfig(kinds=("prefixes", "generation"))
    both = collate(batch, flags(batch), pair, V, Count())
    assert set(both.pool.keys) == sets["prefixes"] | sets["generation"]


def test_a_batch_without_phrases_has_no_pool():
    sample = Sample([0, 1], [(0, 1), (1, 2)])
    mixed = collate(
        [sample], flags([sample]), NegativeConfig(), V, GreedyContinuations(make_gpt2(), 2)
    )
    assert mixed.unit_ids.tolist() == mixed.token_ids.tolist()
    assert mixed.pool.keys == mixed.pool.plan.windows == []
    assert true_continuations(mixed) == []


def test_one_pass_gives_what_separate_encodings_would(tiny_any_head):
    lm = stir(tiny_any_head)
    generator = numpy.random.default_rng(0)
    batch = []
    for _ in range(3):
        ids = generator.integers(4, V, 40).tolist()
        batch.append(Sample(ids, [(0, 3), (3, 4), (4, 9), *((i, i + 1) for i in range(9, 40))]))
    generations = GreedyContinuations(lm.model, 2)
    pool = collate(batch, flags(batch), NegativeConfig(), V, generations).pool
    assert len(pool.keys) > 6 * 6 and len(pool.plan.windows) <= 6 * 2
    longest = max(map(len, pool.plan.windows))
    rows = torch.tensor([[*row, *[0] * (longest - len(row))] for row in pool.plan.windows])
    with torch.no_grad():
        hidden = lm.encoder.hidden_states(rows, lm.embeddings)[pool.plan.row, pool.plan.column]
        last = torch.tensor([key[-1] for key in pool.keys])
        first = torch.tensor([key[0] for key in pool.keys])
        rows_in, rows_out = lm.embeddings.input(last), lm.embeddings.output_weight[first]
        together = lm.encoder.heads(hidden, rows_in, rows_out)
        for place, key in enumerate(pool.keys):
            alone = lm.encoder.encode([Phrase(key, "")], lm.embeddings)
            for side, expected in zip(together, alone, strict=True):
                torch.testing.assert_close(side[place], expected[0], atol=1e-5, rtol=1e-4)


@given(BATCHES, RUNS, st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=4), max_size=4))
def test_true_continuations_are_the_phrases_that_a_text_goes_on_with(batch, run, earlier):
    mixed = together(batch, run)
    old = [key for key in map(tuple, earlier) if key not in mixed.pool.keys]
    old = list(dict.fromkeys(old))
    expected = set()
    for row, sample in enumerate(batch):
        for unit, (begin, end) in enumerate(sample.units[1:]):
            for place, key in enumerate([*mixed.pool.keys, *old]):
                goes_on = tuple(sample.ids[begin : begin + len(key)]) == key
                if end - begin == 1 and goes_on:
                    expected.add((row, unit, place))
    found = true_continuations(mixed, old)
    assert set(found) == expected
    assert len(found) == len(expected)
    labels = mixed.unit_ids.tolist()
    assert all(labels[row][unit + 1] < V for row, unit, _ in found)


@given(RUNS, st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), st.integers(1, 3))
def test_suffixes_find_what_a_search_finds(run, key, k):
    suffixes = SuffixArray(run)
    ids = run.tolist()
    expected = places(ids, key)
    found = suffixes.occurrences(key).tolist()
    assert sorted(found) == expected
    assert [ids[place:] for place in found] == sorted(ids[place:] for place in expected)
    follows = set()
    for place in expected:
        tail = ids[place + len(key) : place + len(key) + k]
        follows.add(tuple(tail[: tail.index(BREAK)] if BREAK in tail else tail))
    follows.discard(())
    every = suffixes.continuations(key, k, len(ids) + 1)
    assert set(every) == follows and len(every) == len(follows)
    few = suffixes.continuations(key, k, 2)
    assert set(few) <= follows and len(few) <= 2


def test_suffixes_are_fast_on_a_text_that_repeats_itself():
    run = numpy.tile(numpy.array([1, 2, 3, 4, 5], numpy.int32), 20_000)
    assert len(SuffixArray(run).occurrences((2,) + (3, 4, 5, 1, 2) * 12)) == 20_000 - 12


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_generation_is_the_models_own_greedy_continuation(make):
    model = make()
    generator = numpy.random.default_rng(0)
    keys = [tuple(generator.integers(1, V, size).tolist()) for size in (2, 3, 2, 5, 2, 3) * 3]
    found = GreedyContinuations(model, 3, frozenset([0])).continuations(keys)
    for key, follow in zip(keys, found, strict=True):
        ids = torch.tensor([key])
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=3,
            do_sample=False,
            pad_token_id=0,
        )[0, len(key) :].tolist()
        assert follow == tuple(written[: written.index(0)] if 0 in written else written)


def test_generation_depends_on_the_phrase_alone(monkeypatch):
    model = make_llama()
    keys = [(first, first + 1) for first in range(1, 60)]
    whole = GreedyContinuations(model, 2).continuations(keys)
    assert [GreedyContinuations(model, 2).continuations([key])[0] for key in keys[:9]] == whole[:9]
    monkeypatch.setattr(negatives, "_CACHE_SIZE", 5)
    forgetful = GreedyContinuations(model, 2)
    assert forgetful.continuations(keys) == whole and len(forgetful._cache) == 5
    assert forgetful.continuations(keys[::-1]) == whole[::-1]
    assert GreedyContinuations(model, 0).continuations(keys[:2]) == [(), ()]


def test_generation_stops_before_barred_tokens_and_asks_once(monkeypatch):
    model = make_gpt2()
    key = (5, 6, 7)
    first, second = GreedyContinuations(model, 2).continuations([key])[0]
    assert GreedyContinuations(model, 2, frozenset([second])).continuations([key]) == [(first,)]
    assert GreedyContinuations(model, 2, frozenset([first])).continuations([key]) == [()]
    known = GreedyContinuations(model, 2)
    known.continuations([key])
    monkeypatch.setattr(model, "forward", None)
    assert known.continuations([key, key]) == [(first, second)] * 2


def test_generation_is_the_original_models_under_an_adapter():
    keys = [(first, first + 2, 9) for first in range(10, 30)]
    expected = GreedyContinuations(make_llama(), 2).continuations(keys)
    config = LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(make_llama(), config)
    adapted.train()
    adapted.base_model.model.lm_head.eval()
    modes = [module.training for module in adapted.modules()]
    trained = [p.requires_grad for p in adapted.parameters()]
    assert GreedyContinuations(adapted, 2).continuations(keys) == expected
    assert [module.training for module in adapted.modules()] == modes
    assert [p.requires_grad for p in adapted.parameters()] == trained
    merged = adapted.merge_and_unload()
    assert GreedyContinuations(merged, 2).continuations(keys) != expected


class Says(GreedyContinuations):
    """Instead of an LM: every prompt goes on alike."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = tuple(ids)

    def continuations(self, keys):
        return [self._ids] * len(keys)


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (" pay the rent", [["▁pay", "▁the"]] * 2),
        (" pay cats", [["▁pay"]] * 2),  # the unknown word is no part of a phrase
        (" pay é", [["▁pay"]] * 2),  # cut within the last character
        ("", [[], []]),
        ("s", [[], []]),  # would change the phrase
    ],
)
def test_another_lm_goes_on_in_the_tokens_of_this_one(says, expected):
    """Llama's words have their space; the other LM is byte-level."""
    words = ["<unk>", "▁the", "▁tenant", "▁shall", "▁pay", "▁rent"]
    rust = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    )
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    rust.decoder = tokenizers.decoders.Metaspace()
    own, hf = Tokenizer(rust), make_tokenizer()
    other = Tokenizer(hf.backend_tokenizer, hf.all_special_ids)
    said = other.encode(says).ids
    said = said[:-1] if says.endswith("é") else said
    through_text = TextContinuations(Says(said), other, own, 2, frozenset([0]))
    found = through_text.continuations([(1, 2), (2, 3)])
    assert [[words[token] for token in key] for key in found] == expected


def test_generation_begins_as_a_prompt_does():
    model = make_llama()
    key = (5, 6, 7)
    begun = GreedyContinuations(model, 2, begin=[9]).continuations([key])
    assert begun == GreedyContinuations(model, 2).continuations([(9, *key)])


def test_barred_ids_are_special_or_break_a_line():
    hf = make_tokenizer()
    tokenizer = Tokenizer(hf.backend_tokenizer, hf.all_special_ids)
    forbidden = forbidden_ids(tokenizer, len(hf))
    assert forbidden == {
        *hf.all_special_ids,
        *tokenizer.encode("\n").ids,
        *tokenizer.encode("\r").ids,
    }
    assert not forbidden & set(tokenizer.encode("The tenant shall pay.").ids)
    assert hf.convert_tokens_to_ids(EOS) in forbidden


PHRASES = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4).map(tuple), max_size=6)


@settings(max_examples=50)
@given(st.lists(PHRASES, max_size=5), PHRASES, st.integers(1, 3), st.integers(0, 4))
def test_pre_batch_keeps_the_newest_vector_of_each_phrase(batches, live, depth, stop):
    queue, vector = PreBatch(depth), itertools.count()
    pushed = [(list(dict.fromkeys(b)), [float(next(vector)) for _ in set(b)]) for b in batches]
    for place, (keys, numbers) in enumerate(pushed):
        if place == stop:
            # A run that is killed here and resumes from its checkpoint.
            saved, queue = queue.state_dict(), PreBatch(depth)
            queue.load_state_dict(load(save(saved)))
        queue.push(keys, torch.tensor(numbers, requires_grad=True)[:, None].expand(-1, 2))
    expected: dict[Key, float] = {}
    for keys, numbers in reversed(pushed[-depth:]):
        for key, number in zip(keys, numbers, strict=True):
            if key not in live:
                expected.setdefault(key, number)
    keys, vectors = queue.entries(live)
    assert keys == list(expected)
    assert not vectors.requires_grad
    if batches:
        assert vectors.tolist() == [[number, number] for number in expected.values()]


def test_pre_batch_keeps_vectors_as_they_were():
    queue = PreBatch(2)
    assert queue.entries([])[0] == []
    vectors = torch.ones(1, 4)
    queue.push([(1, 2)], vectors)
    vectors.zero_()
    assert queue.entries([])[1].tolist() == [[1.0] * 4]
    assert queue.entries([(1, 2)])[1].shape == (0, 4)


def test_extensions_of_a_text_that_repeats_itself_take_no_square_of_time():
    """Every position has the same two tokens: a search per position would not end."""
    size = 100_000
    units = [(begin, begin + 4) for begin in range(0, size, 4)]
    repeated = Sample([7] * size, units)
    keys = self_retrieval([repeated], [numpy.zeros(size, bool)], 2)
    assert set(keys) == {(7,) * 5, (7,) * 6}


def test_prefixes_are_shorter_than_their_phrase():
    assert list(prefixes([(1, 2, 3, 4), (5, 6)])) == [(1, 2), (1, 2, 3)]
