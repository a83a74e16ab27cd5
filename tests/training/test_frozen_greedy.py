"""Greedy decoding along a text in training: against walking the tree word start by word start."""

import numpy
import torch
from frozen_toys import SIZES, keys_of, make_toy, node_children, texts, word_starts
from hypothesis import given
from hypothesis import strategies as st

from univerb.training.frozen.greedy import greedy_counts
from univerb.training.frozen.states import PassageStates


def passage_of(toy, best):
    ids = torch.from_numpy(toy.text.ids[:-1].copy())
    none = torch.zeros(len(ids))
    return PassageStates(ids, toy.text, 0, toy.text, none, none, torch.tensor(best), none)


@given(texts(8, 24), texts(4, 40), st.integers(1, 4), st.data())
def test_counts_are_those_of_walking_the_tree(text, other, begin, data):
    toy = make_toy(text, other, begin)
    made, keys, ids = toy.stretch, keys_of(toy.pool), text.ids.tolist()
    # Mostly what follows, sometimes not.
    best = [data.draw(st.sampled_from([after, after, 0])) for after in ids[1:]]
    draw = numpy.random.default_rng(data.draw(st.integers(0, 99)))
    go, stop = draw.normal(size=len(made.option)), draw.normal(size=len(made.state))
    scores = {
        (int(made.state[c]) + 1, keys[o]): value
        for o, c, value in zip(made.option, made.choice, go, strict=True)
    }
    stops = {}
    for choice, value in enumerate(stop):
        option = made.arrival[choice]
        place = int(made.state[choice]) + 1
        node = (ids[place],) if option < 0 else keys[made.option[option]]
        stops[place, node] = value
    starts = fired = right = lm_right = 0
    for start in word_starts(text, begin, toy.end):
        node = (ids[start],)
        children = node_children(node, toy.keys)
        if start + SIZES[1] > toy.end or best[start - 1] != ids[start] or not children:
            continue
        starts += 1
        while children := node_children(node, toy.keys):
            if (start, children[0]) not in scores:
                break
            child = max(children, key=lambda key: scores[start, key])
            if scores[start, child] <= stops[start, node]:
                break
            node = child
            if tuple(ids[start : start + len(node)]) != node:
                break
        if len(node) > 1:
            fired += 1
            right += tuple(ids[start : start + len(node)]) == node
            lm_right += best[start - 1 : start - 1 + len(node)] == ids[start : start + len(node)]
    found = greedy_counts(toy.pool, made, go, stop, passage_of(toy, best))
    assert found == (starts, fired, right, lm_right)
