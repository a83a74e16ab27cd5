"""Windows, candidate pools and ways of writing a stretch, against direct computations."""

import math
from collections import Counter, defaultdict

import numpy
import pytest
from frozen_toys import (
    SIZES,
    WORD,
    all_phrases,
    evidence_of,
    keys_of,
    make_toy,
    node_children,
    parent_of,
    path_to,
    phrases_at,
    text_of,
    texts,
    units_at,
    word_starts,
)
from hypothesis import assume, example, given
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.modeling.phrase_tree import PhraseTree
from univerb.phrase import Document
from univerb.phrases.guards import PAPER_GUARDS, Guards, is_number
from univerb.phrases.tokenized import BREAK, LETTER, tokenize_lines, tokenize_text
from univerb.tokenizer import Tokenizer
from univerb.training.frozen.pools import CandidateTree
from univerb.training.frozen.windows import Windows, windows

HF = make_tokenizer()
TOKENIZER = Tokenizer(HF.backend_tokenizer, HF.all_special_ids)
ODD = "In 1999 12 34 tenants\nshall pay 7 8 or 1,500 rents. <|endoftext|> Of the day, § 12(3) é. "


def spans_of(found: Windows) -> set[tuple[int, int]]:
    rows, columns = numpy.nonzero(found.is_phrase)
    return {(int(found.start[r]), int(c) + 1) for r, c in zip(rows, columns, strict=True)}


# Windows


@pytest.mark.parametrize("guards", [Guards(), PAPER_GUARDS, Guards(word_boundaries=False)])
@pytest.mark.parametrize("in_lines", [False, True])
def test_windows_are_all_ngrams_that_the_guards_allow(guards, in_lines):
    document = Document(ODD + TEXT, "odd")
    if in_lines:
        tokens = tokenize_lines(document, TOKENIZER, guards)
    else:
        tokens = tokenize_text(document.text, TOKENIZER, guards)
    ids, positions = tokens.ids.tolist(), tokens.positions
    wanted = {
        (int(positions[place]), size)
        for size in range(2, 7)
        for place in tokens.windows(size).tolist()
        if not is_number(TOKENIZER.decode(ids[place : place + size]))
    }
    assert spans_of(windows(tokens.arrays(), (2, 6))) == wanted
    assert any(size == 6 for _, size in wanted)


@given(texts(0, 20), st.integers(0, 12), st.integers(0, 12))
def test_windows_of_a_part_are_those_of_its_flags(text, begin, more):
    end = min(begin + more, len(text.ids))
    found = windows(text, SIZES, begin, end)
    wanted = phrases_at(text, begin, end)
    assert found.start.tolist() == word_starts(text, begin, end)
    assert spans_of(found) == {(at, len(key)) for at in wanted for key in wanted[at]}
    for row, start in enumerate(found.start.tolist()):
        for key in wanted[start]:
            assert tuple(found.ids[row, : len(key)].tolist()) == key
    if begin < end:
        whole = windows(text, SIZES)
        assert spans_of(whole.take(whole.start >= begin)) >= spans_of(found)


@given(texts(0, 30), texts(0, 30))
def test_hashes_are_equal_where_the_tokens_are(left, right):
    both = Windows.joined(windows(left, SIZES), windows(right, SIZES))
    seen = {}
    for row, column in zip(*numpy.nonzero(both.is_phrase), strict=True):
        key = tuple(both.ids[row, : column + 1].tolist())
        assert seen.setdefault(key, int(both.keys[row, column])) == int(both.keys[row, column])
    assert len(set(seen.values())) == len(seen)


def test_token_0_is_not_what_stands_behind_a_line():
    """A pool has the phrase (1, 0); the text ends with 1."""
    other = text_of([(1, WORD), (0, WORD)])
    toy = make_toy(text_of([(2, WORD), (1, WORD)]), other, 1)
    assert set(toy.keys) == {(1, 0)}
    assert (toy.stretch.unit_begin.tolist(), toy.stretch.unit_end.tolist()) == ([1], [2])


# Pools


