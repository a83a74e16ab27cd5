"""The decode loop against a second implementation without cache, and its lossless mode."""

import dataclasses

import pytest
import slow_reference
import torch
from scipy.stats import chisquare

import univerb
from conftest import data_directory, make_llama, make_tokenizer, stir
from tiny_gguf import needs_llamacpp
from univerb.decoding.growth import RealTime
from univerb.decoding.loop import batch, generate, stream
from univerb.engines.row_costs import RowCosts, assume
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase

PROMPT = "The tenant shall have"


def prompt_of(lm):
    return lm.tokenizer.encode(PROMPT).ids


def trace(generation):
    return [piece.ids for piece in generation.pieces]


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_atomic_with_cache_equals_atomic_without(tiny, lease, seed, bias):
    lm = stir(tiny, seed)
    vocabulary = lm.vocabulary([lease])
    ours = generate(
        lm, PROMPT, vocabulary, mode="atomic", phrase_bias=bias, max_tokens=40, ignore_eos=True
    )
    assert trace(ours) == slow_reference.atomic(lm, prompt_of(lm), vocabulary, bias, 40)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tolerance", [0.0, 0.5, 0.9, 0.999, 1.0])
def test_unfold_with_cache_and_rewinds_equals_unfold_without(tiny, lease, seed, tolerance):
    lm = stir(tiny, seed)
    vocabulary = lm.vocabulary([lease])
    ours = generate(
        lm, PROMPT, vocabulary, mode="unfold", tolerance=tolerance, phrase_bias=3.0,
        max_tokens=40, ignore_eos=True, drafts=False,
    )  # fmt: skip
    slow = slow_reference.unfold(lm, prompt_of(lm), vocabulary, 3.0, tolerance, 40)
    assert trace(ours) == slow


def test_atomic_with_cache_equals_atomic_without_across_growth_and_removal(tiny, lease):
    lm = stir(tiny)
    all_phrases = list(lm.vocabulary([lease]))

    def change(vocabulary, produced):
        vocabulary.add(all_phrases[: 5 * produced])
        if produced > 15:
            vocabulary.remove(range(lm.static_size, lm.static_size + 3 * produced))

    vocabulary = lm.vocabulary(all_phrases[:10])
    ours = generate(
        lm, PROMPT, vocabulary, mode="atomic", phrase_bias=2.0, max_tokens=40,
        ignore_eos=True, growth=change,
    )  # fmt: skip
    fresh = lm.vocabulary(all_phrases[:10])
    slow = slow_reference.atomic(lm, prompt_of(lm), fresh, 2.0, 40, change)
    assert trace(ours) == slow
    assert ours.phrases, "growth should have been used"


@pytest.mark.parametrize("bias", [-3.0, 0.0, 6.0, 50.0])
def test_verify_writes_the_plain_lms_text(tiny, lease, bias):
    plain = generate(tiny, PROMPT, max_tokens=60)
    verified = generate(
        tiny, PROMPT, tiny.vocabulary([lease]), mode="verify", phrase_bias=bias, max_tokens=60
    )
    assert flat(verified) == flat(plain)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tolerance", [0.0, 0.5, 0.999, 1.0])
def test_drafts_change_no_text(tiny, lease, temperature, tolerance):
    lm = stir(tiny, 1)
    given = {"mode": "unfold", "tolerance": tolerance, "phrase_bias": -2.0, "max_tokens": 50}
    given |= {"temperature": temperature, "seed": 7, "ignore_eos": True}
    # Tokens of the LM's own text among the phrases, so that some guesses are right.
    own = flat(generate(lm, PROMPT, lm.vocabulary([lease]), drafts=False, **given))
    phrases = [Phrase(tuple(own[at : at + 4]), "x") for at in range(0, 44, 3)]
    plain, guessed = (
        generate(lm, PROMPT, lm.vocabulary([*phrases, lease]), drafts=drafts, **given)
        for drafts in (False, True)
    )
    assert flat(guessed) == flat(plain)
    if temperature == tolerance == 0.0:
        assert guessed.stats.steps < plain.stats.steps


