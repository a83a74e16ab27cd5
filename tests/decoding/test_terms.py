"""`prefer` and `require`: texts that a generation is asked to write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from conftest import TEXT, make_gpt2, make_llama, make_tokenizer, stir
from univerb.decoding.loop import batch, generate, stream
from univerb.errors import OptionError
from univerb.modeling.dynamic import DynamicLM

PROMPT = "The tenant shall"
LM = stir(DynamicLM.wrap(make_gpt2(seed=3), make_tokenizer()))
WORDS = [" ".join(TEXT.split()[at : at + 3]) for at in range(0, 40, 5)]


def ids_of(text):
    return [token for piece in text.pieces for token in piece.ids]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True),
    st.sampled_from(["atomic", "unfold"]),
    st.sampled_from([0.0, 1.0]),
    st.integers(40, 70),
)
def test_what_is_required_is_written_within_the_budget(terms, mode, temperature, budget):
    options = {"mode": mode, "temperature": temperature, "max_tokens": budget, "phrase_bias": 3.0}
    result = generate(LM, PROMPT, LM.vocabulary(WORDS), require=terms, **options)
    assert all(term in result.text for term in terms)
    assert result.missing_terms == ()
    assert result.stats.base_tokens == len(ids_of(result)) <= budget
    streamed = stream(LM, PROMPT, LM.vocabulary(WORDS), require=terms, **options)
    assert "".join(map(str, streamed)) == result.text == LM.tokenizer.decode(ids_of(result))


def test_a_required_text_has_the_sources_of_its_phrase(tiny, lease):
    vocabulary = tiny.vocabulary([lease])
    term = next(p.text.strip() for p in vocabulary if p.text.startswith(" ") and len(p) == 4)
    text = generate(tiny, PROMPT, vocabulary, require=[term], max_tokens=40)
    written = next(phrase for phrase in text.phrases if phrase.text.strip() == term)
    assert written.sources
    assert {lease.text[span.start : span.end] for span in written.sources} == {term}


def test_the_text_does_not_end_before_it():
    """An LM that ends at once must go on until the term is written, and may end after it."""
    lm = DynamicLM.wrap(make_llama(seed=1), make_tokenizer())
    best = ids_of(generate(lm, PROMPT, max_tokens=1, ignore_eos=True))
    after = lm.tokenizer.encode(PROMPT).ids + lm.tokenizer.encode_inside("quiet").ids
    best += ids_of(generate(lm, after, max_tokens=1, ignore_eos=True))
    lm.model.generation_config.eos_token_id = best
    assert generate(lm, PROMPT, max_tokens=20).text == ""
    text = generate(lm, PROMPT, require=["quiet"], max_tokens=4)
    assert " quiet" in text.text
    assert text.finish_reason == "eos" or text.text.endswith("quiet")


def test_after_a_term_the_text_goes_on_as_the_lm_has_it(tiny):
    """The state after a term, and after a trial that was taken back, is that of plain text."""
    text = generate(tiny, PROMPT, require=["good repair"], max_tokens=30, ignore_eos=True)
    ids = tiny.tokenizer.encode(PROMPT).ids + ids_of(text)
    # One more: what follows at once may not go on with the term's last word.
    end = (
        1
        + len(tiny.tokenizer.encode(PROMPT).ids)
        + next(
            sum(len(p.ids) for p in text.pieces[: at + 1])
            for at, p in enumerate(text.pieces)
            if "repair" in p.text
        )
    )
    rest = generate(tiny, ids[:end], max_tokens=max(len(ids) - end, 1), ignore_eos=True)
    assert ids_of(rest)[: len(ids) - end] == ids[end:]


def test_a_preferred_text_that_does_not_fit_is_not_written(circling):
    """Its first token is likely in the circle, but what follows is not."""
    options = {"max_tokens": 12, "ignore_eos": True, "mode": "unfold"}
    plain = generate(circling, " the tenant", **options)
    term = f"{plain.text.split()[0]} zzz"
    text = generate(circling, " the tenant", prefer=[term], **options)
    assert text.text == plain.text
    assert text.missing_terms == (term,)


def test_a_preferred_text_is_written_where_the_lm_could_begin_it(circling):
    """In its circle of words the LM could say one of these, and never the other."""
    options = {"max_tokens": 12, "ignore_eos": True, "mode": "unfold"}
    plain = generate(circling, " the tenant", **options)
    likely = plain.text.split()[1]
    text = generate(circling, " the tenant", prefer=[likely, "zzz qqq"], **options)
    assert text.text == plain.text
    assert text.missing_terms == ("zzz qqq",)


def test_rows_of_a_batch_are_as_alone(tiny, lease):
    options = {"require": ["written notice"], "max_tokens": 30, "phrase_bias": 3.0}
    prompts = [PROMPT, "The landlord shall give the tenant", "rent"]
    together = batch(tiny, prompts, tiny.vocabulary([lease]), **options)
    alone = [generate(tiny, prompt, tiny.vocabulary([lease]), **options) for prompt in prompts]
    assert [text.text for text in together] == [text.text for text in alone]


@pytest.mark.parametrize("options", [{"mode": "verify"}, {"mode": "unfold", "tolerance": 0.0}])
@pytest.mark.parametrize("name", ["prefer", "require"])
def test_the_plain_lms_text_cannot_be_steered(tiny, options, name):
    with pytest.raises(OptionError, match="plain LM"):
        generate(tiny, PROMPT, **options, **{name: ["quiet"]})


def test_more_than_the_budget_cannot_be_required(tiny):
    with pytest.raises(OptionError, match="only 2 can be written"):
        generate(tiny, PROMPT, require=["quiet enjoyment of the premises"], max_tokens=2)


def test_special_tokens_are_no_terms(tiny):
    with pytest.raises(OptionError, match="special token"):
        generate(tiny, PROMPT, require=["<|endoftext|>"])


def test_a_stop_string_that_cuts_a_term_off_makes_it_missing(tiny):
    text = generate(tiny, PROMPT, require=["good repair"], stop=["repair"], max_tokens=12)
    assert text.finish_reason == "stop"
    assert text.missing_terms == ("good repair",)


def test_a_part_of_a_longer_word_is_not_the_term(circling):
    """The LM's circle has the word "landlord", in which "land" does not count."""
    options = {"max_tokens": 12, "ignore_eos": True}
    assert "landlord" in generate(circling, " the tenant", **options).text
    assert generate(circling, " the tenant", prefer=["land"], **options).missing_terms == ("land",)
    text = generate(circling, " the tenant", require=["land"], **options)
    assert "land" in text.text.split() and text.missing_terms == ()


def test_a_term_counts_as_the_tokenizer_writes_it():
    """Tokenizers may compose letters: the text then has other characters than the option."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    lm = DynamicLM.wrap(make_gpt2(seed=3), tokenizer)
    text = generate(lm, PROMPT, require=["e\u0301tude"], max_tokens=24, ignore_eos=True)
    assert text.text.count("\u00e9tude") == 1
    assert text.missing_terms == ()


def test_terms_and_the_options_that_forbid_texts(tiny):
    with pytest.raises(OptionError, match="banned"):
        generate(tiny, PROMPT, require=["good repair"], ban=["repair"])
    prompt = "The tenant shall pay the rent. The"
    options = {"no_repeat_ngram_size": 3, "max_tokens": 10, "ignore_eos": True}
    text = generate(tiny, prompt, prefer=["tenant shall pay the rent"], **options)
    assert text.missing_terms == ("tenant shall pay the rent",)


def test_a_term_that_was_written_counts_as_used(tiny, lease):
    vocabulary = tiny.vocabulary(["good repair"])
    generate(tiny, PROMPT, vocabulary, require=["good repair"], max_tokens=20, ignore_eos=True)
    assert vocabulary.expire(idle=25) == []
