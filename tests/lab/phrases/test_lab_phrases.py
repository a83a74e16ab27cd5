"""`univerb lab phrases`: each measure against a slow direct one, and the command itself."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import (
    TEXT,
    make_circling,
    make_conditional,
    make_gpt2,
    make_llama,
    make_tokenizer,
    saved_encoder,
    stir,
)
from univerb.config import GenerationConfig, Profile
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.choice import accepts
from univerb.decoding.chooser import Chooser, State
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.loop import decode_steps, generate
from univerb.decoding.phrase_head import PhraseHead
from univerb.decoding.text_scores import FlatTextScores, PhraseScorer, ReadText, TextScores
from univerb.engines.factory import engine_of
from univerb.errors import DocumentError
from univerb.lab.phrases import run as protocol
from univerb.lab.phrases.candidates import candidate_phrases
from univerb.lab.phrases.firing import accepted_sizes, firing, pool_firing
from univerb.lab.phrases.halves import Halves, cut
from univerb.lab.phrases.input_side import input_side, mean_and_p95, pool_input_side
from univerb.lab.phrases.reading import Branch, Reading
from univerb.lab.phrases.run import PhrasesProtocol, evaluate_phrases
from univerb.lab.phrases.true_text import pool_true_text, true_text
from univerb.lab.phrases.writing import (
    RANDOM_DOCUMENTS,
    UNTRAINED,
    WritingPrompt,
    WritingRow,
    new_tokens,
    pool_writing,
    standard_variants,
    write,
)
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import PhraseEncoder
from univerb.phrase import Document, Phrase
from univerb.phrases.content import content_words
from univerb.phrases.guards import Guards
from univerb.vocabulary import DynamicVocabulary

LEASES = [Document(f"Lease {n}. {TEXT} Clause {n}: {TEXT}", f"{n}.txt") for n in range(3)]
TEXTS = [
    LEASES[0],
    Document(f"{TEXT.replace('the', 'a')} {TEXT.replace('the', 'a')}", "a.txt"),
    Document(f"{TEXT.replace('tenant', 'owner')} {TEXT.replace('tenant', 'owner')}", "b.txt"),
]
SMALL = PhrasesProtocol(
    context=48, truth=40, max_tokens=12, k=2, spans=4, biases=(-2.0, 0.0, 4.0, 9.0)
)


def flat(make) -> DynamicLM:
    return stir(DynamicLM.wrap(make().double(), make_tokenizer()))


MODELS = {
    "gpt2": lambda: flat(make_gpt2),
    "llama": lambda: flat(make_llama),
    # Phrases go on from the LM's own token, so its tokens must be words of the documents.
    "conditional": lambda: make_conditional(make_circling()),
}


@pytest.fixture(params=MODELS)
def lm(request) -> DynamicLM:
    return MODELS[request.param]()


@pytest.fixture
def halves(lm) -> Halves:
    found = cut(LEASES[0], lm.tokenizer, context=48, truth=40)
    assert found is not None
    return found


@pytest.fixture
def reading(lm, halves) -> Reading:
    return Reading(lm, halves.context, halves.truth)


@pytest.fixture
def scored(lm, reading, halves) -> TextScores:
    """The candidates of a document along it, as the protocol scores them."""
    vocabulary = candidate_phrases(lm, halves, None).vocabulary
    states, logits = reading.states[:-1], reading.logits[:-1]
    return PhraseScorer(lm, vocabulary).along(
        ReadText(halves.context, halves.truth, states, logits)
    )


@pytest.fixture
def vocabulary(lm, halves):
    return candidate_phrases(lm, halves, None).vocabulary


def made_up(reading, keys, scores) -> FlatTextScores:
    """Phrases with made-up scores (T, P)."""
    phrases = [Phrase(key, "x") for key in keys]
    return FlatTextScores(reading.truth, reading.logits[:-1].numpy(), phrases, scores)


def after(lm, ids):
    """The bare LM's logits after a text."""
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([ids])).logits[0, -1].float()


