"""The conditional form: phrases have a share of their first token, whatever the engine."""

import math
import time

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_conditional
from univerb.config import GenerationConfig
from univerb.decoding.choice import choose
from univerb.decoding.chooser import Chooser, State
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.loop import batch, generate
from univerb.decoding.phrase_head import Place
from univerb.engines.llamacpp.phrase_weights import NumpyPhraseWeights
from univerb.engines.torch.phrase_weights import TorchPhraseWeights
from univerb.engines.torch.sampling import make_sampler
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.evidence import Evidence
from univerb.phrase import Document, Phrase
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import ngrams

PROMPT = "The tenant shall pay the landlord"
CIRCLE = "the tenant shall pay the landlord on the day the tenant shall pay the landlord"
ANY_WORDS = ngrams((2, 5), Guards(content=None))


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return make_conditional()


def head(lm, vocabulary, weights=None, **options) -> ConditionalPhraseHead:
    made = ConditionalPhraseHead(
        lm,
        weights or TorchPhraseWeights(torch.device("cpu")),
        vocabulary,
        GenerationConfig(**{"phrase_bias": 0.0} | options),
        frozenset(),
    )
    made.update()
    return made


def place(lm, text=PROMPT, longest=99) -> Place:
    ids = lm.tokenizer.encode_prompt(text)
    with torch.inference_mode():
        hidden = lm.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        logits = lm.embeddings.output(hidden)
    return Place(hidden.numpy(), logits.numpy(), ids, longest)


def slow(lm, counts, at, bias=0.0, eagerness=0.0):
    """The probability of each phrase given its first token, node by node."""
    keys = list(counts)
    part = {n: t.detach().numpy() for n, t in lm.encoder.conditional.state_dict().items()}
    phrases = [Phrase(key, "") for key in keys]
    with torch.no_grad():
        outputs = lm.encoder.encode(phrases, lm.embeddings).outputs.numpy()
    state = at.hidden @ part["whiten"]
    scores, products = {}, {}
    for key, vector in zip(keys, outputs, strict=True):
        products[key] = vector @ state / math.sqrt(len(state)) + bias
        sizes = [n for n in range(1, 5) if (*at.ids[-n:], *key) in keys and n <= len(at.ids)]
        bonus = part["counts"][0] * math.log(counts[key])
        if sizes:
            longer = (*at.ids[-max(sizes) :], *key)
            bonus += part["overlap"][max(sizes) - 1] + part["counts"][1] * math.log(counts[longer])
        scores[key] = products[key] + bonus

    def parent(key):
        shorter = [other for other in keys if other == key[: len(other)] and other != key]
        return max(shorter, key=len, default=key[:1])

    def softmax(node):
        children = [key for key in keys if parent(key) == node]
        kind = int(len(node) > 1)
        stop = part["stop_bias"][kind] + part["stop_gate"][kind] @ state + products.get(node, 0.0)
        stop += part["stop_count"][kind] * math.log(max(sum(counts[key] for key in children), 1))
        total = sum(math.exp(scores[key]) for key in children) + math.exp(stop)
        shares = {key: math.exp(scores[key]) / total for key in children}
        return (shares, math.exp(stop) / total) if children else ({}, 1.0)

    def reach(key):
        return 1.0 if len(key) == 1 else reach(parent(key)) * softmax(parent(key))[0][key]

    def greedy(node):
        shares, stop = softmax(node)
        best = max(shares, key=lambda key: shares[key], default=None)
        stop *= math.exp(-eagerness)
        return node if best is None or shares[best] <= stop else greedy(best)

    probabilities = {key: reach(key) * softmax(key)[1] for key in keys}
    roots = {key[:1] for key in keys}
    return probabilities, {r: softmax(r)[1] for r in roots}, {r: greedy(r) for r in roots}


def keys_of(vocabulary):
    return [phrase.ids for phrase in vocabulary.snapshot().phrases]


def counts_of(vocabulary):
    return {phrase.ids: max(len(phrase.sources), 1) for phrase in vocabulary.snapshot().phrases}


