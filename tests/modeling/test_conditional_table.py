"""V + P in the conditional form: shares of first tokens, as decoding computes them."""

import numpy
import pytest
import torch

from conftest import TEXT, make_conditional, make_gpt2, make_llama
from univerb.config import GenerationConfig
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.loop import generate
from univerb.decoding.phrase_head import Place
from univerb.engines.factory import engine_of
from univerb.modeling.hf_generate import expand, for_generate
from univerb.modeling.table_tensors import TableTensors
from univerb.phrase import Document, Phrase

LEASE = Document(TEXT, "lease.txt")


@pytest.fixture(params=[make_gpt2, make_llama], ids=["gpt2", "llama"])
def lm(request):
    return make_conditional(request.param())


def by_head(lm, vocabulary, hidden, logits, ids):
    """The logits of all units by the head of decoding."""
    weights = engine_of(lm).phrase_weights()
    config = GenerationConfig(phrase_bias=0.0, exact=True)
    head = ConditionalPhraseHead(lm, weights, vocabulary, config, lm.eos_ids)
    head.update()
    place = Place(hidden, logits, ids, 1 << 20)
    logits = head.voted(place)
    found = head.logits(place._replace(logits=logits))
    units = numpy.append(logits, numpy.full(vocabulary.size, -numpy.inf))
    if found is not None:
        units[: len(logits)] = found.left_to_tokens(logits)
        units[len(logits) + found.indices] = found.logits
    return torch.from_numpy(units).float()


@torch.no_grad()
def test_forward_is_the_choice_of_decoding_after_every_unit(lm, monkeypatch):
    vocabulary = lm.vocabulary([LEASE])
    removed = [lm.static_size + 3, lm.static_size + 8]
    vocabulary.remove(removed)
    text = lm.tokenizer.encode("The tenant shall pay the rent on the").ids
    units = [*text, lm.static_size + 5, *text[:2]]
    read = []
    original = TableTensors.unit_logits
    monkeypatch.setattr(
        TableTensors, "unit_logits", lambda *given: read.append(given) or original(*given)
    )
    found = lm.forward(torch.tensor([units, units[::-1]]), vocabulary)
    [(table, logits, hidden, _)] = read
    unknown = original(table, logits, hidden)
    for row, order in enumerate((units, units[::-1])):
        for place in range(len(order)):
            state = hidden[row, place].numpy(), logits[row, place].numpy()
            ids = expand(order[: place + 1], vocabulary)
            expected = by_head(lm, vocabulary, *state, ids)
            assert torch.allclose(found[row, place], expected, atol=1e-4)
            # A head that sees no ids is that of a text which is in the middle of no phrase.
            alone = by_head(lm, vocabulary, *state, [])
            assert torch.allclose(unknown[row, place], alone, atol=1e-4)
    assert not torch.allclose(found, unknown, atol=1e-2)
    torch.testing.assert_close(found.logsumexp(-1), logits.logsumexp(-1))
    assert (found[..., removed] == -torch.inf).all()


def test_a_vocabulary_of_which_nothing_may_be_chosen_leaves_the_lm_as_it_is(lm):
    vocabulary = lm.vocabulary(["the rent on", "the rent"])
    vocabulary.remove(range(lm.static_size, lm.static_size + 2))
    ids = torch.tensor([lm.tokenizer.encode("The tenant shall pay").ids])
    with torch.no_grad():
        found, bare = lm.forward(ids, vocabulary), lm.model(ids).logits
    assert torch.equal(found[..., : lm.static_size], bare)
    assert (found[..., lm.static_size :] == -torch.inf).all()
    made = generate(lm, ids[0].tolist(), vocabulary, max_tokens=6)
    none = generate(lm, ids[0].tolist(), lm.vocabulary(), max_tokens=6)
    assert made.text == none.text == generate(lm, ids[0].tolist(), max_tokens=6).text


def test_hf_generate_writes_phrases_of_a_vocabulary_that_grows(lm):
    vocabulary = lm.vocabulary([LEASE])
    model = for_generate(lm, vocabulary)

    def units():
        prompt = torch.tensor([[5, 9, 17, 33]])
        options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        return model.generate(prompt, max_new_tokens=8, **options)[0, 4:].tolist()

    before = units()
    # One for each token the LM may choose, much likelier than stopping there.
    likely = [Phrase((token, 17, 9), "x", weight=60.0) for token in range(lm.static_size)]
    added = vocabulary.add(likely)
    assert set(units()) <= set(added) and not set(before) & set(added)