@given(texts(0, 40), texts(0, 20))
def test_a_pool_is_the_tree_of_its_phrases(text, other):
    pool = CandidateTree.of(Windows.joined(windows(text, SIZES), windows(other, SIZES)))
    wanted = all_phrases(phrases_at(text, 0, len(text.ids)), phrases_at(other, 0, len(other.ids)))
    keys = keys_of(pool)
    assert dict(zip(keys, pool.count.tolist(), strict=True)) == wanted
    assert pool.first.tolist() == sorted({key[0] for key in wanted})
    nodes = [*((token,) for token in pool.first.tolist()), *keys]
    assert len(pool.edges) == len(nodes) + 1 and pool.sizes.sum() == len(keys)
    for number, node in enumerate(nodes):
        under = pool.children[pool.edges[number] : pool.edges[number + 1]]
        assert sorted(keys[child] for child in under) == node_children(node, wanted)
    tokens = numpy.arange(-1, 6)
    roots = {token: place for place, token in enumerate(pool.first.tolist())}
    assert pool.roots(tokens).tolist() == [roots.get(token, -1) for token in tokens.tolist()]
    assert pool.phrases(pool.keys).tolist() == [*range(len(keys))]
    assert pool.phrases(pool.keys + 1).tolist() == [-1] * len(keys)


@given(texts(1, 40))
def test_a_pool_and_the_tree_of_decoding_have_the_same_nodes(text):
    pool = CandidateTree.of(windows(text, SIZES))
    assume(len(pool.keys))
    keys, tree = keys_of(pool), PhraseTree(keys_of(pool), pool.count)
    parents = [None if p < 0 else keys[tree.order[p]] for p in tree.parent.tolist()]
    assert parents.count(None) == len(pool.first)
    for place, phrase in enumerate(tree.order.tolist()):
        node = tree.node_of[place]
        parent = parent_of(keys[phrase], set(keys))
        assert parents[node] == (parent if len(parent) > 1 else None)
        children = node_children(parent, set(keys))
        assert tree.totals[node] == sum(pool.count[keys.index(child)] for child in children)
    assert sorted(tree.first_tokens.tolist()) == pool.first.tolist()


# Every way of writing a stretch


@given(texts(6, 24), texts(0, 30), st.integers(1, 5))
@example(text_of([(1, WORD)] * 12), text_of([(1, WORD)] * 6), 5)
@example(text_of([(1, WORD)] * 6), text_of([(2, WORD)] * 6), 1)
def test_a_stretch_has_the_choices_and_units_of_its_text(text, other, begin):
    toy = make_toy(text, other, begin)
    made, keys = toy.stretch, keys_of(toy.pool)
    units, choices = set(), defaultdict(list)
    for start in range(begin, toy.end):
        here = units_at(toy, start)
        units |= {(start, start + len(unit)) for unit in here}
        if start in word_starts(text, begin, toy.end):
            for unit in here:
                if node_children(unit, toy.keys):
                    choices[start - 1].append(unit)
    pairs = list(zip(made.unit_begin.tolist(), made.unit_end.tolist(), strict=True))
    assert pairs == sorted(units)
    state = made.state.tolist()
    assert sorted(state) == sorted(at for at in choices for _ in choices[at])
    nodes = []
    for choice, at in enumerate(state):
        options = [keys[option] for option in made.option[made.choice == choice]]
        (node,) = {parent_of(option, toy.keys) for option in options}
        assert node in choices[at] and made.is_phrase[choice] == (len(node) > 1)
        assert sorted(options) == node_children(node, toy.keys)
        assert made.total[choice] == sum(toy.keys[option] for option in options)
        nodes.append(node)
    assert (made.log_weight == 0).all()
    check_paths(toy, keys, nodes, pairs)


def check_paths(toy, keys, nodes, pairs):
    """The options that lead to each unit, and the node at which it stops."""
    made, ids = toy.stretch, toy.text.ids.tolist()
    taken, stopped = defaultdict(list), defaultdict(list)
    for unit, option in zip(*(part.tolist() for part in made.taken), strict=True):
        assert made.state[made.choice[option]] == pairs[unit][0] - 1
        taken[unit].append(keys[made.option[option]])
    for unit, choice in zip(*(part.tolist() for part in made.stopped), strict=True):
        assert made.state[choice] == pairs[unit][0] - 1
        stopped[unit].append(nodes[choice])
    for unit, (begin, end) in enumerate(pairs):
        key = tuple(ids[begin:end])
        assert taken[unit] == path_to(key, toy.keys)[1:]
        is_start = begin in word_starts(toy.text, toy.begin, toy.end)
        is_node = is_start and bool(node_children(key, toy.keys))
        assert stopped[unit] == ([key] if is_node else [])


