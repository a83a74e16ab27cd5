"""The guess of the LM's next state: what it is trained by, begins as, and is for."""

import numpy
import pytest
import torch
from frozen_world import make_lm, shake, states_of

from univerb.phrases.tokenized import START
from univerb.training.frozen.guess_loss import fit_guess, guess_losses


@pytest.fixture(scope="module")
def lm():
    return make_lm("llama")


@pytest.fixture(scope="module")
def passages(lm):
    return [each for each in (states_of(lm, index) for index in range(12)) if len(each.ids) > 40]


def losses(lm, passages, count=1000):
    generators = [numpy.random.default_rng(number) for number in range(len(passages))]
    return guess_losses(lm, passages, count, generators)


def reset(lm):
    head = lm.encoder.conditional
    with torch.no_grad():
        for parameter in (*head.linear.parameters(), *head.up.parameters()):
            parameter.zero_()
    return head


def test_the_loss_is_the_divergence_and_the_price_of_a_wrong_sum(lm, passages):
    head = shake(lm).encoder.conditional
    passage = passages[0]
    starts = [at for at in range(len(passage.ids) - 1) if passage.text.flags[at + 1] & START]
    wanted = []
    with torch.no_grad():
        for at in starts:
            row = lm.embeddings.input(passage.ids[at + 1].long())
            query, offset = head.query(head.state(passage.hidden[at].float()), row)
            # Products with what vectors begin as are the guess's logits.
            logits = head.base(lm.embeddings.output_weight) @ query
            expected = lm.embeddings.output(passage.hidden[at + 1].float()).softmax(0)
            divergence = (expected * (expected.log() - logits.log_softmax(0))).sum()
            wanted.append(float(divergence + 0.1 * (logits.logsumexp(0) + offset) ** 2))
        found = losses(lm, passages[:1])
    assert sorted(found.tolist()) == pytest.approx(sorted(wanted), rel=1e-3, abs=1e-4)
    assert len(losses(lm, passages[:2], 5)) == 10


def test_a_fit_comes_close_at_once_and_training_closer(lm, passages):
    head = reset(lm)
    head.fit(torch.cat([each.hidden for each in passages]).float(), lm.embeddings.output_weight)
    untrained = float(losses(lm, passages).detach().mean())
    fit_guess(lm, passages)
    fitted = float(losses(lm, passages).detach().mean())
    assert fitted < 0.5 * untrained
    optimiser = torch.optim.Adam([*head.linear.parameters(), *head.up.parameters()], 1e-3)
    for _ in range(60):
        optimiser.zero_grad()
        losses(lm, passages).mean().backward()
        optimiser.step()
    assert float(losses(lm, passages).detach().mean()) < fitted - 0.05
    assert all(p.grad is None for p in lm.model.parameters() if not p.requires_grad)


def test_a_passage_without_words_has_nothing_to_fit(lm, passages):
    head = reset(lm)
    empty = passages[0].__class__(
        passages[0].ids[:1], passages[0].text, 0, passages[0].pool, passages[0].hidden[:1],
        passages[0].logsumexp[:1], passages[0].best[:1], passages[0].next_logprob[:1],
    )  # fmt: skip
    fit_guess(lm, [empty])
    assert not head.linear.weight.any()
    assert len(losses(lm, [empty])) == 0
