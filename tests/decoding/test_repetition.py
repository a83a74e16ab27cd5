"""`no_repeat_ngram_size`: HF's meaning for tokens, across phrases, in every mode and engine."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

from conftest import make_llama, make_tokenizer, stir
from tiny_gguf import load_tiny, needs_llamacpp
from univerb.config import GenerationConfig
from univerb.decoding.loop import batch, generate, stream
from univerb.decoding.repetition import RepeatedPhrases, WrittenNGrams, repeated_tokens
from univerb.decoding.terms import Terms
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

PROMPT = "The tenant shall have"
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=30)
SIZE = 10


def has_repeat(ids, size):
    ngrams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@given(IDS, st.integers(1, 5))
def test_tokens_are_those_that_transformers_masks(ids, size):
    scores = torch.zeros(1, SIZE)
    expected = NoRepeatNGramLogitsProcessor(size)(torch.tensor([ids]), scores)[0]
    assert repeated_tokens(ids, size) == set(torch.where(expected.isinf())[0].tolist())


@given(
    text=IDS.filter(lambda ids: len(ids) >= 3),
    phrases=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=6), max_size=12),
    size=st.integers(1, 4),
    later=st.integers(0, 12),
)
@settings(max_examples=200)
def test_phrases_are_those_that_would_bring_a_new_repeat(text, phrases, size, later):
    """A phrase is left out iff one of its tokens would complete a known n-gram."""
    unique = [Phrase(ids, "x") for ids in dict.fromkeys(map(tuple, phrases))]
    vocabulary = DynamicVocabulary(SIZE, unique[:later])
    repeated = RepeatedPhrases(vocabulary, size)
    for end in (1, len(text) // 2 + 1):
        repeated.update(text[:end])
    vocabulary.add(unique[later:])
    expected = {
        index
        for index, phrase in enumerate(unique)
        if any(
            token in repeated_tokens([*text, *phrase.ids[:at]], size)
            for at, token in enumerate(phrase.ids)
        )
    }
    assert repeated.update(text) == expected


@given(IDS, IDS, st.integers(1, 5), st.integers(0, 30))
def test_tokens_may_follow_until_one_would_be_masked(text, tokens, size, middle):
    written = WrittenNGrams(size)
    written.update(text[:middle])
    new = written.update(text)
    assert written.known >= set(new) and written.ids == text
    masked = [
        token in repeated_tokens([*text, *tokens[:at]], size) for at, token in enumerate(tokens)
    ]
    assert written.count_new(tokens) == [*masked, True].index(True)


def test_plain_text_is_that_of_transformers(circling):
    ids = circling.tokenizer.encode_prompt(PROMPT)
    expected = circling.model.generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, no_repeat_ngram_size=3,
        eos_token_id=None, pad_token_id=0,
    )[0, len(ids) :].tolist()  # fmt: skip
    given = {"max_tokens": 40, "ignore_eos": True, "no_repeat_ngram_size": 3}
    assert flat(generate(circling, ids, **given)) == expected
    assert flat(generate(circling, ids, max_tokens=40, ignore_eos=True)) != expected


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}])
@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
def test_no_ngram_comes_twice_in_any_mode(circling, lease, mode, options):
    vocabulary = circling.vocabulary([lease])
    ids = circling.tokenizer.encode_prompt(PROMPT)
    given = {"mode": mode, "max_tokens": 60, "ignore_eos": True, "phrase_bias": 8.0, **options}
    if mode == "unfold":
        given["tolerance"] = 1.0
    free = generate(circling, ids, vocabulary, **given)
    assert has_repeat([*ids, *flat(free)], 3)
    text = generate(circling, ids, vocabulary, no_repeat_ngram_size=3, **given)
    assert not has_repeat([*ids, *flat(text)], 3)
    assert mode == "verify" or text.phrases
    if mode == "verify":
        del given["mode"], given["phrase_bias"]
        assert flat(text) == flat(generate(circling, ids, no_repeat_ngram_size=3, **given))


def test_off_is_the_default_and_no_profile_has_it(tiny):
    stir(tiny)
    texts = [
        flat(generate(tiny, PROMPT, max_tokens=20, **o)) for o in ({}, {"no_repeat_ngram_size": 0})
    ]
    assert texts[0] == texts[1]
    assert "no_repeat_ngram_size" not in type(tiny.profile).model_fields


def test_each_sequence_of_a_batch_counts_its_own(circling, lease):
    vocabularies = [circling.vocabulary([lease]), None, circling.vocabulary([lease])]
    given = {"max_tokens": 30, "ignore_eos": True, "no_repeat_ngram_size": 2, "mode": "unfold"}
    prompts = [PROMPT, "the landlord", "rent on the"]
    together = batch(circling, prompts, vocabularies, **given)
    for prompt, vocabulary, generation in zip(prompts, vocabularies, together, strict=True):
        assert flat(generation) == flat(generate(circling, prompt, vocabulary, **given))


@needs_llamacpp
def test_llamacpp_has_it_too(tmp_path, lease):
    lm = load_tiny(tmp_path)
    ids = lm.tokenizer.encode_prompt("the tenant")
    for mode, vocabulary in (("atomic", lm.vocabulary([lease])), ("atomic", None)):
        given = {"mode": mode, "max_tokens": 40, "ignore_eos": True, "phrase_bias": 8.0}
        text = generate(lm, ids, vocabulary, no_repeat_ngram_size=2, **given)
        assert not has_repeat([*ids, *flat(text)], 2)


def test_a_phrase_is_cut_before_the_token_that_would_repeat():
    lm = stir(DynamicLM.wrap(make_llama(), make_tokenizer()))
    vocabulary = lm.vocabulary([Phrase((5, 6, 7, 8), "x")])
    given = {"mode": "unfold", "tolerance": 1.0, "phrase_bias": 500.0, "max_tokens": 8}
    text = generate(lm, [6, 7, 9], vocabulary, no_repeat_ngram_size=2, ignore_eos=True, **given)
    first = text.pieces[0]
    assert first.is_phrase and first.ids == (5, 6)


# -- `repeat_from`: passages are shown to be copied from ------------------------------------------

PHRASE_MODES = [
    {"mode": "atomic", "phrase_bias": 900.0},
    {"mode": "unfold", "tolerance": 1.0, "phrase_bias": 900.0},
]
CONTROLS = [{"no_repeat_ngram_size": 2}, {"repetition_penalty": 50.0}]


@pytest.mark.parametrize("given", [{"mode": "verify"}, {"temperature": 1.0}, *PHRASE_MODES])
@pytest.mark.parametrize("control", [{}, *CONTROLS])
def test_from_the_beginning_is_the_default(circling, lease, given, control):
    options = {"max_tokens": 30, "ignore_eos": True, **given, **control}
    vocabulary = circling.vocabulary([lease])
    default = generate(circling, PROMPT, vocabulary, **options)
    assert flat(generate(circling, PROMPT, vocabulary, repeat_from=0, **options)) == flat(default)


@pytest.mark.parametrize("given", PHRASE_MODES)
def test_phrases_of_what_is_left_out_may_be_copied(circling, lease, given):
    shown = circling.tokenizer.encode_prompt(lease.text + "\n\n")
    ids = [*shown, *circling.tokenizer.encode(PROMPT).ids]
    options = {"max_tokens": 24, "ignore_eos": True, "no_repeat_ngram_size": 2, **given}
    vocabulary = circling.vocabulary([lease])
    masked = generate(circling, ids, vocabulary, **options)
    assert not has_repeat([*ids[-4:], *flat(masked)], 2) and masked.stats.phrase_share < 0.5
    free = generate(circling, ids, vocabulary, repeat_from=len(shown), **options)
    assert free.stats.phrase_share > 0.5
    # What follows the passages is never repeated, and neither is what is written.
    assert not has_repeat([*ids[len(shown) :], *flat(free)], 2)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
def test_what_is_left_out_is_as_if_it_had_not_been_written(circling, lease, mode, control):
    """The circling LM sees the last token only: it writes the same without what is left out."""
    shown = circling.tokenizer.encode(lease.text).ids
    prompt = circling.tokenizer.encode(PROMPT).ids
    given = {"max_tokens": 40, "ignore_eos": True, "mode": mode, **control}
    vocabulary = circling.vocabulary([lease]) if mode == "verify" else None
    alone = flat(generate(circling, prompt, vocabulary, **given))
    behind = flat(
        generate(circling, [*shown, *prompt], vocabulary, repeat_from=len(shown), **given)
    )
    assert behind == alone
    assert flat(generate(circling, [*shown, *prompt], vocabulary, **given)) != alone


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("given", [{"mode": "verify"}, {"temperature": 1.0}, *PHRASE_MODES])
def test_more_than_the_prompt_may_be_left_out(circling, lease, given, control):
    options = {"max_tokens": 12, "ignore_eos": True, **given, **control}
    vocabulary = circling.vocabulary([lease])
    far = generate(circling, PROMPT, vocabulary, repeat_from=10_000, **options)
    plain = {name: value for name, value in options.items() if name not in control}
    assert flat(far) == flat(generate(circling, PROMPT, vocabulary, **plain))


def test_each_of_a_batch_and_a_stream_leave_out_the_same(circling, lease):
    shown = circling.tokenizer.encode(lease.text).ids
    prompts = [[*shown, *circling.tokenizer.encode(text).ids] for text in (PROMPT, " the rent")]
    vocabulary = circling.vocabulary([lease])
    given = {"max_tokens": 24, "ignore_eos": True, "no_repeat_ngram_size": 2, "phrase_bias": 8.0}
    given["repeat_from"] = len(shown)
    together = batch(circling, prompts, vocabulary, **given)
    for prompt, generation in zip(prompts, together, strict=True):
        assert flat(generation) == flat(generate(circling, prompt, vocabulary, **given))
        streamed = stream(circling, prompt, vocabulary, **given)
        assert "".join(piece.text for piece in streamed) == generation.text


@pytest.mark.parametrize(("repeat_from", "is_fitting"), [(0, False), (4, True), (99, True)])
def test_a_preferred_text_of_what_is_left_out_may_be_written(circling, repeat_from, is_fitting):
    term = "tenant shall pay"
    shown = circling.tokenizer.encode_inside(term).ids
    assert len(shown) == 4
    config = GenerationConfig(
        prefer=[term], max_tokens=20, no_repeat_ngram_size=2, repeat_from=repeat_from
    )
    terms = Terms(config, circling.tokenizer, None, 20)
    logits = numpy.zeros(320, numpy.float32)
    logits[shown[0]] = 9.0
    prompt = [*shown, *circling.tokenizer.encode(" on the").ids]
    assert (terms.fitting(logits, prompt, []) is not None) == is_fitting


@needs_llamacpp
def test_llamacpp_leaves_out_the_same(tmp_path, lease):
    lm = load_tiny(tmp_path)
    shown = lm.tokenizer.encode_prompt(lease.text)
    ids = [*shown, *lm.tokenizer.encode(PROMPT).ids]
    vocabulary = lm.vocabulary([lease])
    for mode in PHRASE_MODES:
        options = {"max_tokens": 20, "ignore_eos": True, "no_repeat_ngram_size": 2, **mode}
        masked = generate(lm, ids, vocabulary, **options)
        free = generate(lm, ids, vocabulary, repeat_from=len(shown), **options)
        assert free.stats.phrase_share > 0.5 > masked.stats.phrase_share
        assert not has_repeat(flat(free), 2)
    plain = {"max_tokens": 12, "ignore_eos": True}
    for control in CONTROLS:
        far = generate(lm, ids, repeat_from=10_000, **plain, **control)
        assert flat(far) == flat(generate(lm, ids, **plain))