class TestHalves:
    def test_are_the_document_cut_where_a_word_begins(self, lm, halves):
        document = LEASES[0].text
        ids = lm.tokenizer.encode(document).ids
        assert document.startswith(halves.first + halves.second)
        assert halves.second[0] == " " and halves.second[1].isalnum()
        begin = len(lm.tokenizer.encode(halves.first).ids)
        assert abs(begin - len(ids) / 2) < 12
        assert halves.context == ids[begin - 48 : begin]
        assert halves.truth == ids[begin : begin + 40]

    def test_spans_are_whole_words(self, lm, halves):
        for place, size in halves.spans:
            text = lm.tokenizer.decode(halves.truth[place : place + size])
            assert place in halves.starts and 2 <= size <= 8
            assert text.strip() in halves.second
        assert len(halves.spans) > 20

    def test_of_a_short_document_there_are_none(self, lm):
        assert cut(Document("The tenant shall pay."), lm.tokenizer) is None


class TestCandidates:
    def test_hold_what_the_corpus_does_not_store(self, lm, tmp_path):
        corpus = build_corpus(
            tmp_path / "c.uv", LEASES[1:], lm, CorpusSettings(min_count=2, vectors=False)
        )
        halves = cut(LEASES[0], lm.tokenizer, sizes=(2, 8))
        found = candidate_phrases(lm, halves, corpus, k=8)
        keys = {phrase.ids for phrase in found.vocabulary}
        own = {phrase.ids for phrase in candidate_phrases(lm, halves, None).vocabulary}
        stored = {p.ids for p in corpus.select(halves.first, lm.tokenizer, 8).phrases}
        assert own < keys and stored < keys
        # In the corpus once, so it is not stored.
        [once] = [phrase for phrase in found.vocabulary if phrase.text == " 2: The"]
        assert once.ids not in stored | own
        assert found.sources[-1] == halves.first
        assert all(any(s in doc.text for doc in LEASES[1:]) for s in found.sources[:-1])

    def test_without_the_guard_of_content_words_there_is_glue_too(self, lm, halves, tmp_path):
        corpus = build_corpus(tmp_path / "c.uv", LEASES[1:], lm, CorpusSettings(vectors=False))
        for where in (corpus, None):
            guarded, any_words = (
                {p.ids for p in candidate_phrases(lm, halves, where, guards=guards).vocabulary}
                for guards in (None, Guards(content=None))
            )
            glue = any_words - guarded
            assert guarded < any_words
            assert not any(content_words(lm.tokenizer.decode(ids)) for ids in glue)


class TestReading:
    def test_branches_are_what_the_lm_says_after_each_text(self, lm, halves, reading):
        other = lm.tokenizer.encode(" landlord shall give").ids
        branches = [
            Branch(place, reading.rows(other[:size])) for place, size in ((0, 3), (7, 1), (40, 2))
        ]
        for _ in range(2):
            for branch, found in zip(branches, reading.follow(branches), strict=True):
                text = halves.context + halves.truth[: branch.position]
                for row in range(len(branch.rows)):
                    expected = after(lm, text + other[: row + 1])
                    assert torch.allclose(found[row], expected, atol=1e-4)
        assert reading.follow([]) == []

    def test_greedy_runs_are_those_of_generate(self, lm, halves, reading):
        runs = reading.greedy_runs()
        for place in range(0, 40, 5):
            prompt = halves.context + halves.truth[:place]
            made = generate(lm, prompt, max_tokens=8, ignore_eos=True)
            ids = [token for piece in made.pieces for token in piece.ids]
            pairs = list(zip(ids, halves.truth[place:], strict=False))
            right = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            assert min(runs[place], len(pairs)) == right