@pytest.mark.parametrize(
    "weights", [lambda: TorchPhraseWeights(torch.device("cpu")), NumpyPhraseWeights]
)
@pytest.mark.parametrize(("bias", "eagerness"), [(0.0, 0.0), (1.5, 0.0), (-1.0, 2.5)])
def test_probabilities_are_those_of_the_tree_node_by_node(lm, weights, bias, eagerness):
    vocabulary = lm.vocabulary([Document(TEXT[:120], "d")], source=ANY_WORDS)
    at, keys = place(lm), keys_of(vocabulary)
    options = {"exact": True, "phrase_bias": bias, "eagerness": eagerness}
    scored = head(lm, vocabulary, weights(), **options).logits(at)
    probabilities, stops, greedy = slow(lm, counts_of(vocabulary), at, bias, eagerness)
    given_first = numpy.exp(scored.logits - at.logits[scored.first_tokens])
    for index, value in zip(scored.indices.tolist(), given_first.tolist(), strict=True):
        assert value == pytest.approx(probabilities[keys[index]], rel=1e-3, abs=1e-6)
    for token, share in scored.shares.items():
        assert math.exp(share.stop) == pytest.approx(stops[token,], rel=1e-3)
        chosen = (token,) if share.greedy is None else keys[share.greedy]
        assert chosen == greedy[token,]
    assert any(share.greedy is not None for share in scored.shares.values())


def test_no_probability_is_lost(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS)
    at = place(lm)
    scored = head(lm, vocabulary, exact=True).logits(at)
    left = scored.left_to_tokens(at.logits)
    whole = numpy.logaddexp.reduce(numpy.concatenate([left, scored.logits]).astype("f8"))
    assert whole == pytest.approx(numpy.logaddexp.reduce(at.logits.astype("f8")), abs=1e-4)


def test_documents_vote_as_the_trained_head_says(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS)
    at, keys = place(lm, "It is agreed that the tenant"), keys_of(vocabulary)
    tokens, counts = sorted({key[0] for key in keys}), counts_of(vocabulary)
    overlap = [
        max(n for n in range(5) if not n or any(k[: n + 1] == (*at.ids[-n:], t) for k in keys))
        for t in tokens
    ]

    def occurrences(begin):
        return sum(count for key, count in counts.items() if key[: len(begin)] == begin)

    longer = [
        occurrences((*at.ids[-n:], t)) if n else 1 for n, t in zip(overlap, tokens, strict=True)
    ]
    columns = [occurrences((t,)) for t in tokens], overlap, longer
    evidence = Evidence(*(numpy.array([column]) for column in columns))
    assert max(overlap) >= 2 and max(longer) > 1
    hidden, logits = torch.from_numpy(at.hidden)[None], torch.from_numpy(at.logits)
    conditional_head = lm.encoder.conditional
    with torch.no_grad():
        alone = lm.encoder.encode([Phrase((t,), "") for t in tokens], lm.embeddings).outputs
        own = logits.log_softmax(-1)[tokens][None]
        state = conditional_head.state(hidden)
        scores = conditional_head.scaled(state) @ alone.T
        longest = torch.tensor([max(overlap)])
        part, chosen = conditional_head.voted(state, scores, own, evidence, longest)
        expected = logits.softmax(-1) * torch.sigmoid(-part)
        expected[tokens] += torch.sigmoid(part) * chosen[0].exp()
    voted = head(lm, vocabulary).voted(at)
    numpy.testing.assert_allclose(
        torch.from_numpy(voted).softmax(-1), expected, rtol=1e-3, atol=1e-7
    )
    assert numpy.logaddexp.reduce(voted.astype("f8")) == pytest.approx(
        numpy.logaddexp.reduce(at.logits.astype("f8")), abs=1e-4
    )


@given(extra=st.sets(st.integers(0, 60), max_size=12), gone=st.sets(st.integers(0, 40)))
@settings(max_examples=15, deadline=None)
def test_phrases_of_other_tokens_change_nothing(extra, gone):
    lm = make_conditional()
    vocabulary = lm.vocabulary([Document(TEXT[:200], "d")], source=ANY_WORDS)
    own, at = head(lm, vocabulary), place(lm)
    token = vocabulary.snapshot().phrases[0].ids[0]
    before = own.logits_by_first_token(numpy.array([token]), at)
    others = [Phrase((token + 1 + n % 5, 5 + n), f" x{n}") for n in extra]
    vocabulary.add([phrase for phrase in others if phrase.ids[0] not in at.ids[-4:]])
    kept = [
        number
        for number in gone
        if number < vocabulary.size
        and vocabulary.phrase(lm.static_size + number).ids[0] not in (token, *at.ids[-4:])
    ]
    vocabulary.remove(lm.static_size + number for number in kept)
    own.update()
    after = own.logits_by_first_token(numpy.array([token]), at)
    numpy.testing.assert_allclose(after.logits, before.logits, atol=1e-5)
    assert after.shares[token].greedy == before.shares[token].greedy


