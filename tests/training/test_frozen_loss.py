"""The loss of a stretch and its gradient, against sums over every way of writing it."""

import copy
import itertools
import math
from typing import NamedTuple

import numpy
import pytest
import torch
from frozen_toys import (
    WORD,
    Key,
    Toy,
    evidence_of,
    keys_of,
    make_toy,
    node_children,
    path_to,
    text_of,
    texts,
    units_at,
    ways,
    word_starts,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.phrase_tree import PhraseTree
from univerb.modeling.scoring import Scoring
from univerb.training.frozen.distillation import distillation_loss
from univerb.training.frozen.states import PassageStates
from univerb.training.frozen.stretch_loss import StretchLoss, stretch_loss

WIDTH, VOCABULARY = 6, 5
PRICES = st.sampled_from([0.0, 0.7, 2.0])
Logprobs = dict[tuple[int, int], float]


def make_head(seed: int) -> ConditionalHead:
    torch.manual_seed(seed)
    head = ConditionalHead(WIDTH, 0.5)
    with torch.no_grad():
        for tensor in (*head.parameters(), head.whiten):
            tensor.add_(torch.randn_like(tensor) * 0.4)
    return head


class States(NamedTuple):
    """States of an LM that never was, and its log-probabilities of the next token."""

    hidden: Tensor
    next_logprob: Tensor
    voted: Tensor
    """With the vote of documents, for the tokens of the stretch."""


def make_states(toy: Toy, seed: int) -> States:
    draw = torch.Generator().manual_seed(seed)
    size = len(toy.text.ids) - 1
    hidden = torch.randn(size, WIDTH, generator=draw).half()
    bare, voted = -torch.rand(2, size, generator=draw) * 4
    return States(hidden, bare, voted[: toy.end - toy.begin].clone().requires_grad_())


def make_vectors(toy: Toy, seed: int) -> dict[Key, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {key: torch.randn(WIDTH, generator=draw) * 2 for key in sorted(toy.keys)}


def loss_of(
    head, toy: Toy, vectors: dict[Key, Tensor], states: States, price: float
) -> StretchLoss:
    keys = keys_of(toy.pool)
    rows = [vectors[keys[option]] for option in toy.stretch.option]
    stacked = torch.stack(rows) if rows else torch.empty(0, WIDTH)
    return stretch_loss(head, toy.stretch, stacked, *states, price)


def logprobs(head: ConditionalHead, toy: Toy, vectors, states: States) -> Logprobs:
    """The log-probability of every unit of the text, as decoding computes it."""
    parts = {name: tensor.detach().numpy() for name, tensor in head.state_dict().items()}
    scoring, result = Scoring(parts), {}
    hidden, voted = states.hidden.float().numpy(), states.voted.tolist()
    ids = toy.text.ids.tolist()
    for start in range(toy.begin, toy.end):
        state, own = scoring.state(hidden[start - 1]), voted[start - toy.begin]
        result[start, start + 1] = own
        keys = sorted(key for key in toy.keys if key[0] == ids[start])
        if not keys or start not in word_starts(toy.text, toy.begin, toy.end):
            continue
        tree = PhraseTree(keys, numpy.array([toy.keys[key] for key in keys]))
        outputs = torch.stack([vectors[key].detach() for key in keys]).numpy()
        evidence = evidence_of(keys, ids[:start], toy.keys)
        products = outputs @ scoring.scaled(state)
        scores = products + scoring.bonus(evidence)
        found = tree.log_probs(scores, scoring.stops(tree, state, products))
        result[start, start + 1] = own + float(found.stops[0])
        for unit in units_at(toy, start)[1:]:
            result[start, start + len(unit)] = own + float(found.phrases[keys.index(unit)])
    return result


def total_of(toy: Toy, values: Logprobs, price: float) -> tuple[float, float]:
    """Sum over all ways: the log-likelihood with a price, and the units that are saved."""
    length, sums, saved = toy.end - toy.begin, 0.0, 0.0
    for way in ways(toy, toy.begin):
        spared = length - len(way)
        share = math.exp(sum(values[unit] for unit in way) + price * spared)
        sums, saved = sums + share, saved + share * spared
    return math.log(sums), saved / sums


@settings(max_examples=60)
@given(texts(6, 12), texts(4, 24), st.integers(1, 3), PRICES)
def test_the_likelihood_is_the_sum_over_all_segmentations(text, other, begin, price):
    toy = make_toy(text, other, begin)
    head, states, vectors = make_head(1), make_states(toy, 2), make_vectors(toy, 3)
    made = loss_of(head, toy, vectors, states, price)
    values = logprobs(head, toy, vectors, states)
    bare = float(states.next_logprob[begin - 1 : toy.end - 1].double().sum())
    exact, _ = total_of(toy, values, 0.0)
    priced, saved = total_of(toy, values, price)
    assert made.gain + bare == pytest.approx(exact, abs=1e-4)
    assert made.priced + bare == pytest.approx(priced, abs=1e-4)
    assert float(made.loss.detach()) == pytest.approx(-made.priced, abs=1e-4)
    assert made.saved == pytest.approx(saved, abs=1e-4)
    if not toy.keys:
        assert made.saved == 0.0
        assert made.gain == pytest.approx(float(states.voted.detach().sum()) - bare, abs=1e-4)


def direct_loss(head: ConditionalHead, toy: Toy, vectors, states: States, price: float) -> Tensor:
    """The same sum in torch, node by node, for autograd."""
    hidden, ids = states.hidden.double(), toy.text.ids.tolist()

    def unit_logprob(start: int, end: int) -> Tensor:
        key, value = tuple(ids[start:end]), states.voted[start - toy.begin]
        if start not in word_starts(toy.text, toy.begin, toy.end):
            return value
        state = head.state(hidden[start - 1][None])
        query = head.scaled(state)
        path = path_to(key, toy.keys)
        for node, following in itertools.zip_longest(path, path[1:]):
            children = node_children(node, toy.keys)
            if not children:
                continue
            total = sum(toy.keys[child] for child in children)
            is_phrase = torch.tensor([len(node) > 1])
            here = (vectors[node] * query).sum(-1) if is_phrase else torch.zeros(1)
            stop = head.stops(state, is_phrase, torch.tensor([total]), here)
            evidence = evidence_of(children, ids[:start], toy.keys)
            outputs = torch.stack([vectors[child] for child in children])
            scores = (outputs * query).sum(-1) + head.bonus(evidence)
            every = torch.cat([stop, scores]).log_softmax(0)
            value = value + every[0 if following is None else 1 + children.index(following)]
        return value

    length = toy.end - toy.begin
    totals = [
        torch.stack([unit_logprob(*unit) for unit in way]).sum() + price * (length - len(way))
        for way in ways(toy, toy.begin)
    ]
    return -torch.stack(totals).logsumexp(0)


@settings(max_examples=50)
@given(texts(5, 8), texts(6, 16), PRICES)
def test_the_gradient_is_that_of_the_sum(text, other, price):
    toy = make_toy(text, other, 1)
    assume(len(toy.stretch.option))
    states, head = make_states(toy, 5), make_head(6)
    exact_head = copy.deepcopy(head).double()
    double_states = states._replace(voted=states.voted.detach().double().requires_grad_())
    vectors = {key: v.requires_grad_() for key, v in make_vectors(toy, 7).items()}
    doubles = {key: v.detach().double().requires_grad_() for key, v in vectors.items()}
    loss_of(head, toy, vectors, states, price).loss.backward()
    direct_loss(exact_head, toy, doubles, double_states, price).backward()
    torch.testing.assert_close(
        states.voted.grad, double_states.voted.grad.float(), rtol=1e-3, atol=1e-5
    )
    for key, vector in vectors.items():
        wanted = doubles[key].grad
        given_grad = torch.zeros(WIDTH) if vector.grad is None else vector.grad
        expected = torch.zeros(WIDTH) if wanted is None else wanted.float()
        torch.testing.assert_close(given_grad, expected, rtol=1e-3, atol=1e-5)
    for (name, mine), theirs in zip(head.named_parameters(), exact_head.parameters(), strict=True):
        if name.startswith("vote"):
            assert mine.grad is None
            continue
        expected = torch.zeros_like(mine) if theirs.grad is None else theirs.grad.float()
        torch.testing.assert_close(mine.grad, expected, rtol=1e-3, atol=1e-5, msg=name)


def repeated() -> Toy:
    words = text_of([(token, WORD) for token in (1, 2, 3, 1, 2, 0, 1, 3)])
    return make_toy(words, words, 2)


def test_a_price_counts_longer_units_for_more():
    toy = repeated()
    head, states, vectors = make_head(1), make_states(toy, 2), make_vectors(toy, 3)
    made = [loss_of(head, toy, vectors, states, price) for price in (0.0, 1.0, 2.0, 50.0)]
    assert len({each.gain for each in made}) == 1
    assert made[0].priced == pytest.approx(made[0].gain)
    saved = [each.saved for each in made]
    assert saved == sorted(saved) and len(set(saved)) == 4
    fewest = min(map(len, ways(toy, toy.begin)))
    assert saved[-1] == pytest.approx(toy.end - toy.begin - fewest, abs=1e-3)


def test_on_average_a_sample_has_the_total_of_all_options():
    """The total is what a true option's share is one part of."""
    crowd = text_of([t for n in range(2, 60) for t in ((1, WORD), (n, WORD), (-1, 0))])
    text = text_of([(token, WORD) for token in (9, 1, 5, 1, 7)])
    whole = make_toy(text, crowd, 1)
    head, states, vectors = make_head(1), make_states(whole, 2), make_vectors(whole, 3)

    def inverse_shares(toy: Toy) -> Tensor:
        true = torch.from_numpy(toy.stretch.taken[1])
        return (-loss_of(head, toy, vectors, states, 1.0).go[true]).exp().detach()

    exact = inverse_shares(whole)
    drawn = torch.stack([inverse_shares(make_toy(text, crowd, 1, 24, s)) for s in range(200)])
    assert len(exact) == 2 and (drawn.std(0) > 0).all()
    assert ((drawn.mean(0) - exact).abs() < 4 * drawn.std(0) / math.sqrt(200)).all()


# Distillation


def passage_of(toy: Toy, states: States, weight: Tensor) -> PassageStates:
    hidden, next_logprob, _ = states
    logsumexp = (hidden.float() @ weight.T).logsumexp(-1)
    ids = torch.from_numpy(toy.text.ids[:-1].copy())
    return PassageStates(
        ids, toy.text, 0, toy.text, hidden, logsumexp, torch.zeros(len(ids)), next_logprob
    )


@settings(max_examples=40)
@given(texts(6, 12), texts(4, 24), st.integers(1, 3))
def test_the_teacher_is_the_lm_after_the_true_first_token(text, other, begin):
    toy = make_toy(text, other, begin)
    head, states, vectors = make_head(1), make_states(toy, 2), make_vectors(toy, 3)
    weight = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(4))
    made = loss_of(head, toy, vectors, states, 1.0)
    passage = passage_of(toy, states, weight)
    loss = distillation_loss(toy.pool, toy.stretch, made.go, passage, weight)
    keys, wanted = keys_of(toy.pool), 0.0
    for choice, state in enumerate(toy.stretch.state.tolist()):
        if toy.stretch.is_phrase[choice]:
            continue
        mine = numpy.flatnonzero(toy.stretch.choice == choice)
        seconds = [keys[toy.stretch.option[at]][1] for at in mine]
        shares = made.go[torch.from_numpy(mine)].exp()
        expects = (passage.hidden[state + 1].float() @ weight.T).softmax(0)
        covered = float(expects[sorted(set(seconds))].sum())
        for second in set(seconds):
            target = float(expects[second]) / covered
            offered = torch.tensor([other == second for other in seconds])
            student = float((shares[offered].sum() / shares.sum()).detach())
            wanted += covered * target * math.log(target / student)
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-4)
    assert float(loss.detach()) > -1e-5