class TestTrueText:
    def test_without_phrases_exact_is_bare(self, lm, halves, reading):
        text = ReadText(halves.context, halves.truth, reading.states[:-1], reading.logits[:-1])
        none = PhraseScorer(lm, lm.vocabulary()).along(text)
        found = true_text(none, len(halves.second), [0.0, 5.0])
        assert found.exact + found.strict == pytest.approx([found.bare] * 4)
        ids = torch.tensor(halves.truth)
        direct = reading.logits[:-1].log_softmax(-1)[range(40), ids].double().sum()
        assert found.bare == pytest.approx(float(direct), rel=1e-5)

    def test_a_phrase_that_scores_as_its_first_token(self, halves, reading):
        # One phrase, written as two tokens or as one unit, at the very beginning.
        key, scores = tuple(halves.truth[:2]), numpy.full((40, 1), -math.inf)
        scores[0, 0] = reading.logits[0, key[0]]
        found = true_text(made_up(reading, [key], scores), 10, [0.0])
        shares = reading.logits.double().softmax(-1)
        first, second = shares[0, key[0]], shares[1, key[1]]
        whole = 1 + first
        expected = math.log(first * second / whole + first / whole) - math.log(first * second)
        assert found.exact[0] - found.bare == pytest.approx(expected, abs=1e-5)
        assert found.strict[0] - found.bare == pytest.approx(
            math.log(first / whole) - math.log(first * second), abs=1e-5
        )
        assert found.exact_bits(0.0) == pytest.approx(-found.exact[0] / math.log(2) / 10)

    def test_the_longest_phrases_are_one_of_all_ways(self, lm, halves, scored):
        # By the probabilities of the whole choice, with the bias as the phrases' own weight.
        found = true_text(scored, 100, [0.0, 2.0])
        for bias, strict, exact in zip(found.biases, found.strict, found.exact, strict=True):
            biased = [replace(phrase, weight=bias) for phrase in scored.phrases]
            ids, first = halves.context + halves.truth, len(halves.context)
            with torch.no_grad():
                vocabulary = DynamicVocabulary(lm.static_size, biased)
                rows = lm.forward(torch.tensor([ids]), vocabulary)[0, first - 1 :]
            choice, place, total = rows.double().log_softmax(-1), 0, 0.0
            while place < len(halves.truth):
                keys = [tuple(halves.truth[place : place + n]) for n in range(8, 1, -1)]
                units = [unit for unit in map(vocabulary.find, keys) if unit is not None]
                unit = units[0] if units else halves.truth[place]
                total += float(choice[place, unit])
                place += len(vocabulary.phrase(unit)) if units else 1
            assert strict == pytest.approx(total, abs=1e-3)
            assert exact > strict

    def test_documents_add_up(self, scored):
        one = true_text(scored, 100, [0.0, 2.0])
        both = pool_true_text([one, one])
        assert both.exact_bits(2.0) == pytest.approx(one.exact_bits(2.0))
        assert both.tokens == 80 and both.bare == pytest.approx(2 * one.bare)
        assert one.exact[0] >= one.strict[0]


EAGERNESS = 2.0


def slow_firing(lm, halves, reading, vocabulary, tolerance, bias):
    """Follow the decoder's own functions at each word start."""
    options = {"tolerance": tolerance, "phrase_bias": bias, "eagerness": EAGERNESS}
    config = GenerationConfig(**options).resolved(lm.profile)
    engine = engine_of(lm)
    kind = ConditionalPhraseHead if lm.scoring.is_conditional else PhraseHead
    head = kind(lm, engine.phrase_weights(), vocabulary, config, lm.eos_ids)
    head.update()
    greedy = engine.sampler(config)
    chooser = Chooser(config, greedy, head)
    longest = max(map(len, vocabulary))
    counts = Counter()
    for place in halves.starts:
        if place + longest > len(halves.truth):
            continue
        counts["starts"] += 1
        text = halves.context + halves.truth[:place]
        state = State(reading.states[place].float().numpy(), reading.logits[place].numpy())
        choice = chooser.choose(state, text, (), 99)
        if choice.unit < lm.static_size:
            continue
        phrase = vocabulary.phrase(choice.unit)
        key = phrase.ids
        counts["fired"] += 1
        content = len(content_words(phrase.text))
        counts["words"] += len(phrase.text.split())
        counts["two"] += content >= 2
        counts["glue"] += content == 0
        counts["right"] += tuple(halves.truth[place : place + len(key)]) == key
        kept = 1
        while kept < len(key):
            now = after(lm, [*text, *key[:kept]])
            if not accepts(now.numpy(), key[kept], tolerance, greedy):
                break
            kept += 1
        own = []
        while len(own) < len(key):
            own.append(int(after(lm, text + own).argmax()))
        counts["lm"] += own == halves.truth[place : place + len(key)]
        if kept >= 2:
            counts["kept"] += 1
            counts["kept_right"] += list(key[:kept]) == halves.truth[place : place + kept]
            counts["lm_kept"] += own[:kept] == halves.truth[place : place + kept]
    return counts