@given(texts(6, 24), texts(4, 40), st.integers(1, 6))
def test_overlaps_are_the_tokens_that_make_a_longer_phrase(text, other, begin):
    toy = make_toy(text, other, begin)
    made, ids, keys = toy.stretch, text.ids.tolist(), keys_of(toy.pool)
    for option, choice, *found in zip(made.option, made.choice, *made.evidence, strict=True):
        before = ids[: made.state[choice] + 1]
        assert found == [int(each[0]) for each in evidence_of([keys[option]], before, toy.keys)]


def test_overlaps_of_a_text_that_a_longer_phrase_has():
    """The text is in the middle of (1, 2, 3, 4), of which (3, 4) is the rest."""
    words = [(token, WORD) for token in (1, 2, 3, 4)]
    toy = make_toy(text_of([(9, WORD), *words]), text_of(words), 3)
    made, keys = toy.stretch, keys_of(toy.pool)
    found = {keys[o]: int(n) for o, n in zip(made.option, made.evidence.overlaps, strict=True)}
    assert found == {(3, 4): 2}


# Options that are sampled


# (1, 20) comes three times, everything else once.
CROWD = text_of([t for n in (*range(2, 40), 20, 20) for t in ((1, WORD), (n, WORD), (BREAK, 0))])
CROWDED = text_of([(token, WORD) for token in (9, 1, 5, 1, 7, 1, 5, 3)])


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_sample_keeps_what_is_true_or_frequent_wherever_a_node_comes_again(count):
    for seed in range(50):
        toy = make_toy(CROWDED, CROWD, 1, count, seed)
        made, keys = toy.stretch, keys_of(toy.pool)
        assert made.total.tolist() == [40] * 3
        drawn = [
            {keys[o]: w for o, w, c in zip(made.option, made.log_weight, made.choice, strict=True)
             if c == choice}
            for choice in range(3)
        ]  # fmt: skip
        assert drawn[0] == drawn[1] == drawn[2]
        assert drawn[0][1, 5] == drawn[0][1, 7] == drawn[0][1, 20] == 0.0
        assert len(drawn[0]) == 2 + 2 * count
        sampled = [weight for weight in drawn[0].values() if weight]
        assert sampled == pytest.approx([math.log((36 - count) / count)] * count)
        assert len(made.taken[0]) == 3
    everything = make_toy(CROWDED, CROWD, 1, 18).stretch
    assert len(everything.option) == 3 * 38 and not everything.log_weight.any()


def test_a_sample_stands_for_all_phrases_with_its_second_tokens():
    thirds = [(second, third) for second in (2, 3, 4) for third in range(10, 10 + 5 * second)]
    # The shorter phrase is none: what follows it hangs under the first token.
    crowd = text_of([t for a, b in thirds for t in ((1, WORD), (a, LETTER), (b, WORD), (BREAK, 0))])
    text = text_of([(9, WORD), (1, WORD), (3, LETTER), (12, WORD)])
    for seed in range(20):
        toy = make_toy(text, crowd, 1, 4, seed)
        made, keys = toy.stretch, keys_of(toy.pool)
        assert made.log_weight.any() and len(made.state) == 1
        found = Counter()
        for option, weight in zip(made.option.tolist(), made.group_weight.tolist(), strict=True):
            found[keys[option][1]] += math.exp(weight)
        # Second tokens of which only frequent ones are there stand for themselves.
        sampled = {keys[o][1] for o, w in zip(made.option, made.log_weight, strict=True) if w}
        assert {second: found[second] for second in sampled} == pytest.approx(
            {second: 5 * second for second in sampled}
        )


def test_the_expected_total_of_a_sample_is_that_of_all_options():
    whole = make_toy(CROWDED, CROWD, 1)
    values = numpy.exp(numpy.random.default_rng(3).normal(size=len(whole.pool.keys)))
    exact = values[whole.stretch.option].sum()
    totals = []
    for seed in range(400):
        made = make_toy(CROWDED, CROWD, 1, 8, seed).stretch
        totals.append((numpy.exp(made.log_weight) * values[made.option]).sum())
    error = numpy.std(totals) / math.sqrt(len(totals))
    assert numpy.std(totals) > 0
    assert abs(numpy.mean(totals) - exact) < 4 * error
