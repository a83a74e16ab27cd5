"""Budgets, ends, statistics, explanations, threads, and every option with every vocabulary."""

import gc
import itertools
import re
import threading
import weakref

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, MptConfig, MptForCausalLM

from conftest import stir
from univerb.decoding.growth import ExpireIdle, RealTime
from univerb.decoding.loop import batch, decode_steps, generate, stream
from univerb.errors import ModelError, OptionError, PromptError, VocabularyError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase, Span
from univerb.vocabulary import DynamicVocabulary

PROMPT = "The tenant shall have"
MODES = ["atomic", "unfold", "verify"]


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.fixture
def lm(tiny):
    return stir(tiny)


@pytest.fixture
def vocabulary(lm, lease):
    return lm.vocabulary([lease])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [1, 2, 7, 40])
def test_the_budget_counts_base_tokens_and_is_never_exceeded(lm, vocabulary, mode, budget):
    result = generate(
        lm, PROMPT, vocabulary, mode=mode, max_tokens=budget, phrase_bias=4.0, ignore_eos=True
    )
    assert len(flat(result)) == result.stats.base_tokens == budget
    assert result.finish_reason == "length"


@pytest.mark.parametrize("mode", ["atomic", "unfold"])
def test_overshoot_lets_the_last_phrase_finish(lm, vocabulary, mode):
    lengths = set()
    for budget in range(20, 40):
        result = generate(
            lm, PROMPT, vocabulary, mode=mode, max_tokens=budget, overshoot="allow",
            tolerance=1.0, phrase_bias=6.0, ignore_eos=True,
        )  # fmt: skip
        assert budget <= result.stats.base_tokens < budget + 8
        lengths.add(result.stats.base_tokens - budget)
    assert max(lengths) > 0


def test_the_end_token_ends_the_text_and_does_not_show(lm, vocabulary):
    options = {"max_tokens": 30, "temperature": 1.0}
    first = flat(generate(lm, PROMPT, ignore_eos=True, **options))
    end = next(i for i in range(3, 30) if first[i] not in first[:i])
    lm.model.generation_config.eos_token_id = [first[end], 319]
    result = generate(lm, PROMPT, **options)
    assert (flat(result), result.finish_reason) == (first[:end], "eos")
    assert flat(generate(lm, PROMPT, ignore_eos=True, **options)) == first


def test_a_stop_string_ends_the_text(lm, vocabulary):
    whole = generate(lm, PROMPT, vocabulary, max_tokens=40, mode="atomic", phrase_bias=4.0)
    stop = whole.text[10:14]
    cut = generate(
        lm, PROMPT, vocabulary, max_tokens=40, mode="atomic", phrase_bias=4.0, stop=[stop]
    )
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert "".join(piece.text for piece in cut.pieces) == cut.text


def test_banned_texts_keep_phrases_out(lm, vocabulary):
    options = {"mode": "atomic", "phrase_bias": 4.0, "max_tokens": 40}
    used = generate(lm, PROMPT, vocabulary, **options).phrases
    assert used
    banned = used[0].text.strip()[:4]
    kept = generate(lm, PROMPT, vocabulary, ban=[banned], **options)
    assert not any(banned in phrase.text for phrase in kept.phrases)
    added = lm.vocabulary([Phrase(used[0].ids, used[0].text)])
    assert not generate(lm, PROMPT, added, ban=[banned], **options).phrases


def test_a_ban_also_holds_for_phrases_that_come_later(lm, vocabulary):
    every = list(vocabulary)
    growth = RealTime(every, start=0.1, share=0.2, every=1)
    result = generate(
        lm, PROMPT, lm.vocabulary(), mode="atomic", phrase_bias=4.0, ban=["the"], growth=growth
    )
    assert not any("the" in phrase.text for phrase in result.phrases)


def test_a_weight_makes_one_phrase_win(lm, vocabulary):
    heavy = Phrase(next(iter(vocabulary)).ids, next(iter(vocabulary)).text, weight=50.0)
    vocabulary.add([heavy])
    result = generate(lm, PROMPT, vocabulary, mode="atomic", max_tokens=24)
    assert result.phrases[0] == heavy