class TestFiring:
    @pytest.mark.parametrize(("tolerance", "bias"), [(0.5, 9.0), (0.9, 3.0), (0.99, 9.0)])
    def test_counts_are_those_of_the_decoder(
        self, lm, halves, reading, scored, vocabulary, tolerance, bias
    ):
        options = {"tolerance": tolerance, "bias": bias, "eagerness": EAGERNESS}
        found = firing(reading, scored, halves.starts, **options, samples=1000)
        slow = slow_firing(lm, halves, reading, vocabulary, tolerance, bias)
        assert (found.starts, found.fired) == (slow["starts"], slow["fired"])
        assert found.fired > 0
        assert (found.right, found.lm_right) == (slow["right"], slow["lm"])
        assert (found.words, found.two_content, found.glue) == (
            slow["words"], slow["two"], slow["glue"],
        )  # fmt: skip
        assert found.sampled == found.fired
        accepted = (found.accepted, found.accepted_right, found.lm_accepted_right)
        assert accepted == (slow["kept"], slow["kept_right"], slow["lm_kept"])

    def test_right_ones_are_counted_as_right(self, reading, halves, scored):
        # Scores that know the truth: only phrases that fit fire, and all places that can, do.
        keys = [phrase.ids for phrase in scored.phrases]
        scores = numpy.full((40, len(keys)), -1e4)
        for place in halves.starts:
            for number, key in enumerate(keys):
                if tuple(halves.truth[place : place + len(key)]) == key:
                    scores[place, number] = 1e4
        known = made_up(reading, keys, scores)
        found = firing(reading, known, halves.starts, tolerance=1.0, bias=0.0)
        assert found.fired == found.right == found.fitting > 0
        assert found.accepted_right == found.accepted and found.shares()["precision"] == 1.0
        biased = firing(reading, known, halves.starts, tolerance=1.0, bias=1e5)
        assert biased.fired == biased.starts

    def test_accepted_sizes_grow_with_the_tolerance(self, reading, halves, scored):
        keys = [phrase.ids for phrase in scored.phrases[:12]]
        proposed = [(place, key) for place in halves.starts[:4] for key in keys]
        sizes = [accepted_sizes(reading, proposed, t) for t in (0.0, 0.5, 0.99, 1.0)]
        for less, more in zip(sizes[:-1], sizes[1:], strict=True):
            assert all(a <= b for a, b in zip(less, more, strict=True))
        assert sizes[-1] == [len(key) for _, key in proposed]

    def test_samples_are_seeded_and_documents_add_up(self, reading, halves, scored):
        def found(seed):
            return firing(
                reading, scored, halves.starts, tolerance=0.95, bias=9.0, samples=3, seed=seed
            )

        assert found("a") == found("a") and found("a").sampled == 3
        both = pool_firing([found("a"), found("b")])
        assert both.shares()["rate"] == pytest.approx(found("a").shares()["rate"])
        assert both.fired == 2 * found("a").fired


def kind(divergences, vector, position):
    [own] = [one for one in divergences if (one.vector, one.position) == (vector, position)]
    return own


