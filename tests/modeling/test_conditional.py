"""The conditional form: torch and numpy score alike, and the tree is a choice node by node."""

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from conftest import MAKERS, TEXT, make_tokenizer
from univerb.config import EncoderConfig
from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.phrase_tree import PhraseTree
from univerb.modeling.scoring import Scoring
from univerb.phrase import Document

WIDTH = 8
TOKEN = st.integers(0, 3)
KEYS = st.lists(
    st.lists(TOKEN, min_size=2, max_size=6).map(tuple), min_size=1, max_size=14, unique=True
)
SCORE = st.floats(-8.0, 8.0) | st.just(-math.inf)


def make_head(seed: int = 1, scale: float = 0.5) -> ConditionalHead:
    torch.manual_seed(seed)
    head = ConditionalHead(WIDTH, 3.0)
    with torch.no_grad():
        for tensor in (*head.parameters(), head.whiten):
            tensor.add_(torch.randn_like(tensor) * scale)
    return head


def scoring_of(head: ConditionalHead) -> Scoring:
    return Scoring({name: tensor.numpy() for name, tensor in head.state_dict().items()})


# torch and numpy


def test_numpy_scores_as_torch_does():
    head = make_head()
    scoring = scoring_of(head)
    hidden = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(2))
    keys = [(1, 2), (1, 2, 3), (1, 4), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 5)]
    tree = PhraseTree(keys, numpy.array([5, 2, 1, 3, 2, 1, 1]))
    kinds, totals = torch.from_numpy(tree.parent >= 0), torch.from_numpy(tree.totals)
    assert kinds.any() and not kinds.all() and sorted(tree.totals.tolist()) == [1, 2, 3, 3, 6]
    products = torch.randn(7, len(keys))
    # A node that is a phrase has the product of it; a first token has none.
    at_nodes = torch.where(kinds, products[:, tree.order[tree.parent]], torch.zeros(()))
    with torch.no_grad():
        state = head.state(hidden)
        close(scoring.state(hidden.numpy()), state)
        close(scoring.scaled(state.numpy()), head.scaled(state))
        wanted = torch.stack(
            [
                head.stops(row.expand(len(totals), -1), kinds, totals, here)
                for row, here in zip(state, at_nodes, strict=True)
            ]
        )
        close(scoring.stops(tree, state.numpy(), products.numpy()), wanted)
        close(scoring.stops(tree, state[0].numpy(), products[0].numpy()), wanted[0])
        overlaps = numpy.arange(MAX_OVERLAP + 1)
        evidence = Evidence(overlaps + 1, overlaps, 2 * overlaps + 1)
        close(scoring.bonus(evidence), head.bonus(evidence))
    nothing = Evidence(*(numpy.full(2, value) for value in (1, 0, 1)))
    assert scoring.is_conditional and scoring.bonus(nothing).tolist() == [0.0, 0.0]