def test_statistics_add_up(lm, vocabulary):
    result = generate(lm, PROMPT, vocabulary, mode="unfold", tolerance=0.9, phrase_bias=5.0)
    stats = result.stats
    phrases = [piece for piece in result.pieces if piece.is_phrase]
    assert stats.units == len(result.pieces)
    assert stats.base_tokens == sum(len(piece.ids) for piece in result.pieces)
    assert stats.phrase_share == sum(len(p.ids) for p in phrases) / stats.base_tokens
    assert sum(stats.phrase_lengths.values()) == len(phrases)
    assert stats.rows >= stats.steps
    assert stats.prompt_tokens == len(lm.tokenizer.encode(PROMPT).ids)
    assert stats.phrases == len(vocabulary)
    assert min(stats.encode_seconds, stats.prefill_seconds, stats.decode_seconds) > 0


def test_a_plain_text_takes_one_pass_per_token_the_first_from_the_prefill(lm):
    stats = generate(lm, PROMPT, max_tokens=20, ignore_eos=True).stats
    assert (stats.steps, stats.rows, stats.tokens_per_step) == (19, 19, 1.0)


def test_log_probabilities_are_the_models_own(lm, vocabulary):
    result = generate(
        lm, PROMPT, vocabulary, mode="atomic", phrase_bias=0.0, max_tokens=20, overshoot="allow"
    )
    units = lm.tokenizer.encode(PROMPT).ids
    for piece in result.pieces:
        with torch.no_grad():
            logits = lm.forward(torch.tensor([units]), vocabulary)[0, -1]
        unit = vocabulary.id_of(piece.phrase) if piece.phrase else piece.ids[0]
        expected = torch.log_softmax(logits, -1)[unit]
        assert piece.logprob == pytest.approx(float(expected), abs=1e-3)
        units.append(unit)


def test_unfold_reports_the_lms_probability_of_the_tokens(lm, vocabulary):
    result = generate(lm, PROMPT, vocabulary, mode="unfold", tolerance=0.95, phrase_bias=5.0)
    ids = lm.tokenizer.encode(PROMPT).ids
    assert result.phrases
    for piece in result.pieces:
        total = 0.0
        for token in piece.ids:
            with torch.no_grad():
                logits = lm.model(torch.tensor([ids])).logits[0, -1]
            total += float(torch.log_softmax(logits, -1)[token])
            ids.append(token)
        assert piece.logprob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_explanations_show_the_best_candidates_with_the_chosen_one(lm, vocabulary, mode):
    result = generate(lm, PROMPT, vocabulary, mode=mode, explain=True, max_tokens=20)
    explained = [piece for piece in result.pieces if piece.candidates]
    assert explained
    for piece in explained:
        shares = [candidate.probability for candidate in piece.candidates]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1.0001
        if mode == "atomic":
            assert piece.candidates[0].text == lm.tokenizer.decode(piece.ids)
    assert not any(p.candidates for p in generate(lm, PROMPT, vocabulary, mode=mode).pieces)


def test_idle_phrases_expire_while_the_text_is_written(lm, vocabulary):
    size = len(vocabulary)
    generate(lm, PROMPT, vocabulary, mode="atomic", phrase_bias=4.0, growth=ExpireIdle(5))
    assert 0 < len(vocabulary) < size
    assert vocabulary.size == size


def test_a_vocabulary_may_change_between_any_two_steps(lm, vocabulary):
    live = lm.vocabulary()
    decoder = decode_steps(lm, [PROMPT], live, mode="atomic", phrase_bias=90.0, max_tokens=100)
    pieces = []
    for number, released in enumerate(decoder.steps()):
        pieces += [piece for _, piece in released]
        # The prefill is step 0 and gives no piece; every later one gives exactly one.
        if number == 5:
            live.add(list(vocabulary))
        if number == 12:
            live.remove(range(lm.static_size, lm.static_size + live.size))
    kinds = [piece.is_phrase for piece in pieces]
    assert kinds[:20] == [False] * 5 + [True] * 7 + [False] * 8


def test_steps_can_be_driven_by_hand(lm, vocabulary):
    decoder = decode_steps(lm, [PROMPT, "rent"], vocabulary, max_tokens=12)
    texts = ["", ""]
    for released in decoder.steps():
        for index, piece in released:
            texts[index] += piece.text
    assert texts == [g.text for g in batch(lm, [PROMPT, "rent"], vocabulary, max_tokens=12)]


