"""The input head: phrases fed as one vector, against texts of their own."""

import pytest
import torch
from frozen_world import make_config, make_lm, make_task, shake, states_of
from tiny_world import make_beginning_tokenizer

from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.training.frozen import input_loss
from univerb.training.frozen.input_loss import after_phrase, context_begin, input_losses
from univerb.training.frozen.windows import Windows, windows


def beginning(lm: DynamicLM) -> DynamicLM:
    """The same LM, with a tokenizer that puts a token before a text."""
    return DynamicLM.wrap(lm.model, make_beginning_tokenizer(), lm.encoder)


def phrase_starts(passage, sizes=(2, 8)) -> Windows:
    rows = windows(passage.text, sizes, 1)
    return rows.take(rows.is_phrase.any(1))


@pytest.mark.parametrize("backbone", ["gpt2", "llama"])
def test_a_branch_reads_what_a_text_of_its_own_would(backbone):
    lm = make_lm(backbone)
    ids = states_of(lm).ids.long()[:40]
    text = Branches(lm, ids.tolist())
    torch.manual_seed(1)
    vectors = torch.randn(3, lm.width)
    after, positions = torch.tensor([5, 17, 30]), torch.tensor([8, 18, 30])
    branches = [
        Branch(int(n), vector[None], int(at - n))
        for n, at, vector in zip(after, positions, vectors, strict=True)
    ]
    together = text.read(branches)
    for row in range(3):
        seen = int(after[row])
        inputs = torch.cat([lm.embeddings.input(ids[:seen]), vectors[row : row + 1]])
        places = torch.cat([torch.arange(seen), positions[row : row + 1]])
        with torch.no_grad():
            alone = lm.model.base_model(
                inputs_embeds=inputs[None],
                position_ids=places[None],
                # Without it, places that jump are taken for several texts in one row.
                attention_mask=torch.ones(1, seen + 1),
                use_cache=False,
            ).last_hidden_state[0, -1]
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-4)


def test_no_difference_where_the_vector_is_the_token_itself():
    lm = make_lm()
    ids = states_of(lm).ids.long()[:30]
    text = Branches(lm, ids.tolist())
    places = torch.tensor([4, 9, 20])
    rows = lm.embeddings.input(ids[places])
    read = text.read([Branch(int(n), row[None]) for n, row in zip(places, rows, strict=True)])
    difference = after_phrase(lm, read, text.hidden[places])
    torch.testing.assert_close(difference.learned, torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(difference.measured, torch.zeros(3), rtol=0, atol=1e-5)


def test_the_input_loss_reaches_the_encoder_and_nothing_else():
    lm = make_lm()
    passage = states_of(lm)
    rows = phrase_starts(passage).take(slice(8, 14))
    lm.model.requires_grad_(False)
    lengths = torch.from_numpy(rows.is_phrase.argmax(1) + 1)
    input_losses(lm, passage.ids, rows, lengths, 0).learned.sum().backward()
    assert lm.encoder.heads.input.weight.grad.abs().sum() > 0
    assert lm.encoder.conditional.stop_bias.grad is None
    assert all(parameter.grad is None for parameter in lm.model.parameters())


def test_an_lm_that_wants_a_token_before_a_text_reads_it_before_every_context(
    tmp_path, monkeypatch
):
    """As at inference: in cached states, and before text that is cut to the last tokens."""
    lm = beginning(shake(make_lm()))
    contexts: list[list[int]] = []

    class Noting(Branches):
        def __init__(self, lm: DynamicLM, ids: list[int]) -> None:
            contexts.append(ids)
            super().__init__(lm, ids)

    monkeypatch.setattr(input_loss, "Branches", Noting)
    task = make_task(tmp_path, lm, make_config(input_every=1, input_context=24))
    for index in range(4):
        assert task.loss(index).terms["kl"] > 0
    begin = lm.tokenizer.begin_ids
    assert len(contexts) == 4 and any(len(ids) < 40 for ids in contexts)
    assert all(ids[:1] == begin and begin[0] not in ids[1:] for ids in contexts)


@pytest.mark.parametrize("size", [2, 3])
def test_a_context_that_is_cut_is_what_the_lm_reads_after_its_first_token(size):
    """The divergence at a phrase, computed from the text that a user would have given."""
    lm = beginning(shake(make_lm()))
    passage = states_of(lm)
    rows = phrase_starts(passage, (2, 4))
    rows = rows.take((rows.start > 60) & rows.is_phrase[:, size - 1]).take(slice(1))
    start = int(rows.start[0])
    cut = passage.ids[start + size - 16 : start + size].tolist()
    context = [*lm.tokenizer.begin_ids, *cut]
    lengths = torch.tensor([size])
    base = context_begin(rows, lengths, 16)
    measured = input_losses(lm, passage.ids, rows, lengths, base).measured
    with torch.no_grad():
        static = lm.model.base_model(input_ids=torch.tensor([context])).last_hidden_state[0, -1]
        phrase = Phrase(tuple(cut[-size:]), lm.tokenizer.decode(cut[-size:]))
        vector = lm.encoder.encode([phrase], lm.embeddings).inputs
        fed = torch.cat([lm.embeddings.input(torch.tensor(context[:-size])), vector])
        # At the position of its last token.
        positions = torch.tensor([[*range(len(context) - size), len(context) - 1]])
        dynamic = lm.model.base_model(
            inputs_embeds=fed[None],
            position_ids=positions,
            attention_mask=torch.ones_like(positions),
        ).last_hidden_state[0, -1]
    expected = after_phrase(lm, dynamic[None], static[None]).measured
    torch.testing.assert_close(measured, expected, rtol=1e-3, atol=1e-5)


def test_phrases_of_a_step_are_near_each_other_and_each_has_text_before_it(tmp_path, monkeypatch):
    lm = make_lm()
    task = make_task(tmp_path, lm, make_config(input_every=1, input_phrases=8, input_context=24))
    fed: list[tuple[Windows, torch.Tensor]] = []
    real = input_loss.input_losses

    def noting(lm, ids, rows, lengths, base):
        fed.append((rows, lengths))
        assert base == max(int((rows.start + lengths.numpy()).max()) - 24, 0)
        return real(lm, ids, rows, lengths, base)

    monkeypatch.setattr("univerb.training.frozen.frozen_task.input_losses", noting)
    for index in range(6):
        task.loss(index)
    for rows, lengths in fed:
        assert 1 <= len(rows.start) <= 8 and len(set(rows.start.tolist())) == len(rows.start)
        assert rows.start.min() >= 1 and rows.start.max() - rows.start.min() < 12
        assert all(rows.is_phrase[row, length - 1] for row, length in enumerate(lengths))
    assert len({int(length) for _, lengths in fed for length in lengths}) > 2