def test_drafts_change_no_text_while_the_vocabulary_grows(tiny, lease):
    lm = stir(tiny, 1)
    given = {"mode": "unfold", "tolerance": 1.0, "phrase_bias": -50.0, "max_tokens": 40}
    own = flat(generate(lm, PROMPT, max_tokens=40, ignore_eos=True))
    right = [Phrase(tuple(own[at : at + 5]), "x") for at in range(35)]
    late = dataclasses.replace(next(iter(lm.vocabulary([lease]))), weight=1000.0)

    def grow(vocabulary, produced):
        if produced == 7:
            vocabulary.add([late])

    plain, guessed = (
        flat(generate(lm, PROMPT, lm.vocabulary(right), drafts=drafts, growth=grow,
                      ignore_eos=True, **given))
        for drafts in (False, True)
    )  # fmt: skip
    assert guessed == plain != own


def test_a_phrase_that_was_removed_after_a_wrong_guess_is_not_written(tiny, lease):
    lm = stir(tiny)

    def change(vocabulary, produced):
        if produced > 8:
            vocabulary.remove(range(lm.static_size, lm.static_size + len(vocabulary)))

    text = generate(lm, PROMPT, lm.vocabulary([lease]), mode="unfold", tolerance=1.0,
                    phrase_bias=2.0, max_tokens=40, ignore_eos=True,
                    growth=change)  # fmt: skip
    written = 0
    for piece in text.pieces:
        assert piece.phrase is None or written <= 8
        written += len(piece.ids)
    assert written == 40


def repeating_lm():
    """A tiny LM that repeats its own text, so that phrases of that text are often right."""
    lm = DynamicLM.wrap(make_llama(seed=5), make_tokenizer())
    text = generate(lm, PROMPT, max_tokens=80, ignore_eos=True)
    return lm, Phrase(tuple(flat(text)[10:15]), "x")


def test_verify_saves_steps_where_a_phrase_is_right():
    lm, right = repeating_lm()
    vocabulary = lm.vocabulary([right])
    plain = generate(lm, PROMPT, max_tokens=80, ignore_eos=True)
    with assume(RowCosts({1: 1.0, 32: 1.0})):
        verified = generate(lm, PROMPT, vocabulary, mode="verify", max_tokens=80, ignore_eos=True)
    assert flat(verified) == flat(plain)
    assert verified.stats.steps < plain.stats.steps


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.8}])
def test_verify_under_sampling_keeps_the_plain_lms_text_and_random_state(tiny, lease, sampling):
    vocabulary = tiny.vocabulary([lease])
    for seed in range(12):
        plain = slow_reference.plain(tiny, prompt_of(tiny), 25, seed=seed, **sampling)
        verified = generate(
            tiny, PROMPT, vocabulary, mode="verify", phrase_bias=9.0, max_tokens=25, seed=seed,
            ignore_eos=True, **sampling,
        )  # fmt: skip
        assert flat(verified) == plain


def test_verify_under_sampling_has_the_plain_lms_distribution():
    lm = DynamicLM.wrap(make_llama(seed=2), make_tokenizer())
    prompt = prompt_of(lm)
    first = torch.softmax(slow_reference.bare_logits(lm, prompt) / 0.5, -1)
    likely = int(first.argmax())
    second = torch.softmax(slow_reference.bare_logits(lm, [*prompt, likely]) / 0.5, -1)
    # A phrase that is often proposed and often wrong.
    draft = Phrase((likely, int(second.topk(3).indices[2])), "x")
    vocabulary = lm.vocabulary([draft])
    counts, runs = torch.zeros_like(second), 0
    for seed in range(1000):
        written = flat(
            generate(
                lm, prompt, vocabulary, mode="verify", phrase_bias=99.0, max_tokens=2, seed=seed,
                temperature=0.5, ignore_eos=True,
            )
        )  # fmt: skip
        if written[0] == likely:
            counts[written[1]] += 1
            runs += 1
    common = second * runs >= 5
    observed = [*counts[common].tolist(), float(counts[~common].sum())]
    expected = [*(second[common] * runs).tolist(), float(second[~common].sum() * runs)]
    assert runs > 100
    assert chisquare(observed, [e * sum(observed) / sum(expected) for e in expected]).pvalue > 1e-3


def test_tolerance_one_keeps_whole_phrases(tiny, lease):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([lease])
    result = generate(
        lm, PROMPT, vocabulary, mode="unfold", tolerance=1.0, phrase_bias=5.0, max_tokens=40
    )
    whole = {phrase.ids for phrase in vocabulary}
    assert result.phrases
    assert all(phrase.ids in whole for phrase in result.phrases)