def test_an_abandoned_stream_leaves_autograd_as_it_was(lm):
    pieces = stream(lm, PROMPT, max_tokens=20)
    next(pieces)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_threads_with_their_own_vocabularies_do_not_disturb_each_other(lm, vocabulary):
    every = list(vocabulary)
    own = [lm.vocabulary(every[i::4]) for i in range(4)]
    options = {"mode": "atomic", "phrase_bias": 3.0, "max_tokens": 40, "temperature": 0.7}
    expected = [flat(generate(lm, PROMPT, v, seed=i, **options)) for i, v in enumerate(own)]
    results: dict[int, list[int]] = {}

    def run(index):
        fresh = lm.vocabulary(every[index::4])
        results[index] = flat(generate(lm, PROMPT, fresh, seed=index, **options))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(4)] == expected


def test_threads_may_share_a_vocabulary_that_grows(lm, vocabulary):
    shared = lm.vocabulary()
    every = list(vocabulary)
    failures: list[BaseException] = []

    def run(index):
        try:
            growth = RealTime(every[index::3], every=2)
            generate(lm, PROMPT, shared, growth=growth, mode="atomic", phrase_bias=3.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    view = lm.tensors(shared)
    assert torch.allclose(view.outputs, lm.tensors(lm.vocabulary(list(shared))).outputs, atol=1e-5)


SAMPLING = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2, "phrase_bias": 5.0},
    {"temperature": 1.2, "top_p": 0.8, "top_k": 50, "repetition_penalty": 1.1, "seed": 9},
    {"phrase_bias": 5.0},
    {"overshoot": "allow", "phrase_bias": 5.0},
    {"positions": "token", "phrase_bias": 5.0},
    {"stop": ["the"], "explain": True},
    {"ban": ["tenant"]},
]


def many(lm, count):
    pairs = itertools.product(range(1, lm.static_size), repeat=2)
    return [Phrase(ids, "x") for ids in itertools.islice(pairs, count)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1, 4096, "changing"])
def test_every_option_runs_with_every_vocabulary(lm, mode, size):
    vocabulary, growth = lm.vocabulary(many(lm, 8 if size == "changing" else size)), None
    for options in SAMPLING:
        if size == "changing":
            vocabulary = lm.vocabulary(many(lm, 8))

            def growth(live, produced):
                live.add(many(lm, 3 * produced))
                live.remove(range(lm.static_size, lm.static_size + produced))

        result = generate(
            lm, PROMPT, vocabulary, mode=mode, max_tokens=12, growth=growth, **options
        )
        assert result.stats.base_tokens <= 12 or options.get("overshoot") == "allow"


def test_a_repetition_penalty_counts_a_phrases_base_tokens(lm, vocabulary):
    plain = generate(lm, PROMPT, vocabulary, mode="atomic", phrase_bias=5.0, max_tokens=60)
    damped = generate(
        lm, PROMPT, vocabulary, mode="atomic", phrase_bias=5.0, max_tokens=60,
        repetition_penalty=5.0,
    )  # fmt: skip
    assert len(set(damped.phrases)) / len(damped.phrases) >= len(set(plain.phrases)) / len(
        plain.phrases
    )
    assert len(set(flat(damped))) > len(set(flat(plain)))


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(lm, prompt):
    with pytest.raises(PromptError, match="empty"):
        generate(lm, prompt)


def test_foreign_token_ids_are_refused(lm):
    with pytest.raises(PromptError, match="0 to 319"):
        generate(lm, [5, 320])


def test_a_prompt_longer_than_the_context_is_refused_or_cut_from_the_left(lm):
    long = [5, 9] * 300
    with pytest.raises(PromptError, match="truncate='left'"):
        generate(lm, long)
    cut = generate(lm, long, truncate="left", max_tokens=1)
    assert cut.stats.prompt_tokens == 511
    assert flat(cut) == flat(generate(lm, long[-511:], max_tokens=1))


@pytest.mark.parametrize("mode", MODES)
def test_a_full_context_ends_the_text(lm, vocabulary, mode):
    result = generate(
        lm, [5, 9] * 250, vocabulary, mode=mode, max_tokens=100, phrase_bias=3.0, ignore_eos=True
    )
    assert result.finish_reason == "length"
    assert result.stats.base_tokens >= 12
    if mode != "atomic":
        assert result.stats.base_tokens <= 13, "positions 500 to 511, and one that is not read"


