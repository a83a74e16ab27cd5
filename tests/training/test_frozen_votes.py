"""The documents' vote on the next token: in training as in decoding, against direct sums."""

import math
from collections import Counter

import numpy
import pytest
import torch
from frozen_toys import SIZES, WORD, all_phrases, phrases_at, text_of, texts
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.scoring import Scoring, Votes
from univerb.phrases.tokenized import BREAK, TokenArrays
from univerb.training.frozen.stretch_loss import voted_logprobs
from univerb.training.frozen.votes import Ballot, ballot
from univerb.training.frozen.windows import windows

WIDTH, VOCABULARY = 6, 12


def make_ballot(text: TokenArrays, other: TokenArrays, begin: int, options=None, seed=0) -> Ballot:
    found = windows(other, SIZES)
    found = found.take(found.is_phrase.any(1))
    span = begin, len(text.ids) - 1
    return ballot(found, text.ids, span, options, numpy.random.default_rng(seed))


def make_head(seed: int = 1) -> ConditionalHead:
    torch.manual_seed(seed)
    head = ConditionalHead(WIDTH, 0.5)
    with torch.no_grad():
        for tensor in (*head.parameters(), head.whiten):
            tensor.add_(torch.randn_like(tensor) * 0.4)
    return head


@settings(max_examples=60)
@given(texts(6, 16), texts(0, 30), st.integers(1, 6))
def test_a_ballot_has_the_first_tokens_and_how_the_text_leads_to_them(text, other, begin):
    found = make_ballot(text, other, begin)
    keys = all_phrases(phrases_at(other, 0, len(other.ids)))
    tokens, ids = found.tokens.tolist(), text.ids.tolist()
    assert sorted(tokens) == sorted({key[0] for key in keys})
    assert not found.log_weight.any()
    beginnings = Counter(key[:n] for key in keys.elements() for n in range(1, len(key) + 1))
    assert found.evidence.counts.tolist() == [beginnings[(token,)] for token in tokens]
    places = range(begin, len(ids) - 1)
    assert found.evidence.overlaps.shape == (len(places), len(tokens))
    assert found.longest.tolist() == found.evidence.overlaps.max(1, initial=0).tolist()
    for row, place in enumerate(places):
        wanted = tokens.index(ids[place]) if ids[place] in tokens else -1
        assert found.truth[row] == wanted
        for column, token in enumerate(tokens):
            sizes = range(1, min(MAX_OVERLAP, place, begin) + 1)
            before = [n for n in sizes if (*ids[place - n : place], token) in beginnings]
            assert found.evidence.overlaps[row, column] == max(before, default=0)
            longer = (*ids[place - max(before, default=0) : place], token)
            count = beginnings[longer] if before else 1
            assert found.evidence.overlap_counts[row, column] == count


def test_a_text_in_the_middle_of_a_phrase_is_led_on():
    words = [(token, WORD) for token in (1, 2, 3, 1)]
    found = make_ballot(text_of([(9, WORD), *words]), text_of(words), 3)
    overlap = found.evidence.overlaps
    by_token = {int(t): overlap[:, at].tolist() for at, t in enumerate(found.tokens)}
    # Before its third and fourth token: (1, 2) leads to 3, and (1, 2, 3) to 1.
    assert by_token == {1: [0, 3], 2: [0, 0], 3: [2, 0]}


def at_row(found: Ballot, row: int) -> Evidence:
    count, overlap, overlap_count = found.evidence
    return Evidence(count, overlap[row], overlap_count[row])


def direct(head: ConditionalHead, state, logits, vectors, found: Ballot, row: int):
    """The distribution over V of both parts, in doubles."""
    part = {name: tensor.double() for name, tensor in head.state_dict().items()}
    own = logits.log_softmax(0)
    tokens = torch.from_numpy(found.tokens)
    count, overlap, overlap_count = at_row(found, row)
    bonus = torch.tensor([0.0, *part["vote_overlap"].tolist()], dtype=torch.float64)[overlap]
    for weight, counts in zip(part["vote_counts"], (count, overlap_count), strict=True):
        bonus = bonus + weight * torch.from_numpy(counts).log()
    query = state @ part["whiten"] / math.sqrt(WIDTH)
    scores = own[tokens] + vectors @ query + bonus
    gate = part["vote_bias"][overlap.max()] + (state @ part["whiten"]) @ part["vote_gate"]
    share = torch.sigmoid(gate + own[tokens].logsumexp(0))
    result = (1 - share) * own.exp()
    result[tokens] += share * scores.softmax(0)
    return result