def test_what_cannot_be_chosen_is_left_to_its_token(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS)
    at = place(lm)
    whole = head(lm, vocabulary, exact=True).logits(at)
    short = head(lm, vocabulary, exact=True).logits(at._replace(max_length=2))
    lengths = [len(vocabulary.phrase(lm.static_size + i)) for i in short.indices.tolist()]
    assert set(lengths) == {2}
    for token, share in short.shares.items():
        assert share.stop >= whole.shares[token].stop - 1e-6
    assert head(lm, vocabulary, exact=True).logits(at._replace(max_length=1)) is None


def test_a_phrase_whose_beginning_was_removed_can_still_be_chosen(lm):
    vocabulary = lm.vocabulary([" the tenant", " the tenant shall"])
    own, at = head(lm, vocabulary, exact=True), place(lm)
    vocabulary.remove([lm.static_size])
    own.update()
    assert own.logits(at).indices.tolist() == [1]
    probabilities, *_ = slow(lm, {keys_of(vocabulary)[1]: 1}, at)
    value = float(own.logits(at).logits[0] - at.logits[keys_of(vocabulary)[1][0]])
    assert math.exp(value) == pytest.approx(next(iter(probabilities.values())), rel=1e-3)


def test_greedy_takes_the_lms_token_and_then_goes_on(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS)
    at = place(lm)
    scored = head(lm, vocabulary, exact=True).logits(at)
    chosen = choose(at.logits, at.logits, scored, make_sampler(GenerationConfig()), at.ids)
    token = int(at.logits.argmax())
    share = scored.shares.get(token)
    greedy = None if share is None else share.greedy
    assert chosen.unit == (token if greedy is None else lm.static_size + greedy)


def test_draws_follow_the_distribution():
    lm = make_conditional(bias=1.0)
    vocabulary = lm.vocabulary([Document(TEXT[:150], "d")], source=ANY_WORDS)
    at, size = place(lm), lm.static_size
    scored = head(lm, vocabulary, exact=True).logits(at)
    sampler = make_sampler(GenerationConfig(temperature=1.0, seed=3))
    count = 4000
    drawn = [choose(at.logits, at.logits, scored, sampler, at.ids).unit for _ in range(count)]
    units = numpy.concatenate([scored.left_to_tokens(at.logits), scored.logits]).astype("f8")
    expected = numpy.exp(units - numpy.logaddexp.reduce(units))
    columns = {size + i: size + at_ for at_, i in enumerate(scored.indices.tolist())}
    seen = numpy.bincount([columns.get(u, u) for u in drawn], minlength=len(units)) / count
    assert numpy.abs(seen - expected).max() < 0.03
    assert sum(unit >= size for unit in drawn) / count == pytest.approx(
        expected[size:].sum(), abs=0.04
    )


@pytest.mark.parametrize("mode", ["atomic", "unfold"])
@pytest.mark.parametrize("filters", [{"temperature": 0.5}, {"temperature": 1.5, "top_k": 40}])
def test_filters_act_once_on_tokens_and_phrases(mode, filters):
    """Whatever the mode, a unit is drawn from one filtered distribution over V + P."""
    lm = make_conditional(bias=1.0)
    vocabulary = lm.vocabulary([Document(TEXT[:150], "d")], source=ANY_WORDS)
    at, size = place(lm), lm.static_size
    config = GenerationConfig(
        mode=mode, tolerance=1.0, exact=True, seed=5, phrase_bias=0, **filters
    )
    sampler, scorer = make_sampler(config), head(lm, vocabulary, exact=True, phrase_bias=4)
    chooser = Chooser(config, sampler, scorer)
    # Tokens that phrases begin with are about as likely as the rest.
    first = sorted({key[0] for key in keys_of(vocabulary)})
    at.logits[first] += 3.0
    voted = at._replace(logits=scorer.voted(at))
    scored = scorer.logits(voted)
    units = numpy.concatenate([scored.left_to_tokens(voted.logits), scored.logits])
    expected = numpy.exp(sampler.filtered(units, []).astype("f8"))
    expected /= expected.sum()
    count, state = 3000, State(at.hidden, at.logits)
    drawn = [chooser.choose(state, at.ids, (), 99).unit for _ in range(count)]
    assert sum(unit >= size for unit in drawn) / count == pytest.approx(
        expected[size:].sum(), abs=0.04
    )
    assert 0.02 < expected[size:].sum() < 0.98