def test_a_batch_needs_as_many_vocabularies_as_prompts(lm, vocabulary):
    with pytest.raises(OptionError, match="2 prompts but 1"):
        batch(lm, ["a", "b"], [vocabulary])
    with pytest.raises(PromptError, match="list"):
        batch(lm, "a")
    assert batch(lm, []) == []


def test_a_vocabulary_for_another_model_is_refused(lm):
    other = DynamicVocabulary(50, [Phrase((1, 2), "x")])
    with pytest.raises(VocabularyError, match="lm.vocabulary"):
        generate(lm, PROMPT, other)


def test_a_result_prints_as_its_text_and_turns_into_json(lm, vocabulary):
    import json

    result = generate(lm, PROMPT, vocabulary, mode="atomic", phrase_bias=4.0, explain=True)
    shown = json.loads(json.dumps(result.to_dict()))
    assert str(result) == result.text == shown["text"]
    assert shown["schema_version"] == 1
    assert [piece["text"] for piece in shown["pieces"]] == [p.text for p in result.pieces]


@pytest.mark.parametrize("mode", MODES)
def test_a_long_phrase_never_exceeds_budget_or_context(lm, mode):
    long = Phrase(tuple(5 + n % 300 for n in range(150)), "x" * 150, weight=200.0)
    vocabulary = lm.vocabulary([long])
    options = {"mode": mode, "tolerance": None if mode != "unfold" else 1.0, "ignore_eos": True}
    assert generate(lm, PROMPT, vocabulary, max_tokens=100, **options).stats.base_tokens == 100
    full = generate(lm, [5, 9] * 200, vocabulary, max_tokens=300, overshoot="allow", **options)
    assert full.finish_reason == "length"


def test_positions_by_base_token_end_with_the_context(lm, vocabulary):
    result = generate(
        lm, [5, 9] * 240, vocabulary, mode="atomic", positions="token", phrase_bias=50.0,
        max_tokens=400, ignore_eos=True,
    )  # fmt: skip
    assert result.finish_reason == "length"
    assert 32 <= result.stats.base_tokens <= 33


def test_a_growth_policy_serves_every_sequence_of_a_batch(lm, vocabulary):
    every = list(vocabulary)
    own = [lm.vocabulary(), lm.vocabulary()]
    batch(lm, [PROMPT, "rent"], own, growth=RealTime(every), max_tokens=80, ignore_eos=True)
    assert [len(v) for v in own] == [len(every)] * 2


@pytest.mark.parametrize("mode", MODES)
def test_no_phrase_is_written_over_an_end_token(lm, mode):
    plain = flat(generate(lm, PROMPT, max_tokens=40, temperature=1.0, ignore_eos=True))
    end = next(i for i in range(5, 40) if plain[i] not in plain[:i])
    over = Phrase(tuple(plain[end - 2 : end + 3]), "x", weight=300.0)
    lm.model.generation_config.eos_token_id = plain[end]
    options = {"max_tokens": 40, "temperature": 1.0, "mode": mode}
    result = generate(lm, PROMPT, lm.vocabulary([over]), **options)
    assert (flat(result), result.finish_reason) == (plain[:end], "eos")


def test_in_unfold_the_filters_act_on_tokens_only(lm, vocabulary):
    for seed in range(20):
        result = generate(
            lm, PROMPT, vocabulary, mode="unfold", tolerance=0.99, phrase_bias=0.0, seed=seed,
            temperature=1.0, top_k=2, max_tokens=12, ignore_eos=True,
        )  # fmt: skip
        ids = lm.tokenizer.encode(PROMPT).ids
        for piece in result.pieces:
            if not piece.is_phrase:
                with torch.no_grad():
                    best = lm.model(torch.tensor([ids])).logits[0, -1].topk(2).indices
                assert piece.ids[0] in best
            ids += piece.ids


def make_mistral():
    config = MistralConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return MistralForCausalLM(config)