def close(given_values, wanted: torch.Tensor) -> None:
    numpy.testing.assert_allclose(given_values, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_the_flat_form_has_no_parts():
    assert not Scoring({}).is_conditional


@pytest.mark.parametrize("bias", [-3.0, 2.0])
def test_a_fresh_head_changes_nothing_beyond_its_bias(bias):
    """All phrases score alike, whatever the state, and stopping as much higher as the bias says."""
    settings = EncoderConfig(form="conditional", bias=bias)
    lm = DynamicLM.wrap(MAKERS["llama"](), make_tokenizer(), settings)
    table = lm.encode(lm.vocabulary([Document(TEXT, "lease")]))
    hidden = torch.randn(3, lm.width, generator=torch.Generator().manual_seed(2)).numpy()
    numpy.testing.assert_array_equal(table.bias, 0.0)
    assert not table.outputs.any()
    keys = [(1, 2), (1, 3), (1, 3, 4), (2, 2)]
    tree = PhraseTree(keys)
    stops = lm.scoring.stops(tree, hidden, numpy.zeros((3, 4), numpy.float32))
    close(stops, torch.tensor(-bias + numpy.log(tree.totals)).expand(3, -1))
    shares = tree.log_probs(numpy.zeros((3, 4)), stops)
    goes_on = 1.0 / (1.0 + math.exp(-bias))
    numpy.testing.assert_allclose(1 - numpy.exp(shares.stops), [goes_on * numpy.ones(2)] * 3, 1e-4)


def test_coordinates_are_fitted_once_and_all_directions_are_alike():
    head = ConditionalHead(WIDTH, 3.0)
    head.fit(torch.zeros(4, WIDTH))
    assert torch.equal(head.whiten, torch.eye(WIDTH))
    states = torch.randn(4000, WIDTH, generator=torch.Generator().manual_seed(1))
    states[:, 0] *= 100
    head.fit(states)
    fitted = (states @ head.whiten).pow(2).mean(0)
    assert fitted[0] == pytest.approx(1.0, abs=0.05)
    # Those that hardly occur are not blown up to the size of the rest.
    assert (fitted < 1.05).all()


def test_without_votes_first_tokens_are_the_lms_own():
    settings = EncoderConfig(form="conditional", votes=False, bias=2.0)
    lm = DynamicLM.wrap(MAKERS["llama"](), make_tokenizer(), settings)
    vocabulary, ids = lm.vocabulary([Document(TEXT, "lease")]), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        bare, units = lm.forward(ids), lm.forward(ids, vocabulary)
    first = {phrase.ids[0] for phrase in vocabulary}
    others = [token for token in range(lm.static_size) if token not in first]
    torch.testing.assert_close(units[..., others], bare[..., others], rtol=0, atol=1e-5)
    assert (units[..., sorted(first)] < bare[..., sorted(first)]).all()


def test_tied_heads_have_no_conditional_form():
    with pytest.raises(ValidationError, match="form is 'conditional', which needs heads 'split'"):
        EncoderConfig(form="conditional", heads="tied")


# The tree


def parent_of(key, keys):
    longer = [other for other in keys if len(other) < len(key) and key[: len(other)] == other]
    return max(longer, key=len, default=key[:1])


def children_of(node, keys):
    return [key for key in keys if parent_of(key, keys) == node]


def node_names(tree, keys):
    """The nodes of a tree in its order: a phrase, or a first token."""
    return [
        keys[tree.order[begin]][:1] if parent < 0 else keys[tree.order[parent]]
        for begin, parent in zip(tree.begin.tolist(), tree.parent.tolist(), strict=True)
    ]


def draw_scores(keys, data):
    tree = PhraseTree(keys)
    names = node_names(tree, keys)
    stops = {name: data.draw(st.floats(-8.0, 8.0)) for name in names}
    scores = {key: data.draw(SCORE) for key in keys}
    arrays = numpy.array([*scores.values()]), numpy.array([stops[name] for name in names])
    return tree, scores, stops, arrays


def slow_logprobs(keys, scores, stops):
    """Given the first token: of each phrase, and of no phrase."""

    def choice(node):
        children = children_of(node, keys)
        total = math.exp(stops[node]) + sum(math.exp(scores[child]) for child in children)
        return {child: math.exp(scores[child]) / total for child in children}, total

    def stop(node):
        return math.exp(stops[node]) / choice(node)[1] if children_of(node, keys) else 1.0

    def reach(key):
        parent = parent_of(key, keys)
        here = choice(parent)[0][key]
        return here if len(parent) == 1 else reach(parent) * here

    phrases = [reach(key) * stop(key) for key in keys]
    return phrases, {name[0]: stop(name) for name in stops if len(name) == 1}


@given(KEYS, st.data())
def test_the_tree_is_a_softmax_at_each_node(keys, data):
    tree, scores, stops, arrays = draw_scores(keys, data)
    found = tree.log_probs(*arrays)
    phrases, rest = slow_logprobs(keys, scores, stops)
    numpy.testing.assert_allclose(numpy.exp(found.phrases), phrases, rtol=1e-6, atol=1e-12)
    first_tokens = tree.first_tokens.tolist()
    assert sorted(first_tokens) == sorted(rest)
    wanted = [rest[token] for token in first_tokens]
    numpy.testing.assert_allclose(numpy.exp(found.stops), wanted, rtol=1e-6)
    for place, token in enumerate(first_tokens):
        own = [value for key, value in zip(keys, found.phrases, strict=True) if key[0] == token]
        total = numpy.exp(own).sum() + math.exp(found.stops[place])
        assert total == pytest.approx(1.0)


@given(KEYS, st.data())
def test_rows_of_scores_are_computed_alike(keys, data):
    tree, _, _, (scores, stops) = draw_scores(keys, data)
    rows = numpy.stack([scores, numpy.zeros_like(scores)])
    both = tree.log_probs(rows, numpy.stack([stops, stops + 1.0]))
    for row, values in enumerate(((scores, stops), (numpy.zeros_like(scores), stops + 1.0))):
        alone = tree.log_probs(*values)
        numpy.testing.assert_array_equal(both.phrases[row], alone.phrases)
        numpy.testing.assert_array_equal(both.stops[row], alone.stops)


@given(KEYS, st.data())
def test_phrases_that_begin_with_other_tokens_change_nothing(keys, data):
    tree, scores, stops, arrays = draw_scores(keys, data)
    token = keys[0][0]
    own = [key for key in keys if key[0] == token]
    small = PhraseTree(own)
    values = numpy.array([scores[key] for key in own])
    ends = numpy.array([stops[name] for name in node_names(small, own)])
    alone, among = small.log_probs(values, ends), tree.log_probs(*arrays)
    places = [keys.index(key) for key in own]
    numpy.testing.assert_allclose(among.phrases[places], alone.phrases)
    at = tree.first_tokens.tolist().index(token)
    numpy.testing.assert_allclose(among.stops[at], alone.stops[0])


@given(
    st.lists(st.lists(TOKEN, min_size=1, max_size=5), min_size=1, max_size=12).map(
        lambda rows: list(dict.fromkeys((7, *row) for row in rows))
    ),
    st.data(),
)
def test_greedy_goes_to_the_likeliest_option_until_it_is_stopping(keys, data):
    tree, scores, stops, arrays = draw_scores(keys, data)
    node = keys[0][:1]
    while children := children_of(node, keys):
        best = max(children, key=scores.__getitem__)
        if scores[best] <= stops[node]:
            break
        node = best
    found = tree.greedy(*arrays)
    chosen = node[:1] if found is None else keys[found]
    # Of options that score alike any may be taken.
    if len(set(scores.values())) == len(keys):
        assert chosen == node
    assert len(chosen) == 1 or scores[chosen] > -math.inf


def test_greedy_may_end_at_a_phrase_that_is_not_the_likeliest():
    """A choice at each node: the best of a node's options may divide its share among many."""
    keys = [(1, 2), (1, 3), (1, 3, 4), (1, 3, 5), (1, 3, 6)]
    tree = PhraseTree(keys)
    scores = numpy.array([0.9, 1.0, 0.2, 0.1, 0.0])
    stops = numpy.array([-5.0, -0.1])
    assert node_names(tree, keys) == [(1,), (1, 3)]
    assert keys[tree.greedy(scores, stops)] == (1, 3, 4)
    found = tree.log_probs(scores, stops).phrases
    assert keys[int(found.argmax())] == (1, 2)
    assert tree.greedy(numpy.full(5, -math.inf), stops) is None
