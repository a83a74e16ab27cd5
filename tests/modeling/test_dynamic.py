"""DynamicLM: V' = V + P on both sides of a backbone that stays as it is."""

import pytest
import torch

from conftest import make_llama, stir
from univerb.errors import PhraseError, PromptError, VocabularyError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.vocabulary import DynamicVocabulary


def test_without_phrases_the_logits_are_the_models_own_bit_for_bit(tiny_any_head):
    ids = torch.tensor([[5, 9, 17, 33, 2, 250]])
    with torch.no_grad():
        bare = tiny_any_head.model(ids).logits
        assert torch.equal(tiny_any_head.forward(ids), bare)
        assert torch.equal(tiny_any_head.forward(ids, tiny_any_head.vocabulary()), bare)


def test_a_phrase_with_a_tokens_own_row_reads_exactly_as_that_token(tiny):
    vocabulary = DynamicVocabulary(tiny.static_size, [Phrase((17,), "x")])
    as_token = torch.tensor([[5, 9, 17, 33]])
    as_phrase = torch.tensor([[5, 9, tiny.static_size, 33]])
    with torch.no_grad():
        difference = tiny.forward(as_token, vocabulary) - tiny.forward(as_phrase, vocabulary)
    assert float(difference.abs().max()) == 0.0


def test_a_phrase_with_a_tokens_own_row_scores_as_that_token(tiny):
    with torch.no_grad():
        tiny.encoder.heads.bias.zero_()
    vocabulary = DynamicVocabulary(tiny.static_size, [Phrase((17,), "x")])
    with torch.no_grad():
        logits = tiny.forward(torch.tensor([[5, 9, 33]]), vocabulary)
    assert float((logits[..., 17] - logits[..., -1]).abs().max()) < 1e-5


def test_probabilities_over_the_grown_vocabulary_sum_to_one(tiny_any_head):
    vocabulary = tiny_any_head.vocabulary(["quiet enjoyment", "the premises in good repair"])
    with torch.no_grad():
        logits = tiny_any_head.forward(torch.tensor([[5, 9, 17]]), vocabulary)
    assert logits.shape[-1] == tiny_any_head.static_size + 2
    assert torch.allclose(logits.softmax(-1).sum(-1), torch.ones(1, 3), atol=1e-5)


def test_wrapping_leaves_the_users_model_as_it_was(hf_tokenizer, lease):
    model = make_llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    lm = DynamicLM.wrap(model, hf_tokenizer)
    lm.tensors(lm.vocabulary([lease]))
    assert lm.model is model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.get_input_embeddings().weight.shape[0] == 320
    assert hooks == [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_gradients_reach_the_encoder_through_both_sides(tiny):
    lm = stir(tiny)
    phrases = [Phrase((5, 9), "x"), Phrase((7, 8, 9), "y")]
    vectors = lm.encoder.encode(phrases, lm.embeddings)
    hidden = lm.model.base_model(inputs_embeds=vectors.inputs[None]).last_hidden_state
    (hidden @ vectors.outputs.T).logsumexp(-1).sum().backward()
    heads = lm.encoder.heads
    assert heads.input.weight.grad.abs().sum() > 0
    assert heads.output.weight.grad.abs().sum() > 0
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in lm.encoder.body.parameters())


def test_a_vocabulary_of_another_model_is_refused(tiny):
    with pytest.raises(VocabularyError, match="320"):
        tiny.tensors(DynamicVocabulary(99, []))


def test_a_phrase_longer_than_the_context_is_refused(tiny):
    with pytest.raises(PhraseError, match="context"):
        tiny.vocabulary(["word " * 600])


def test_a_model_without_chat_template_says_so(tiny):
    with pytest.raises(PromptError, match="chat template"):
        tiny.chat_prompt("hello")


def test_a_vocabulary_carries_the_sources_of_all_documents(tiny):
    one = Document("the tenant shall pay", "a.txt")
    two = Document("and the tenant shall pay again", "b.txt")
    vocabulary = tiny.vocabulary([one, two])
    for phrase in vocabulary:
        for span in phrase.sources:
            text = {"a.txt": one, "b.txt": two}[span.document].text
            assert text[span.start : span.end] == phrase.text.strip()
    shared = [p for p in vocabulary if {s.document for s in p.sources} == {"a.txt", "b.txt"}]
    assert " tenant shall pay" in [p.text for p in shared]


def test_the_fingerprint_follows_encoder_and_embeddings(tiny):
    first = tiny.fingerprint()
    assert first == tiny.fingerprint()
    with torch.no_grad():
        tiny.embeddings.input.weight[0] += 1
    second = tiny.fingerprint()
    with torch.no_grad():
        tiny.encoder.heads.bias += 1
    assert len({first, second, tiny.fingerprint()}) == 3