class TestInputSide:
    def test_a_token_fed_as_its_own_row_is_the_token(self, lm, reading):
        spans = [(place, 1) for place in range(10)]
        found = input_side(lm, reading, spans, samples=10)
        for position in ("token", "unit"):
            own = kind(found, "last token", position)
            assert own.vector_tokens == pytest.approx([0.0] * 10, abs=1e-6)
            assert own.tokens_vector == pytest.approx([0.0] * 10, abs=1e-6)

    def test_a_fresh_split_head_is_the_last_tokens_row(self, halves):
        fresh = DynamicLM.wrap(make_llama(), make_tokenizer())
        found = input_side(fresh, Reading(fresh, halves.context, halves.truth), halves.spans, 6)
        for position in ("token", "unit"):
            own, last = (kind(found, v, position) for v in ("encoder", "last token"))
            assert own.vector_tokens == pytest.approx(last.vector_tokens, abs=1e-4)
            assert min(own.vector_tokens) > 0

    def test_is_what_the_lm_says_after_the_vector(self, lm, halves, reading):
        place, size = halves.spans[-1]
        found = input_side(lm, reading, [(place, size)], samples=1)
        phrase = lm.tokenizer.decode(halves.truth[place : place + size])
        vector = lm.tensors(lm.vocabulary([phrase.strip()])).inputs
        before = halves.context + halves.truth[:place]
        rows = torch.cat([lm.embeddings.input(torch.tensor(before)), vector])
        tokens = after(lm, before + halves.truth[place : place + size]).double().log_softmax(-1)
        for position, at in (("unit", len(before)), ("token", len(before) + size - 1)):
            ids = torch.tensor([[*range(len(before)), at]])
            with torch.no_grad():
                out = lm.model(inputs_embeds=rows[None], position_ids=ids).logits[0, -1]
            own = out.double().log_softmax(-1)
            expected = float((own.exp() * (own - tokens)).sum())
            kl = kind(found, "encoder", position)
            assert kl.vector_tokens == pytest.approx([expected], abs=1e-4)
            other = float((tokens.exp() * (tokens - own)).sum())
            assert kl.tokens_vector == pytest.approx([other], abs=1e-4)

    def test_documents_add_up(self, lm, reading, halves):
        one = input_side(lm, reading, halves.spans, 5, "s")
        assert one == input_side(lm, reading, halves.spans, 5, "s")
        both = pool_input_side([one, input_side(lm, reading, [], 5)])
        assert both == one
        assert mean_and_p95([1.0, 2.0, 3.0])["mean"] == 2.0
        assert mean_and_p95([]) == {"mean": 0.0, "p95": 0.0}


class TestWriting:
    @pytest.fixture
    def texts(self, lm, halves, reading, vocabulary):
        lm.profile = Profile(mode="unfold", tolerance=0.9, phrase_bias=6.0)
        variants = standard_variants(lm.profile)
        prompt = WritingPrompt(reading, halves.context, vocabulary, [halves.first.split()])
        return {name: write(lm, [prompt], options, 16)[0] for name, options in variants.items()}

    def test_every_variant_is_that_of_generate(self, lm, halves, vocabulary, texts):
        others = ["whole", "verify", "atomic", "segmented"]
        assert list(texts) == ["bare", "profile", *others]
        bare = texts["bare"]
        assert bare.steps == bare.tokens == 16 and bare.phrase_tokens == 0
        assert texts["verify"].text == bare.text
        made = generate(lm, halves.context, vocabulary, max_tokens=16, drafts=False)
        assert texts["profile"].text == made.text
        assert texts["profile"].steps == made.stats.steps + 1
        assert texts["profile"].phrases == [phrase.text for phrase in made.phrases]
        assert texts["whole"].steps < texts["whole"].tokens
        assert texts["whole"].phrases and not bare.phrases
        marked = texts["whole"].marked
        assert marked.replace("[", "").replace("]", "") == texts["whole"].text != marked
        assert all(f"[{phrase}]" in marked for phrase in texts["whole"].phrases)
        assert lm.tokenizer.decode(halves.context).endswith(bare.context) and bare.context

    def test_the_profile_is_that_of_unfold_alone(self):
        profile = Profile(phrase_bias=-1.0, eagerness=4.0)
        known = standard_variants(profile)
        assert known["profile"]["eagerness"] == 4.0 and known["profile"]["phrase_bias"] == -1.0
        assert (known["atomic"]["phrase_bias"], known["atomic"]["eagerness"]) == (0.0, 0.0)

    def test_verify_alone_drafts(self):
        known = standard_variants(Profile(mode="unfold"))
        drafts = {name: (options or {}).get("drafts", True) for name, options in known.items()}
        assert not drafts["profile"] and not drafts["whole"] and drafts["verify"]
        assert standard_variants(Profile(mode="verify"))["profile"] == known["verify"]

    def test_perplexity_is_the_bare_lms(self, lm, halves, texts):
        for own in texts.values():
            ids = lm.tokenizer.encode(own.text).ids
            if lm.tokenizer.decode(ids) != own.text or len(ids) != own.tokens:
                continue
            total = 0.0
            for place, token in enumerate(ids):
                total -= float(after(lm, halves.context + ids[:place]).log_softmax(-1)[token])
            assert own.nll == pytest.approx(total, rel=1e-4)

    def test_pooled_figures_are_ratios_of_sums(self, lm, texts):
        found = pool_writing(WritingRow("whole", {}), [texts["whole"], texts["bare"]])
        steps = texts["whole"].steps + texts["bare"].steps
        assert found.steps_per_token == pytest.approx(steps / (texts["whole"].tokens + 16))
        assert found.run_words_most == max(texts["whole"].run_words, texts["bare"].run_words)
        nll = (texts["whole"].nll + texts["bare"].nll) / (texts["whole"].tokens + 16)
        assert found.ppl == pytest.approx(math.exp(nll))
        assert 0 <= found.diversity <= 1 and found.splitter
        new = texts["whole"].new_tokens + texts["bare"].new_tokens
        steps = texts["whole"].new_steps + texts["bare"].new_steps
        assert found.steps_per_new_token == pytest.approx(steps / new)
        written = texts["whole"].phrases
        assert found.phrases == len(written)
        lengths = [len(phrase.split()) for phrase in written]
        assert found.words_per_phrase == pytest.approx(sum(lengths) / len(written))
        content = [len(content_words(phrase)) for phrase in written]
        assert found.two_content_share == sum(n >= 2 for n in content) / len(written)
        assert found.glue_share == content.count(0) / len(written)