def test_eagerness_is_for_greedy_choices_alone(circling):
    lm = make_conditional(circling.model, scale=0.02)
    vocabulary = lm.vocabulary([Document(CIRCLE, "d")], source=ANY_WORDS)
    options = {"max_tokens": 24, "tolerance": 1.0, "mode": "unfold", "drafts": False}
    shy, eager = (
        generate(lm, "of the", vocabulary, eagerness=value, **options) for value in (-9.0, 9.0)
    )
    assert shy.stats.phrase_tokens == 0 < eager.stats.phrase_tokens
    for sampled in ({"mode": "unfold"}, {"mode": "atomic"}, {"mode": "verify"}):
        sampling = {"max_tokens": 24, "temperature": 0.8, "seed": 4} | sampled
        first, second = (
            generate(lm, "of the", vocabulary, eagerness=value, drafts=False, **sampling)
            for value in (-9.0, 9.0)
        )
        assert [piece.ids for piece in first.pieces] == [piece.ids for piece in second.pieces]


def test_what_is_found_in_another_document_counts_at_once():
    lm = make_conditional()
    vocabulary = lm.vocabulary([Document(TEXT[:150], "a")], source=ANY_WORDS)
    scorer, at = head(lm, vocabulary, exact=True), place(lm)
    before = scorer.logits(at).logits
    vocabulary.add(lm.vocabulary([Document(TEXT[:150], "b")], source=ANY_WORDS).snapshot().phrases)
    scorer.update()
    after = scorer.logits(at).logits
    assert (before != after).any()
    numpy.testing.assert_array_equal(after, head(lm, vocabulary, exact=True).logits(at).logits)


@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
def test_texts_alone_and_in_a_batch_and_without_phrases(mode, circling):
    lm = make_conditional(circling.model, scale=0.02, bias=3.0)
    vocabulary = lm.vocabulary([Document(CIRCLE, "d")], source=ANY_WORDS)
    prompts = ["of the tenant", "the landlord on"]
    options = {"mode": mode, "max_tokens": 24, "positions": "token"}
    alone = [generate(lm, prompt, vocabulary, **options) for prompt in prompts]
    together = batch(lm, prompts, vocabulary, **options)
    assert [text.text for text in together] == [text.text for text in alone]
    bare = [generate(lm, prompt, max_tokens=24).text for prompt in prompts]
    empty = [generate(lm, prompt, lm.vocabulary([]), **options).text for prompt in prompts]
    assert empty == bare
    if mode == "verify":
        assert [text.text for text in alone] == bare
    else:
        assert sum(text.stats.phrase_tokens for text in alone) > 0


def test_the_head_sees_growth_and_repetition(circling):
    lm = make_conditional(circling.model, bias=3.0)
    vocabulary = lm.vocabulary([])
    phrases = lm.vocabulary([Document(CIRCLE, "d")], source=ANY_WORDS).snapshot().phrases

    def grow(current, produced):
        if produced == 4:
            current.add(phrases)

    options = {"mode": "atomic", "max_tokens": 12, "growth": grow, "no_repeat_ngram_size": 3}
    made = generate(lm, "of the", vocabulary, **options)
    assert made.stats.phrase_tokens > 0
    assert all(piece.phrase is None for piece in made.pieces[:4])
    ids = [token for piece in made.pieces for token in piece.ids]
    grams = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    assert len(grams) == len(set(grams))


