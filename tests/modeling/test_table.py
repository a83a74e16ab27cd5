"""The table follows its vocabulary: rows stay, growth encodes only what is new."""

import math

import torch

from conftest import make_gpt2, stir
from univerb.config import EncoderConfig
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary


def phrases(count: int, start: int = 0) -> list[Phrase]:
    return [Phrase((1 + n % 7, 10 + n), f" p{n}") for n in range(start, start + count)]


def test_an_empty_vocabulary_has_no_rows(tiny):
    assert tiny.tensors(tiny.vocabulary()) is None


def test_rows_stay_where_they_are_when_the_vocabulary_grows(tiny):
    lm = stir(tiny)
    vocabulary = DynamicVocabulary(lm.static_size, phrases(5))
    before = lm.tensors(vocabulary)
    copy = before.outputs.clone()
    for size in (1, 2, 40):
        vocabulary.add(phrases(size, start=vocabulary.size))
    after = lm.tensors(vocabulary)
    assert len(after.outputs) == 48
    assert torch.equal(after.outputs[:5], copy)
    assert torch.equal(before.outputs, copy), "an older view must not change under its reader"
    fresh = lm.encoder.encode(list(vocabulary), lm.embeddings)
    assert torch.allclose(after.outputs, fresh.outputs, atol=1e-5)
    assert torch.allclose(after.inputs, fresh.inputs, atol=1e-5)


def test_growth_encodes_only_what_is_new(tiny, monkeypatch):
    vocabulary = DynamicVocabulary(tiny.static_size, phrases(10))
    counts = []
    encode = tiny.encoder.encode
    monkeypatch.setattr(
        tiny.encoder, "encode", lambda some, e: counts.append(len(some)) or encode(some, e)
    )
    tiny.tensors(vocabulary)
    tiny.tensors(vocabulary)
    vocabulary.add(phrases(12))
    vocabulary.remove([tiny.static_size])
    tiny.tensors(vocabulary)
    assert counts == [10, 2]


def test_removed_phrases_score_minus_infinity_and_come_back(tiny):
    vocabulary = DynamicVocabulary(tiny.static_size, phrases(3))
    vocabulary.remove([tiny.static_size + 1])
    assert tiny.tensors(vocabulary).bias.tolist() == [-3.0, -math.inf, -3.0]
    vocabulary.add(phrases(1, start=1))
    assert tiny.tensors(vocabulary).bias.tolist() == [-3.0, -3.0, -3.0]


def test_weights_are_added_to_the_bias(tiny):
    vocabulary = DynamicVocabulary(tiny.static_size, [Phrase((3, 4), "x", weight=1.5)])
    assert tiny.tensors(vocabulary).bias.tolist() == [-1.5]


def test_count_correction_subtracts_the_log_of_how_many_share_a_first_token(hf_tokenizer):
    lm = DynamicLM.wrap(make_gpt2(), hf_tokenizer, EncoderConfig(count_correction=True, bias=0.0))
    some = [Phrase((3, n), "x") for n in (4, 5, 6)] + [Phrase((7, 8), "y")]
    vocabulary = DynamicVocabulary(lm.static_size, some)
    bias = lm.tensors(vocabulary).bias
    assert torch.allclose(bias, torch.tensor([-math.log(3)] * 3 + [0.0]))
    vocabulary.remove([lm.static_size])
    assert torch.allclose(lm.tensors(vocabulary).bias[1:3], torch.tensor(-math.log(2)))


def test_the_first_loss_of_a_fresh_encoder_is_close_to_the_bare_lms(tiny):
    vocabulary = DynamicVocabulary(tiny.static_size, phrases(300))
    ids = torch.tensor([[1, 5, 9, 2, 7, 3, 30, 4]])
    with torch.no_grad():
        bare = torch.logsumexp(tiny.forward(ids), -1)
        grown = torch.logsumexp(tiny.forward(ids, vocabulary), -1)
    # 300 phrases on 7 first tokens: each adds exp(-3) of its first token's mass at most.
    assert float((grown - bare).max()) < math.log(1 + 43 * math.exp(-3))
    assert float((grown - bare).min()) > 0


def test_a_table_does_not_outlive_its_vocabulary(tiny):
    tiny.tensors(tiny.vocabulary(["quiet enjoyment"]))
    assert len(tiny._tables) == 0


def test_rows_follow_an_encoder_that_is_trained(tiny):
    vocabulary = DynamicVocabulary(tiny.static_size, phrases(4))
    before = tiny.tensors(vocabulary).outputs.clone()
    stir(tiny)
    after = tiny.tensors(vocabulary)
    assert not torch.allclose(after.outputs, before)
    assert torch.allclose(
        after.outputs, tiny.encoder.encode(list(vocabulary), tiny.embeddings).outputs, atol=1e-5
    )
    assert float(after.bias[0]) != -3.0


def test_a_trained_encoder_is_not_given_the_untrained_profile(hf_tokenizer):
    lm = DynamicLM.wrap(make_gpt2(), hf_tokenizer, EncoderConfig(trained_steps=5))
    assert lm.profile.phrase_bias == 0.0
    assert DynamicLM.wrap(make_gpt2(), hf_tokenizer).profile.phrase_bias > 0