class TestNewTokens:
    @given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5))
    def test_are_those_whose_ngram_was_not_there_before(self, ids, size):
        found = new_tokens(ids, size)
        assert len(found) == len(ids)
        for end, is_new in enumerate(found, start=1):
            earlier = [ids[n - size : n] for n in range(size, end)]
            assert is_new == (end < size or ids[end - size : end] not in earlier)

    @pytest.mark.parametrize("name", ["bare", "profile", "verify"])
    def test_passes_count_with_the_first_token_that_they_write(self, circling, name):
        lm, size = circling, 48
        context = lm.tokenizer.encode(" the tenant").ids
        vocabulary = lm.vocabulary([Document(" shall pay the landlord on the day the tenant")])
        reading = Reading(lm, context, lm.tokenizer.encode(" shall pay").ids)
        options = standard_variants(Profile(tolerance=0.9, phrase_bias=6.0))[name]
        prompt = WritingPrompt(reading, context, vocabulary, [])
        [found] = write(lm, [prompt], options, size)
        plain = generate(lm, context, max_tokens=size)
        ids = [token for piece in plain.pieces for token in piece.ids]
        assert found.text == plain.text
        # It goes round: what comes after the second time through the first eight tokens is old.
        around = next(n for n in range(1, size) if ids[n:] == ids[:-n])
        assert found.new_tokens == around + 7 < size
        # Where a phrase was cut, a pass of its own reads the LM's token and writes nothing.
        decoder = decode_steps(lm, [context], vocabulary, max_tokens=size, **options or {})
        firsts, done = [], 0
        for released in islice(decoder.steps(), 1, None):
            count = sum(len(piece.ids) for _, piece in released)
            firsts.append(done if count else done - 1)
            done += count
        passes = sum(first < found.new_tokens for first in firsts)
        assert found.new_steps == (found.new_tokens if name == "bare" else passes)
        assert found.new_steps < found.new_tokens or name == "bare"


def test_verify_drafts_as_much_for_many_documents_as_for_one(circling):
    """Sequences of a batch share the rows of a pass: of eight, none would draft."""
    context = circling.tokenizer.encode(" the tenant").ids
    vocabulary = circling.vocabulary([Document(" shall pay the landlord on the day the tenant")])
    reading = Reading(circling, context, circling.tokenizer.encode(" shall pay").ids)
    prompt = WritingPrompt(reading, context, vocabulary, [])
    options = standard_variants(Profile(phrase_bias=6.0))["verify"]
    [alone] = write(circling, [prompt], options, 24)
    together = write(circling, [prompt] * 8, options, 24)
    assert {text.steps for text in together} == {alone.steps} and alone.steps < alone.tokens


