"""With no phrases the plain LM is left: same logits, same text, same random state as HF's."""

import pytest
import torch

from univerb.config import EncoderConfig, GenerationConfig
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.loop import batch, generate
from univerb.decoding.phrase_head import Place
from univerb.engines.factory import engine_of
from univerb.modeling.dynamic import DynamicLM

PROMPT = "The tenant shall have"

SAMPLING = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 12, "repetition_penalty": 1.2},
    {"repetition_penalty": 1.4},
]


def by_hf(lm, prompt, count, seed=0, **sampling):
    inputs = lm.hf_tokenizer(prompt, return_tensors="pt")
    options = {"top_k": 0, "top_p": 1.0, "temperature": 1.0} | sampling
    if not sampling.get("temperature"):
        options = {"repetition_penalty": sampling.get("repetition_penalty", 1.0)}
    torch.manual_seed(seed)
    out = lm.model.generate(
        **inputs,
        max_new_tokens=count,
        do_sample=bool(sampling.get("temperature")),
        pad_token_id=0,
        **options,
    )
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def ids_of(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
def test_no_phrases_gives_the_ids_of_hf_generate(tiny, mode, sampling):
    for vocabulary in (None, tiny.vocabulary()):
        ours = generate(tiny, PROMPT, vocabulary, max_tokens=24, mode=mode, seed=7, **sampling)
        theirs = by_hf(tiny, PROMPT, 24, seed=7, **sampling)
        assert ids_of(ours) == [token for token in theirs if token not in tiny.eos_ids]
        assert ours.text == tiny.hf_tokenizer.decode(ids_of(ours))


def test_a_vocabulary_of_removed_phrases_is_as_good_as_none(tiny, lease):
    vocabulary = tiny.vocabulary([lease])
    vocabulary.remove(range(tiny.static_size, tiny.static_size + vocabulary.size))
    for mode in ("atomic", "unfold", "verify"):
        with_removed = generate(tiny, PROMPT, vocabulary, mode=mode, temperature=1.0, max_tokens=24)
        without = generate(tiny, PROMPT, mode=mode, temperature=1.0, max_tokens=24)
        assert ids_of(with_removed) == ids_of(without)


@pytest.mark.default_model
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95}], ids=str)
def test_the_default_model_writes_what_hf_generate_writes(default_lm, sampling):
    prompt = "The history of the lighthouse begins in"
    ours = generate(default_lm, prompt, max_tokens=32, seed=3, **sampling)
    theirs = by_hf(default_lm, prompt, 32, seed=3, **sampling)
    assert ids_of(ours) == [token for token in theirs if token not in default_lm.eos_ids]
    assert ours.text == default_lm.hf_tokenizer.decode(ids_of(ours))


@pytest.mark.default_model
def test_the_default_models_logits_are_bit_identical_without_phrases(default_lm):
    ids = torch.tensor([default_lm.tokenizer.encode("The harbour was rebuilt").ids])
    with torch.no_grad():
        bare = default_lm.model(ids).logits
        assert torch.equal(default_lm.forward(ids), bare)
        assert torch.equal(default_lm.forward(ids, default_lm.vocabulary()), bare)


@pytest.mark.default_model
def test_on_the_default_model_a_tokens_own_row_is_that_token(default_lm):
    from univerb.phrase import Phrase
    from univerb.vocabulary import DynamicVocabulary

    lm = DynamicLM.wrap(default_lm.model, default_lm.hf_tokenizer)
    ids = lm.tokenizer.encode(" The harbour was rebuilt in stone").ids
    vocabulary = DynamicVocabulary(lm.static_size, [Phrase((ids[2],), "x", weight=3.0)])
    units = [*ids[:2], lm.static_size, *ids[3:]]
    with torch.no_grad():
        as_tokens = lm.forward(torch.tensor([ids]), vocabulary)
        as_phrase = lm.forward(torch.tensor([units]), vocabulary)
    assert float((as_tokens - as_phrase).abs().max()) == 0.0
    # Weight 3 cancels the fresh head's bias, so the phrase scores as its token.
    assert float((as_tokens[..., ids[2]] - as_tokens[..., -1]).abs().max()) < 1e-5


@pytest.mark.default_model
def test_on_the_default_model_phrases_take_no_more_than_their_first_tokens_have(default_lm, lease):
    """Whatever is chosen, decoding and `forward` share the LM's probability in the same way."""
    encoder = DynamicLM.wrap(
        default_lm.model, default_lm.hf_tokenizer, EncoderConfig(form="conditional", bias=2.0)
    )
    for lm in (default_lm, encoder):
        vocabulary = lm.vocabulary([lease])
        ids = lm.tokenizer.encode("The landlord shall give the tenant").ids
        with torch.inference_mode():
            hidden = lm.model.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
            bare = lm.embeddings.output(hidden)
            units = lm.forward(torch.tensor([ids]), vocabulary)[0, -1]
        assert float(units.logsumexp(0)) == pytest.approx(float(bare.logsumexp(0)), abs=1e-3)
        config, weights = GenerationConfig(exact=True), engine_of(lm).phrase_weights()
        head = ConditionalPhraseHead(lm, weights, vocabulary, config, lm.eos_ids)
        head.update()
        place = Place(hidden.numpy(), bare.numpy(), ids, 99)
        place = place._replace(logits=head.voted(place))
        found = head.logits(place)
        chosen = units[lm.static_size :][torch.from_numpy(found.indices)]
        torch.testing.assert_close(torch.from_numpy(found.logits), chosen, atol=1e-2, rtol=1e-3)
        left = torch.from_numpy(found.left_to_tokens(place.logits))
        torch.testing.assert_close(left, units[: lm.static_size], atol=1e-2, rtol=1e-3)
        assert float(chosen.max()) > float(chosen.min())


def test_a_batch_without_phrases_equals_each_prompt_alone(tiny):
    prompts = ["The tenant", "The landlord shall give the tenant", "rent"]
    together = batch(tiny, prompts, max_tokens=20)
    assert [g.text for g in together] == [generate(tiny, p, max_tokens=20).text for p in prompts]
