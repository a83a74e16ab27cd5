"""Many random requests on tiny models: the off switch, streams, batches, and every option.

Each test runs with a few cases in `make test` and with many in `make stress`.
"""

import random

import pytest
import torch

from conftest import TEXT, make_gpt2, make_llama, make_tokenizer, stir
from univerb.decoding.loop import batch, generate, stream
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase

pytestmark = pytest.mark.filterwarnings("ignore::univerb.phrases.ngrams.UnspacedTextWarning")
MODELS = {
    "gpt2": stir(DynamicLM.wrap(make_gpt2(seed=3), make_tokenizer())),
    "llama": stir(DynamicLM.wrap(make_llama(seed=3), make_tokenizer())),
}
SCRIPTS = (
    "the tenant shall pay ",
    "日本語の文章です",
    "🎉👩‍👩‍👧 ",
    "Größe naïve ",
    "مرحبا ",
    "\n\t§12(3) ",
)


def counts(few, many):
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.stress)])


def random_text(rng, length=30):
    text = "".join(rng.choice(SCRIPTS) for _ in range(6))
    start = rng.randrange(len(text))
    return text[start : start + length].strip() or "a"


def random_request(rng):
    """Options that may go together, and a model with a vocabulary."""
    lm = MODELS[rng.choice(list(MODELS))]
    mode = rng.choice(["atomic", "unfold", "verify"])
    options = {
        "mode": mode,
        "max_tokens": rng.randint(1, 16),
        "temperature": rng.choice([0.0, 0.3, 1.0, 1.7]),
        "top_p": rng.choice([0.3, 0.9, 1.0]),
        "top_k": rng.choice([0, 1, 7, 500]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.3, 0.8]),
        "no_repeat_ngram_size": rng.choice([0, 0, 2, 4]),
        "seed": rng.randrange(1 << 30),
        "phrase_bias": rng.choice([-5.0, 0.0, 3.0, 8.0]),
        "drafts": rng.choice([False, True]),
        "overshoot": rng.choice(["allow", "forbid"]),
        "ignore_eos": rng.choice([True, False]),
        "stop": rng.choice([[], [], ["e"], [" t", "い"]]),
        "ban": rng.choice([[], ["pay"]]),
        "exact": rng.choice([None, True, False]),
        "explain": rng.choice([True, False]),
    }
    if mode == "unfold":
        options["tolerance"] = rng.choice([0.1, 0.9, 1.0])
    if mode != "verify" and rng.random() < 0.2:
        options["prefer"] = ["quiet"]
    if mode == "atomic":
        options |= {
            "segment": rng.choice([True, False]),
            "positions": rng.choice(["unit", "token"]),
        }
    return lm, options


def ids_of(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@counts(8, 200)
def test_without_phrases_ids_are_those_of_hf_generate(count):
    rng = random.Random(1)
    for _ in range(count):
        lm = MODELS[rng.choice(list(MODELS))]
        prompt, seed = random_text(rng), rng.randrange(1 << 30)
        sampling = rng.choice(
            [{}, {"temperature": 0.9, "top_p": 0.8}, {"temperature": 1.2, "top_k": 9}]
        )
        ours = generate(lm, prompt, lm.vocabulary(), max_tokens=12, seed=seed, **sampling)
        inputs = lm.hf_tokenizer(prompt, return_tensors="pt")
        torch.manual_seed(seed)
        options = {"top_k": 0, "top_p": 1.0, "do_sample": True} | sampling if sampling else {}
        theirs = lm.model.generate(**inputs, max_new_tokens=12, pad_token_id=0, **options)
        new = theirs[0, inputs["input_ids"].shape[1] :].tolist()
        assert ids_of(ours) == [token for token in new if token not in lm.eos_ids]


@counts(15, 500)
def test_streams_are_the_whole_text_in_any_script(count):
    rng = random.Random(2)
    for _ in range(count):
        lm, options = random_request(rng)
        vocabulary = lm.vocabulary([Document(random_text(rng, 80), "any")], max_phrases=200)
        prompt = random_text(rng)
        whole = generate(lm, prompt, vocabulary, **options)
        parts = stream(lm, prompt, vocabulary, **options)
        assert "".join(map(str, parts)) == whole.text
        assert parts.result.stats.base_tokens == whole.stats.base_tokens
        if whole.finish_reason != "stop":
            assert whole.text == lm.tokenizer.decode(ids_of(whole))


@counts(30, 10_000)
def test_rows_of_a_batch_never_share_phrases(count):
    """Each row has phrases of its own alone; one mix in twenty is compared with each row alone."""
    rng = random.Random(3)
    tokens = range(1, 320)
    for number in range(count):
        lm = MODELS[rng.choice(list(MODELS))]
        rows = rng.randint(2, 8)
        # Pairs of tokens: whose they are can be told from what was written.
        pairs = rng.sample(
            [(a, b) for a in rng.sample(tokens, 40) for b in rng.sample(tokens, 8)], 64
        )
        own = [pairs[8 * row : 8 * row + 8] for row in range(rows)]
        vocabularies = [lm.vocabulary([Phrase(p, "x", weight=9.0) for p in mine]) for mine in own]
        prompts = [[rng.choice(tokens) for _ in range(rng.randint(1, 6))] for _ in range(rows)]
        options = {"mode": rng.choice(["atomic", "unfold"]), "tolerance": None, "max_tokens": 4}
        options |= {"temperature": rng.choice([0.0, 1.0]), "ignore_eos": True}
        together = batch(lm, prompts, vocabularies, seeds=range(rows), **options)
        for mine, text in zip(own, together, strict=True):
            assert all(phrase.ids in mine for phrase in text.phrases)
        if number % 20 == 0:
            for row, text in enumerate(together):
                alone = generate(lm, prompts[row], vocabularies[row], seed=row, **options)
                assert ids_of(alone) == ids_of(text)


@counts(20, 1000)
def test_every_option_works_with_any_number_of_phrases(count):
    rng = random.Random(4)
    words = TEXT.split()
    for _ in range(count):
        lm, options = random_request(rng)
        size = rng.choice([0, 1, 300, 4096])
        phrases = [
            Phrase(tuple(rng.choices(range(1, 320), k=rng.randint(2, 6))), rng.choice(words))
            for _ in range(size)
        ]
        vocabulary = lm.vocabulary(phrases)
        text = generate(lm, random_text(rng), vocabulary, **options)
        assert text.stats.base_tokens <= options["max_tokens"] or options["overshoot"] == "allow"
        # The same vocabulary again after it has changed.
        vocabulary.remove(range(lm.static_size, lm.static_size + vocabulary.size // 2))
        vocabulary.add([Phrase((5, 6, 7), "new")])
        again = generate(lm, random_text(rng), vocabulary, **options)
        active = {phrase.ids[:n] for phrase in vocabulary for n in range(2, len(phrase) + 1)}
        asked = {tuple(lm.tokenizer.encode_inside(t).ids) for t in options.get("prefer", ())}
        assert {phrase.ids for phrase in again.phrases} <= active | asked