class TestWhole:
    def test_an_interrupted_run_goes_on_where_it_stopped(self, lm, tmp_path, monkeypatch):
        known = standard_variants(lm.profile)
        variants = {name: known[name] for name in ("bare", "profile")}
        told = []

        def run(folder):
            return evaluate_phrases(
                lm, LEASES, None, SMALL, variants=variants, limit_writing=2, folder=folder,
                progress=lambda *done: told.append(done),
            )  # fmt: skip

        whole = run(None)
        assert told == [(2, 3), (3, 3)]
        assert whole.about["documents"] == 3 and whole.writing[0].documents == 2
        run(tmp_path)
        [file] = tmp_path.glob("documents-*.jsonl")
        lines = file.read_text().splitlines()
        assert len(lines) == 3 + 2 * 2
        # Torn in the middle of the last line, as by kill -9.
        file.write_text("\n".join(lines[:4]) + "\n" + lines[4][:30])
        again = run(tmp_path)
        assert again.to_dict() == whole.to_dict()
        read = []
        monkeypatch.setattr(Reading, "__init__", lambda *a, **k: read.append(a))
        assert run(tmp_path).to_dict() == whole.to_dict() and not read

    def test_another_lm_or_profile_does_not_use_old_results(self, lm, tmp_path):
        for change in range(3):
            if change == 1:
                lm.profile = Profile(phrase_bias=1.5)
            if change == 2:
                # As an adapter would: the encoder and the embeddings stay.
                weight = [p for n, p in lm.model.named_parameters() if "embed" not in n][5]
                with torch.no_grad():
                    weight.add_(0.1)
            evaluate_phrases(lm, LEASES[:1], None, SMALL, folder=tmp_path)
            assert len(list(tmp_path.glob("*.jsonl"))) == change + 1

    def test_the_page_has_every_measure_and_every_variant(self, lm):
        variants = standard_variants(lm.profile)
        report = evaluate_phrases(lm, LEASES, None, SMALL, variants=variants)
        rows = {measure: value for measure, value, _ in report.rows()}
        bits = report.to_dict()["true_text"]["exact_bits_per_byte"]
        assert rows["exact bits per byte of the true text"] == f"{bits:.4f}"
        assert len(rows) == 7
        page = report.markdown("univerb lab phrases")
        assert "KL(vector \\|\\| tokens)" in page and "univerb lab phrases" in page
        assert all(f"| {name} " in page for name in variants)
        assert len(report.texts) == page.count("\n1. ") == len(LEASES)
        for text in report.to_dict()["texts"].values():
            assert " ".join(text["marked"].split()) in page

    def test_controls_stand_beside_every_variant_with_phrases(self, lm, monkeypatch):
        known = standard_variants(lm.profile)
        variants = {name: known[name] for name in ("bare", "whole")}
        used = []

        def noticed(lm, prompts, options, *more):
            used.append((lm, [prompt.vocabulary for prompt in prompts]))
            return write(lm, prompts, options, *more)

        monkeypatch.setattr(protocol, "write", noticed)
        controls = (RANDOM_DOCUMENTS, UNTRAINED)
        report = evaluate_phrases(lm, TEXTS, None, SMALL, variants=variants, controls=controls)
        names = ["bare", "whole", "whole, random documents", "whole, untrained encoder"]
        assert [row.name for row in report.writing] == names
        _, own, other, fresh = used
        words = [{phrase.text for phrase in vocabulary} for vocabulary in own[1]]
        # Each has the phrases of the next, the last those of the first.
        others = [{phrase.text for phrase in vocabulary} for vocabulary in other[1]]
        assert others == words[1:] + words[:1] != words
        assert fresh[1] == own[1] and own[0] is other[0] is lm
        assert fresh[0].fingerprint() != lm.fingerprint() and fresh[0].model is lm.model
        again = PhraseEncoder.from_backbone(lm.model, lm.encoder.config)
        assert torch.equal(fresh[0].encoder.heads.output.weight, again.heads.output.weight)
        with pytest.raises(DocumentError, match="no other document"):
            evaluate_phrases(lm, TEXTS[:1], None, SMALL, variants=variants, controls=controls[:1])

    def test_some_documents_are_skipped(self, lm):
        some = evaluate_phrases(lm, TEXTS, None, SMALL, skip=1, limit=1)
        assert some.to_dict() == evaluate_phrases(lm, TEXTS[1:2], None, SMALL).to_dict()
        with pytest.raises(DocumentError, match="none of 0 documents"):
            evaluate_phrases(lm, TEXTS, None, SMALL, skip=9)

    def test_documents_that_are_too_short_are_passed_over(self, lm):
        short = Document("Too short.")
        report = evaluate_phrases(lm, [short, LEASES[0]], None, SMALL)
        assert report.about["documents"] == 1 and not report.writing
        with pytest.raises(DocumentError, match="none of 1 documents"):
            evaluate_phrases(lm, [short], None, SMALL)