def make_mpt():
    config = MptConfig(
        vocab_size=320, d_model=32, n_heads=4, n_layers=2, max_seq_len=256, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return MptForCausalLM(config)


@pytest.mark.parametrize("make", [make_mistral, make_mpt])
def test_a_backbone_that_counts_slots_gets_its_prompts_one_by_one(make, hf_tokenizer, lease):
    torch.manual_seed(0)
    lm = stir(DynamicLM.wrap(make().eval(), hf_tokenizer))
    vocabulary = lm.vocabulary([lease])
    prompts = [PROMPT, "rent", "The landlord shall give"]
    options = {"mode": "unfold", "tolerance": 0.9, "phrase_bias": 5.0, "max_tokens": 30}
    together = batch(lm, prompts, vocabulary, **options)
    assert [g.text for g in together] == [
        generate(lm, prompt, vocabulary, **options).text for prompt in prompts
    ]
    with pytest.raises(ModelError, match="counts the slots"):
        decode_steps(lm, prompts, vocabulary)


@pytest.mark.parametrize("prompt", [None, 5, ["a", "b"], [1.5], "\ud800"])
def test_what_is_no_prompt_is_refused(lm, prompt):
    with pytest.raises(PromptError):
        generate(lm, prompt)


def test_what_is_no_vocabulary_is_refused(lm):
    with pytest.raises(VocabularyError, match="lm.vocabulary"):
        generate(lm, PROMPT, ["quiet enjoyment"])


def test_a_phrase_that_is_cut_is_named_up_to_its_last_whole_word_or_number(lm):
    """What is written may stop anywhere; what is called a phrase, and cited, may not."""
    rent = "rent of 1,500 dollars is due June 23, 4789 in Orléans"
    ids = tuple(lm.tokenizer.encode_inside(rent).ids)
    spans = (Span("lease", 0, len(rent)),)
    vocabulary = lm.vocabulary([Phrase(ids, lm.tokenizer.decode(ids), spans)])
    options = {"mode": "unfold", "tolerance": 1.0, "phrase_bias": 500.0, "no_repeat_ngram_size": 3}
    named = set()
    for at in range(3, len(ids)):
        # The prompt has three tokens of the phrase in a row: it is cut before the last.
        prompt = [*ids[at - 2 : at + 1], lm.tokenizer.encode(".").ids[0]]
        text = generate(lm, prompt, vocabulary, max_tokens=80, ignore_eos=True, **options)
        first, following = text.pieces[:2]
        assert [token for piece in text.pieces for token in piece.ids][:at] == list(ids[:at])
        if first.is_phrase:
            end = first.sources[0].end
            assert rent[:end] == first.text.strip()
            for seam in (f"{first.text}|{following.text}", f"{rent[:end]}|{rent[end:]}"):
                assert not re.search(r"\s\||\w\|\w|\d[.,]?\|[.,]?\d", seam)
            named.add(first.text.strip())
    assert {"rent of", "rent of 1,500", "rent of 1,500 dollars"} <= named


def test_a_stream_that_is_dropped_frees_its_cache_at_once(tiny):
    pieces = stream(tiny, "the tenant", max_tokens=8, ignore_eos=True)
    next(pieces)
    decoder = weakref.ref(pieces._decoder)
    gc.disable()
    try:
        del pieces
        assert decoder() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
@pytest.mark.parametrize("after", [0, 1, 2, 7, 15])
def test_a_stream_can_be_ended_where_it_is(circling, lease, mode, after):
    given = {"mode": mode, "max_tokens": 200, "phrase_bias": 6.0, "ignore_eos": True}
    whole = generate(circling, "the tenant", circling.vocabulary([lease]), **given)
    pieces = stream(circling, "the tenant", circling.vocabulary([lease]), **given)
    taken = [next(pieces) for _ in range(after)]
    passes = pieces._decoder.sequences[0].stats.steps
    ended = pieces.end()
    assert ended.stats.steps == passes, "something was computed for a text that had ended"
    assert ended == pieces.result == pieces.end() and list(pieces) == []
    assert ended.finish_reason == "stop"
    # What a pass has written already stays; the order of the text is kept.
    assert ended.text == "".join(piece.text for piece in ended.pieces)
    assert whole.text.startswith(ended.text.rstrip("\ufffd"))
    assert ended.pieces[:after] == tuple(taken)
    assert ended.stats.steps <= whole.stats.steps
    assert not after or ended.stats.base_tokens < whole.stats.base_tokens


def test_a_stream_that_has_ended_stays_as_it_is(circling):
    pieces = stream(circling, "the tenant", max_tokens=5, ignore_eos=True)
    whole = pieces.result
    assert pieces.end() == whole and whole.finish_reason == "length"