@settings(max_examples=40)
@given(texts(6, 12), texts(4, 24), st.integers(1, 3))
def test_training_and_decoding_mix_the_same_two_parts(text, other, begin):
    found = make_ballot(text, other, begin)
    assume(len(found.tokens))
    head, draw = make_head(), torch.Generator().manual_seed(2)
    scoring = Scoring({name: tensor.numpy() for name, tensor in head.state_dict().items()})
    weight = torch.randn(VOCABULARY, WIDTH, generator=draw)
    vectors = torch.randn(len(found.tokens), WIDTH, generator=draw)
    hidden = torch.randn(len(found.truth), WIDTH, generator=draw)
    logits = hidden @ weight.T
    # A break stands for a token that no phrase has.
    ids = text.ids[begin:-1].copy()
    ids[ids == BREAK] = VOCABULARY - 1
    truth = torch.from_numpy(ids.astype(numpy.int64))
    bare = logits.log_softmax(-1).gather(1, truth[:, None])[:, 0]
    rows = weight[torch.from_numpy(found.tokens)]
    with torch.no_grad():
        trained = voted_logprobs(head, found, vectors, rows, hidden, logits.logsumexp(-1), bare)
        for row, state in enumerate(hidden):
            wanted = direct(
                make_head(), state.double(), logits[row].double(), vectors.double(),
                found, row,
            )  # fmt: skip
            assert float(wanted.sum()) == pytest.approx(1.0)
            assert math.exp(trained[row]) == pytest.approx(float(wanted[truth[row]]), rel=1e-3)
            coordinates = scoring.state(state.numpy())
            scores = vectors.numpy() @ scoring.scaled(coordinates)
            votes = Votes(found.tokens, scores, at_row(found, row))
            decoded = scoring.voted(coordinates, logits[row].numpy(), votes)
            total = float(torch.logsumexp(logits[row], 0))
            numpy.testing.assert_allclose(
                numpy.exp(decoded - total), wanted.numpy(), rtol=1e-3, atol=1e-6
            )


def test_without_phrases_the_lm_decides():
    text = text_of([(token, WORD) for token in (1, 2, 3, 4)])
    found = make_ballot(text, text_of([]), 1)
    bare = torch.tensor([-1.0, -2.0, -3.0])
    nothing = torch.empty(0, WIDTH)
    hidden, total = torch.zeros(3, WIDTH), torch.zeros(3)
    assert voted_logprobs(make_head(), found, nothing, nothing, hidden, total, bare) is bare
    assert found.truth.tolist() == [-1, -1, -1]


CROWD = text_of([t for n in range(40) for t in ((n, WORD), (n + 1, WORD), (BREAK, 0))])
CROWDED = text_of([(token, WORD) for token in (50, 1, 5, 51, 7)])


def test_what_is_left_out_of_a_ballot_still_tells_how_far_the_text_is_in_a_phrase():
    words = [(token, WORD) for token in (1, 2, 3, 1)]
    other = text_of([*words, (BREAK, 0), *[(token, WORD) for token in range(20, 60)]])
    text = text_of([(9, WORD), *words[:2], (8, WORD), (8, WORD)])
    drawn = [make_ballot(text, other, 3, 1, seed) for seed in range(5)]
    assert any(3 not in found.tokens for found in drawn)
    # (1, 2) would lead to 3.
    assert all(found.longest.tolist() == [2, 0] for found in drawn)


def test_votes_are_sampled_and_the_true_ones_kept():
    whole = make_ballot(CROWDED, CROWD, 1)
    assert len(whole.tokens) == 40
    values = numpy.exp(numpy.random.default_rng(3).normal(size=40))
    totals = []
    for seed in range(300):
        found = make_ballot(CROWDED, CROWD, 1, 8, seed)
        # All are as frequent: the first eight others are kept, and of the rest eight are drawn.
        assert found.tokens[:11].tolist() == [1, 5, 7, 0, 2, 3, 4, 6, 8, 9, 10]
        assert len(set(found.tokens)) == 19
        assert found.truth.tolist() == [0, 1, -1, 2]
        assert found.log_weight.tolist() == [0.0] * 11 + [math.log(29 / 8)] * 8
        totals.append((numpy.exp(found.log_weight) * values[found.tokens]).sum())
    error = numpy.std(totals) / math.sqrt(300)
    assert 0 < abs(numpy.mean(totals) - values.sum()) < 4 * error
    assert not make_ballot(CROWDED, CROWD, 1, 37).log_weight.any()