@pytest.fixture(scope="module", params=["llama", "conditional"])
def user(request, tmp_path_factory) -> Path:
    """A model, a corpus and held-out text as a user has them on disk."""
    folder = tmp_path_factory.mktemp("eval")
    encoder = saved_encoder(
        folder, lm=None if request.param == "llama" else MODELS[request.param]()
    )
    lm = DynamicLM.from_pretrained(str(encoder))
    build_corpus(folder / "c.uv", LEASES[1:], lm, CorpusSettings(min_count=2))
    (folder / "held.txt").write_text(LEASES[0].text)
    return folder


class TestCommand:
    SHORT = ("--context", 48, "--truth", 32, "--max-tokens", 8)

    def test_measures_and_reports(self, run, user, tmp_path):
        given = ["--docs", user / "held.txt", "--corpus", user / "c.uv", *self.SHORT]
        given += ["--model", user / "encoder", "--out", tmp_path / "report", "--phrase-bias", 4]
        ran = run("lab", "phrases", *given, "--json")
        assert ran.code == 0, ran.err
        written = json.loads((tmp_path / "report" / "phrases.json").read_text())
        assert ran.json == written
        assert written["about"]["profile"]["phrase_bias"] == 4.0
        assert written["about"]["vectors"].startswith("from the corpus")
        names = [own["name"] for own in written["writing"]]
        assert names == ["bare", "profile", "verify", "atomic"]
        assert (tmp_path / "report" / "phrases.png").read_bytes().startswith(b"\x89PNG")
        assert "univerb lab phrases" in (tmp_path / "report" / "phrases.md").read_text()
        shown = run("lab", "phrases", *given)
        for text in ("exact bits per byte", "steps / token", "verify"):
            assert text in shown.out

    def test_controls_and_skipped_documents(self, run, user, tmp_path):
        (tmp_path / "other.txt").write_text(TEXTS[1].text)
        given = ["--docs", user / "held.txt", "--docs", tmp_path / "other.txt", *self.SHORT]
        given += ["--model", user / "encoder", "--random-documents", "--untrained", "--json"]
        ran = run("lab", "phrases", *given, "--variant", "profile", "--skip", 1)
        assert ran.code == 0, ran.err
        assert ran.json["about"]["documents"] == 1
        names = [own["name"] for own in ran.json["writing"]]
        assert names == ["profile", "profile, random documents", "profile, untrained encoder"]
        assert "--sweep has no rows" in run("lab", "phrases", *given, "--sweep").err

    def test_sweep_writes_its_picture(self, run, user, tmp_path):
        given = ["--docs", user / "held.txt", "--model", user / "encoder", *self.SHORT]
        grid = ["--sweep", "--sweep-tolerance", 0.5, "--sweep-tolerance", 1]
        grid += ["--sweep-bias", 0, "--sweep-bias", 6]
        ran = run("lab", "phrases", *given, *grid, "--out", tmp_path, "--json")
        assert ran.code == 0, ran.err
        names = [own["name"] for own in ran.json["writing"]]
        assert names[0] == "bare" and len(names) == 5
        assert ran.json["true_text"] is None
        assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