def test_every_token_that_unfold_keeps_is_within_the_tolerance(tiny, lease):
    lm = stir(tiny)
    result = generate(
        lm, PROMPT, lm.vocabulary([lease]), mode="unfold", tolerance=0.7, phrase_bias=5.0,
        max_tokens=50, ignore_eos=True,
    )  # fmt: skip
    ids = prompt_of(lm)
    for token in flat(result):
        share = torch.softmax(slow_reference.bare_logits(lm, ids), -1)
        assert float(share[token]) >= 0.3 * float(share.max()) - 1e-5
        ids.append(token)


@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whole_equals_stream_equals_batch(tiny, lease, mode, temperature):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([lease])
    options = {"mode": mode, "temperature": temperature, "phrase_bias": 2.0, "max_tokens": 40}
    whole = generate(lm, PROMPT, vocabulary, **options)
    streamed = stream(lm, PROMPT, vocabulary, **options)
    texts = [str(piece) for piece in streamed]
    assert whole.text == "".join(texts) == streamed.result.text
    together = batch(lm, ["The landlord", PROMPT, "rent on the"], vocabulary, **options)
    assert trace(together[1]) == trace(whole)


@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
@pytest.mark.parametrize("positions", ["unit", "token"])
def test_rows_of_a_batch_with_own_vocabularies_equal_each_alone(tiny, lease, mode, positions):
    lm = stir(tiny)
    every = list(lm.vocabulary([lease]))
    prompts = ["The tenant", "The landlord shall give the tenant notice", "rent", PROMPT, "a b"]
    vocabularies = [lm.vocabulary(every[i::5]) for i in range(4)] + [None]
    options = {"mode": mode, "phrase_bias": 3.0, "max_tokens": 33, "positions": positions}
    options["drafts"] = False  # by the number of sequences that share a pass
    together = batch(lm, prompts, vocabularies, **options)
    for prompt, vocabulary, row in zip(prompts, vocabularies, together, strict=True):
        alone = generate(lm, prompt, vocabulary, **options)
        assert trace(row) == trace(alone)
        assert row.finish_reason == alone.finish_reason
        assert row.stats.steps == alone.stats.steps
        own = set(vocabulary) if vocabulary is not None else set()
        for phrase in row.phrases:
            assert any(phrase.ids == mine.ids[: len(phrase)] for mine in own)


def test_positions_by_base_token_change_atomic_but_not_unfold(tiny, lease):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([lease])

    def run(mode, positions):
        return generate(
            lm, PROMPT, vocabulary, mode=mode, positions=positions, phrase_bias=3.0, max_tokens=60
        )

    assert trace(run("unfold", "unit")) == trace(run("unfold", "token"))
    assert trace(run("atomic", "unit")) != trace(run("atomic", "token"))


def test_the_papers_real_time_policy_ends_with_all_phrases(tiny, lease):
    lm = stir(tiny)
    every = list(lm.vocabulary([lease]))
    vocabulary = lm.vocabulary()
    sizes = []
    policy = RealTime(every, seed=1)

    def watched(live, produced):
        policy(live, produced)
        sizes.append((produced, len(live)))

    result = generate(lm, PROMPT, vocabulary, growth=watched, max_tokens=70, ignore_eos=True)
    for produced, size in sizes:
        assert size == round(min(0.70 + 0.05 * (produced // 10), 1.0) * len(every))
    assert len(vocabulary) == len(every)
    assert result.stats.encode_seconds > 0


@pytest.mark.default_model
@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.stress)])
@pytest.mark.parametrize("engine", ["torch", pytest.param("llamacpp", marks=needs_llamacpp)])
def test_verify_on_the_default_model_equals_plain_greedy_on_wikitext(default_lm, engine, count):
    lm = default_lm if engine == "torch" else univerb.load(engine=engine, threads=1)
    paragraphs = [
        line.strip()
        for line in (data_directory() / "wikitext103" / "wiki.test.tokens").open()
        if len(line) > 600 and not line.lstrip().startswith("=")
    ]
    steps = 0
    for text in paragraphs[: count * 4 : 4]:
        ids = lm.tokenizer.encode(text).ids
        vocabulary = lm.vocabulary([Document(text, "article")], max_phrases=300)
        options = {"max_tokens": 24, "ignore_eos": True}
        plain = generate(lm, ids[:32], **options)
        verified = generate(lm, ids[:32], vocabulary, mode="verify", **options)
        assert flat(verified) == flat(plain)
        steps += verified.stats.steps
    # Where rows are not equal nothing is drafted, and every pass writes a token.
    assert (steps < 23 * count) == (engine == "torch")