class TestVectorsOnDemand:
    """`unfold` encodes the phrases of a first token when a choice first looks at them."""

    @pytest.fixture
    def lm(self, circling) -> DynamicLM:
        return make_conditional(circling.model, scale=0.02, bias=3.0)

    @pytest.fixture
    def encoded(self, lm, monkeypatch) -> list[tuple[int, ...]]:
        keys, encode = [], lm.run_encoder

        def watched(phrases):
            keys.extend(phrase.ids for phrase in phrases)
            time.sleep(0.01)
            return encode(phrases)

        monkeypatch.setattr(lm, "run_encoder", watched)
        return keys

    def test_scores_are_those_of_a_table(self, lm):
        vocabulary, at = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS), place(lm)
        options = {"exact": True, "phrase_bias": 1.5, "eagerness": 1.0}
        table, lazy = (head(lm, vocabulary, mode=mode, **options) for mode in ("atomic", "unfold"))
        numpy.testing.assert_allclose(lazy.voted(at), table.voted(at), atol=1e-4)
        expected, scored = table.logits(at), lazy.logits(at)
        assert scored.indices.tolist() == expected.indices.tolist()
        numpy.testing.assert_allclose(scored.logits, expected.logits, atol=1e-4)
        for token, share in expected.shares.items():
            assert scored.shares[token].greedy == share.greedy == lazy.greedy(token, at)

    def test_only_what_is_looked_at_is_encoded_and_once(self, lm, encoded):
        vocabulary, at = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS), place(lm)
        keys = keys_of(vocabulary)
        lazy = head(lm, vocabulary, mode="unfold")
        assert not encoded
        for _ in range(2):
            lazy.greedy(keys[0][0], at)
            assert sorted(encoded) == sorted(key for key in keys if key[0] == keys[0][0])
        lazy.voted(at)
        lazy.voted(at)
        assert len(encoded) == len(set(encoded)) < len(keys)
        assert {key for key in encoded if len(key) == 1} == {key[:1] for key in keys}

    def test_what_is_looked_at_later_can_be_chosen_and_named_now(self, lm):
        vocabulary = lm.vocabulary([Document(TEXT, "d")], source=ANY_WORDS)
        removed, banned = 3, 5
        text = vocabulary.phrase(lm.static_size + banned).text
        lazy = head(lm, vocabulary, mode="unfold", ban=(text,))
        vocabulary.remove([lm.static_size + removed])
        size = vocabulary.size
        vocabulary.add([Phrase((9, 8, 7, 6), "new")])
        assert lazy.is_masked(size) and not lazy.is_masked(removed)
        lazy.update()
        masked = {index for index in range(vocabulary.size) if lazy.is_masked(index)}
        has_text = {i for i, p in enumerate(vocabulary.snapshot().phrases) if text in p.text}
        assert masked == has_text | {removed}

    @pytest.mark.parametrize("options", [{}, {"tolerance": 1.0}, {"repetition_penalty": 1.3}])
    def test_texts_are_those_of_an_encoded_vocabulary(self, lm, encoded, options):
        options |= {"mode": "unfold", "max_tokens": 32, "ignore_eos": True}
        vocabulary = lm.vocabulary([Document(CIRCLE, "d")], source=ANY_WORDS)
        lazy = generate(lm, "of the", vocabulary, **options)
        assert lazy.stats.encode_seconds >= 0.01 and encoded
        assert lazy.stats.growth_seconds == 0.0
        assert lazy.stats.phrase_tokens > 0
        lm.forget()
        lm.encode(vocabulary)
        lm._cache.clear()  # other requests may have filled it meanwhile
        count = len(encoded)
        eager = generate(lm, "of the", vocabulary, **options)
        assert all(len(key) == 1 for key in encoded[count:])
        explained = generate(lm, "of the", vocabulary, explain=True, **options)
        pieces = [[(p.ids, p.phrase) for p in made.pieces] for made in (lazy, eager, explained)]
        assert pieces[0] == pieces[1] == pieces[2]

    def test_phrases_that_come_later_are_encoded_when_they_are_needed(self, lm, encoded):
        phrases = lm.vocabulary([Document(CIRCLE, "d")], source=ANY_WORDS).snapshot().phrases

        def grow(current, produced):
            if produced >= 4:
                current.add(phrases)

        options = {"mode": "unfold", "max_tokens": 24, "growth": grow, "ignore_eos": True}
        made = generate(lm, "of the", lm.vocabulary([]), **options)
        assert made.stats.phrase_tokens > 0 and len(encoded) == len(set(encoded))
        assert 0.0 < made.stats.growth_seconds <= made.stats.encode_seconds