@pytest.mark.parametrize("seed", range(4))
def test_who_knows_the_lm_has_nothing_to_learn_from_a_sample(seed):
    crowd = text_of([t for n in range(2, 20) for t in ((1, WORD), (n, WORD), (-1, 0))])
    text = text_of([(token, WORD) for token in (9, 1, 5, 1, 7)])
    toy = make_toy(text, crowd, 1, 2, seed)
    states, made = make_states(toy, 2), toy.stretch
    weight = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(4))
    passage, seconds = passage_of(toy, states, weight), toy.pool.ids[made.option, 1]
    after = passage.hidden[made.state[made.choice] + 1].float()
    scores = (after * weight[torch.from_numpy(seconds)]).sum(-1)
    go = scores + torch.from_numpy(made.log_weight).float()
    assert made.log_weight.any()
    loss = distillation_loss(toy.pool, made, go, passage, weight)
    assert float(loss) == pytest.approx(0.0, abs=1e-4)


def test_distillation_pulls_the_phrases_towards_the_lm():
    toy = make_toy(*(text_of([(t, WORD) for t in ids]) for ids in ((4, 1, 2), (1, 2, -1, 1, 3))), 1)
    weight = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(4))
    head, states = make_head(1), make_states(toy, 2)
    vectors = {key: v.requires_grad_() for key, v in make_vectors(toy, 3).items()}
    passage, losses = passage_of(toy, states, weight), []
    optimiser = torch.optim.SGD(vectors.values(), 5.0)
    for _ in range(60):
        go = loss_of(head, toy, vectors, states, 1.0).go
        loss = distillation_loss(toy.pool, toy.stretch, go, passage, weight)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]
