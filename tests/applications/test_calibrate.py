"""Calibration: likelihoods of real models, and a walk that counts what decoding would."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

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
from univerb.applications import calibrate as module
from univerb.applications.calibrate import (
    Calibration,
    NoChangeWarning,
    Trial,
    _read,
    _walked,
    calibrate,
    fastest,
    save_profile,
)
from univerb.applications.context import DEFAULT_CONTEXT, in_context
from univerb.applications.corpus_profile import profile_options
from univerb.applications.coverage import passages_of
from univerb.applications.passages import find_passages
from univerb.config import Profile
from univerb.corpus import Corpus, open_corpus
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.loop import generate
from univerb.decoding.text_scores import FlatTextScores, PhraseScorer, ReadText, TextScores
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import exact_likelihood
from univerb.phrase import Document, Phrase
from univerb.vocabulary import DynamicVocabulary

# Those that are not about it may leave the text as it is.
pytestmark = pytest.mark.filterwarnings("ignore::univerb.applications.calibrate.NoChangeWarning")
BIASES = (-8.0, -1.0, 0.0, 2.5, 9.0)
LEASE = Document(TEXT, "lease.txt")


def make_passage(seed: int, ids: list[int], keys: list[tuple[int, ...]]) -> FlatTextScores:
    """Return what a made-up LM of three tokens says about a text."""
    torch.manual_seed(seed)
    logits = torch.randn(len(ids), 3, dtype=torch.float64) * 2
    scores = torch.randn(len(ids), len(keys), dtype=torch.float64) * 2
    phrases = [Phrase(key, "x") for key in keys]
    return FlatTextScores(ids, logits.numpy(), phrases, scores.numpy())


def read(lm: DynamicLM, prompt: list[int], ids: list[int], vocabulary) -> TextScores:
    """Read a text after a prompt."""
    with torch.no_grad():
        given = torch.tensor([[*prompt, *ids]])
        hidden = lm.model.base_model(input_ids=given).last_hidden_state[0, len(prompt) - 1 : -1]
        text = ReadText(prompt, ids, hidden, lm.embeddings.output(hidden))
        return PhraseScorer(lm, vocabulary).along(text)


def segmentations(ids: list[int], phrases: list[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """Return all ways to begin with a text, as (place, unit): a token, or -1 - a phrase's number.

    A last phrase may go on where the text ends.
    """

    def rest(place: int) -> list[list[tuple[int, int]]]:
        if place >= len(ids):
            return [[]]
        units = [(ids[place], 1)]
        for number, key in enumerate(phrases):
            left = tuple(ids[place:])
            if left[: len(key)] == key[: len(left)]:
                units.append((-1 - number, len(key)))
        return [[(place, unit), *more] for unit, size in units for more in rest(place + size)]

    return rest(0)


def enumerated(ids: list[int], phrases: list[tuple[int, ...]], logits: Tensor, width: int) -> float:
    """Add up the probabilities of all ways to begin with a text, given logits (T, V + P)."""
    whole = logits.double().log_softmax(-1)
    ways = [
        sum(whole[at, unit if unit >= 0 else width - 1 - unit].item() for at, unit in way)
        for way in segmentations(ids, phrases)
    ]
    return float(torch.tensor(ways, dtype=torch.float64).logsumexp(0))


TOKEN = st.integers(0, 2)
IDS = st.lists(TOKEN, min_size=1, max_size=7)
PHRASES = st.lists(st.lists(TOKEN, min_size=1, max_size=4).map(tuple), max_size=6, unique=True)


def flat(model) -> DynamicLM:
    return stir(DynamicLM.wrap(model.double(), make_tokenizer()))


class TestLikelihood:
    @pytest.mark.parametrize("make", [make_gpt2, make_llama])
    @pytest.mark.parametrize("form", [flat, make_conditional], ids=["flat", "conditional"])
    @pytest.mark.parametrize("vectors", [True, False])
    def test_on_a_model_it_is_what_its_logits_say(self, make, form, vectors, tmp_path):
        lm = form(make())
        corpus = build_corpus(
            tmp_path / "c.uv", [LEASE], lm, CorpusSettings(min_count=1, vectors=vectors)
        )
        beginning, rest = "The tenant", Document(" shall have quiet")
        found = calibrate(lm, corpus, [(beginning, rest)], biases=BIASES)
        phrases = corpus.vocabulary(lm, beginning).snapshot().phrases
        keys = [phrase.ids for phrase in phrases]
        prompt = lm.tokenizer.encode(beginning).ids
        ids = lm.tokenizer.encode(beginning + rest.text).ids
        own = ids[len(prompt) :]
        # As `generate` does, it shows the LM passages of the corpus first.
        shown = in_context(lm, ids, find_passages(beginning, corpus, DEFAULT_CONTEXT))
        assert shown.shown > 0
        whole, first = torch.tensor([shown.ids]), shown.shown + len(prompt)
        assert found.tokens == len(own) and len(segmentations(own, keys)) > 2
        scale = -1 / math.log(2) / len(rest.text.encode())
        # Stored vectors are in half precision, and so is the product of the phrase head.
        error = 1e-3 if vectors and lm.scoring.is_conditional else 1e-5
        for bias in BIASES:
            biased = [replace(phrase, weight=phrase.weight + bias) for phrase in phrases]
            vocabulary = DynamicVocabulary(lm.static_size, biased)
            with torch.no_grad():
                logits = lm.forward(whole, vocabulary)[0, first - 1 : -1]
            exact = enumerated(own, keys, logits, lm.static_size)
            assert found.bits_per_byte[bias] == pytest.approx(exact * scale, abs=error)
        exact = enumerated(own, [], lm.forward(whole)[0, first - 1 :], 0)
        assert found.plain_bits_per_byte == pytest.approx(exact * scale, abs=1e-6)
        assert len({round(bits, 3) for bits in found.bits_per_byte.values()}) > 1

    @pytest.mark.parametrize("form", [flat, make_conditional], ids=["flat", "conditional"])
    def test_a_passage_without_a_beginning_is_read_from_its_second_token_on(self, form):
        lm = form(make_gpt2())
        seen = _read(lm, lm.vocabulary(), "", "The tenant shall")
        assert seen.ids == lm.tokenizer.encode("The tenant shall").ids[1:]
        assert len(seen.logits) == len(seen.ids)
        assert exact_likelihood(seen.scored(3.0)) == pytest.approx(seen.bare_likelihood)


def trial(values: tuple[float, float, float, float]) -> Trial:
    return Trial(*values, changed_rate=0.0)


SOME = st.sampled_from([0.0, 0.5, 1.0])
TRIALS = st.lists(
    st.tuples(SOME, SOME, SOME, SOME).map(trial),
    min_size=1,
    unique_by=lambda one: (one.bias, one.tolerance),
)


class TestBest:
    @pytest.mark.parametrize(
        ("trials", "expected"),
        [
            # The fastest of those that make no more errors than the plain LM.
            ([(0, 0.0, 1.0, 0.5), (2, 0.5, 0.7, 0.5), (4, 0.9, 0.5, 0.6)], 1),
            # The most cautious of equals.
            ([(4, 0.5, 0.7, 0.5), (2, 0.5, 0.7, 0.4), (0, 0.9, 0.7, 0.1)], 1),
            # The fewest errors where all are worse.
            ([(0, 0.5, 0.1, 0.9), (2, 0.5, 0.9, 0.6), (4, 0.5, 0.8, 0.6)], 2),
        ],
    )
    def test_is_fast_and_no_worse_than_the_plain_lm(self, trials, expected):
        assert fastest([trial(values) for values in trials], 0.5) == trial(trials[expected])

    @given(TRIALS, SOME)
    def test_no_other_is_better(self, trials, limit):
        chosen = fastest(trials, limit)
        assert chosen in trials
        good = [one for one in trials if one.error_rate <= limit]
        if good:
            assert chosen in good
            assert chosen.passes_per_token == min(one.passes_per_token for one in good)
        else:
            assert chosen.error_rate == min(one.error_rate for one in trials)
        assert chosen == fastest(trials[::-1], limit)


def followed(seen: FlatTextScores, bias: float, tolerance: float) -> tuple[int, int, int]:
    """Decode along a text (docs/method.md, Modes): count passes, wrong and changed tokens."""
    phrases, logits = [phrase.ids for phrase in seen.phrases], torch.from_numpy(seen.logits)
    place = passes = errors = changed = 0
    ids, plain = seen.ids, logits.argmax(-1).tolist()

    def is_kept(at: int, token: int) -> bool:
        shares = logits[at].softmax(-1)
        return bool(shares[token] >= (1 - tolerance) * shares.max() * (1 - 1e-12))

    while place < len(ids):
        allowed = [n for n, key in enumerate(phrases) if is_kept(place, key[0])]
        chosen = max(allowed, key=lambda n: seen._scores[place, n], default=None)
        passes += 1
        if chosen is None or seen._scores[place, chosen] + bias <= seen.logits[place].max():
            errors += int(seen.logits[place].argmax()) != ids[place]
            place += 1
            continue
        for token in phrases[chosen]:
            if place == len(ids):
                break
            if not is_kept(place, token):
                passes += 1
                errors += int(seen.logits[place].argmax()) != ids[place]
                place += 1
                break
            changed += token != plain[place]
            place += 1
            if token != ids[place - 1]:
                errors += 1
                break
    return passes, errors, changed


class TestWalk:
    @given(
        st.integers(0, 999),
        IDS,
        PHRASES,
        st.sampled_from(BIASES),
        st.sampled_from([*module.TOLERANCES, 1.0]),
    )
    @settings(max_examples=200)
    @example(0, [0] * 7, [(0, 0, 1), (0, 0)], 9.0, 0.9)
    def test_passes_and_errors_are_those_of_decoding_along_the_text(
        self, seed, ids, phrases, bias, tolerance
    ):
        seen = make_passage(seed, ids, phrases)
        found = _walked(seen, bias, tolerance)
        assert found == followed(seen, bias, tolerance)
        if bias == -8.0 and not phrases:
            assert found[0] == len(ids)
        if not phrases or tolerance == 0.0:
            assert found[2] == 0

    @pytest.mark.parametrize("tolerance", [0.0, 0.5, 0.9, 1.0])
    @pytest.mark.parametrize("bias", [-8.0, 0.0, 2.0, 12.0])
    @pytest.mark.parametrize("form", [flat, make_conditional], ids=["flat", "conditional"])
    def test_along_its_own_text_it_takes_the_passes_of_generate(self, tolerance, bias, form):
        lm = form(make_llama())
        vocabulary = lm.vocabulary([LEASE])
        prompt = lm.tokenizer.encode("The tenant").ids
        result = generate(
            lm,
            prompt,
            vocabulary,
            mode="unfold",
            overshoot="allow",
            ignore_eos=True,
            phrase_bias=0.0,
            eagerness=bias,
            tolerance=tolerance,
            max_tokens=60,
            drafts=False,
        )
        ids = [token for piece in result.pieces for token in piece.ids]
        seen = read(lm, prompt, ids, vocabulary)
        passes, errors, changed = _walked(seen, bias, tolerance)
        wrong = sum(a != b for a, b in zip(ids, seen.best, strict=True))
        assert errors == 0 and (tolerance > 0 or wrong == 0)
        # What was written is other than the plain LM's as often as calibration says.
        assert changed == wrong
        # The last token is never read.
        assert passes - result.stats.steps in (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a corpus as a user has them on disk."""
    folder = tmp_path_factory.mktemp("calibrate")
    saved_encoder(folder)
    build_corpus(folder / "c.uv", [LEASE], load(folder))
    return folder


@functools.cache
def load(folder: Path) -> DynamicLM:
    return DynamicLM.from_pretrained(str(folder / "encoder"))


@pytest.fixture
def corpus(folder: Path) -> Corpus:
    (folder / "c.uv" / "profile.json").unlink(missing_ok=True)
    return open_corpus(folder / "c.uv")


class TestWhole:
    def test_every_value_is_measured(self, folder, corpus):
        lm = load(folder)
        passages = passages_of([LEASE, Document(TEXT[20:], "b")], lm.tokenizer, 8, 24)
        told: list[tuple[int, int]] = []
        found = calibrate(lm, corpus, passages, progress=lambda *done: told.append(done))
        assert told == [(1, 2), (2, 2)]
        assert found.passages == 2 and found.tokens > 24
        assert tuple(found.bits_per_byte) == module.BIASES
        assert len(found.trials) == len(module.BIASES) * len(module.TOLERANCES)
        assert found.best in found.trials
        for one in found.trials:
            assert 0 < one.passes_per_token <= 1 and 0 <= one.error_rate <= 1
            # Tolerance 0 writes what the plain LM writes.
            assert one.tolerance > 0 or one.error_rate == found.plain_error_rate
            assert one.tolerance > 0 or one.changed_rate == 0
        data = json.loads(json.dumps(found.to_dict()))
        assert data["best"]["bias"] == found.best.bias
        assert len(data["trials"]) == len(found.trials)

    def test_the_command_measures_an_encoder_of_the_conditional_form(self, run, tmp_path):
        lm = make_conditional(make_circling(), scale=0.02)
        encoder = saved_encoder(tmp_path, lm=lm)
        build_corpus(tmp_path / "c.uv", [LEASE], lm)
        (tmp_path / "held.txt").write_text(f"{TEXT} {TEXT}")
        given = [tmp_path / "held.txt", "--model", encoder, "--json"]
        ran = run("calibrate", tmp_path / "c.uv", *given)
        assert ran.code == 0, ran.err
        passes = [trial["passes_per_token"] for trial in ran.json["trials"]]
        assert min(passes) < 1.0 == max(passes)

    def test_it_warns_if_the_text_stays_the_plain_lms(self, folder, corpus):
        lm = load(folder)
        passages = passages_of([Document(TEXT[20:], "b")], lm.tokenizer, 8, 24)
        with pytest.warns(NoChangeWarning, match="change no word: with .* tolerance 0") as warned:
            found = calibrate(lm, corpus, passages, tolerances=(0.0,))
        # At tolerance 0 nothing can change.
        assert "No other values change one" in str(warned[0].message)
        assert warned[0].filename == __file__
        assert not found.changes_text
        data = found.to_dict()
        assert data["note"] == found.note == str(warned[0].message)
        assert data["changes_text"] is False

    @pytest.mark.filterwarnings("error::univerb.applications.calibrate.NoChangeWarning")
    def test_it_does_not_if_phrases_change_some(self, folder, corpus):
        lm = load(folder)
        passages = passages_of([Document(TEXT[20:], "b")], lm.tokenizer, 8, 24)
        found = calibrate(lm, corpus, passages, biases=(12.0,), tolerances=(0.99,))
        assert found.changes_text and found.note is None
        assert found.best.changed_rate > 0

    def test_without_held_out_text_there_is_nothing_to_measure(self, folder, corpus):
        with pytest.raises(DocumentError, match="no held-out text"):
            calibrate(load(folder), corpus, [])


def calibration(phrase_bias: float, tolerance: float) -> Calibration:
    best = Trial(phrase_bias, tolerance, 1.0, 0.5, 0.1)
    return Calibration("phrase_bias", best, 0.5, (best,), 1.0, {}, passages=1, tokens=1)


class TestNote:
    CAUTIOUS = Trial(2.0, 0.0, 0.75, 0.5, 0.0)

    def test_names_the_fastest_values_that_change_some_and_make_no_more_errors(self):
        trials = (
            self.CAUTIOUS,
            Trial(3.0, 0.3, 0.85, 0.5, 0.02),
            Trial(4.0, 0.5, 0.8, 0.5, 0.04),
            Trial(6.0, 0.9, 0.6, 0.7, 0.2),
        )
        note = replace(calibration(0.0, 0.0), best=self.CAUTIOUS, trials=trials).note
        for words in ("phrase_bias 2 and tolerance 0,", "any text is what the plain LM", "0.75"):
            assert words in note
        assert "generate with phrase_bias 4 and tolerance 0.5: 4.0% of the tokens change" in note
        assert "--held-out" in note and "-k" in note

    def test_or_those_with_the_fewest_errors(self):
        trials = (self.CAUTIOUS, Trial(3.0, 0.3, 0.6, 0.7, 0.2), Trial(4.0, 0.1, 0.7, 0.6, 0.1))
        note = replace(calibration(0.0, 0.0), best=self.CAUTIOUS, trials=trials).note
        assert "generate with phrase_bias 4 and tolerance 0.1: " in note

    def test_of_another_tolerance_it_says_only_what_was_seen(self):
        best = Trial(2.0, 0.5, 1.0, 0.5, 0.0)
        note = replace(calibration(0.0, 0.0), best=best, trials=(best,), tokens=77).note
        assert "all 77 tokens were what the plain LM writes" in note

    def test_there_is_none_if_they_change_the_text(self):
        assert calibration(3.0, 0.7).note is None


class TestProfile:
    def test_is_kept_with_the_corpus(self, folder, corpus):
        lm = load(folder)
        own = lm.fingerprint()
        assert profile_options(corpus, own) == {}
        save_profile(corpus, lm, calibration(phrase_bias=3.0, tolerance=0.7))
        biases = {"phrase_bias": 3.0, "eagerness": 0.0}
        assert profile_options(corpus, own) == biases | {"tolerance": 0.7}
        assert profile_options(corpus, own, "verify") == biases
        assert profile_options(corpus, own, "atomic") == {}
        save_profile(corpus, lm, calibration(phrase_bias=-2.0, tolerance=0.5))
        assert profile_options(open_corpus(corpus.folder), own)["phrase_bias"] == -2.0
        assert not list(corpus.folder.glob(".profile.json*"))

    def test_serves_the_encoder_it_was_measured_with(self, folder, corpus):
        lm = load(folder)
        save_profile(corpus, lm, calibration(phrase_bias=3.0, tolerance=0.7))
        assert profile_options(corpus, "another") == {}

    def test_generate_takes_it_as_options(self, folder, corpus):
        lm = load(folder)
        shares = []
        for bias in (-100.0, 100.0):
            save_profile(corpus, lm, calibration(phrase_bias=bias, tolerance=1.0))
            options = profile_options(corpus, lm.fingerprint()) | {
                "mode": "unfold",
                "max_tokens": 24,
            }
            result = generate(lm, "The tenant", corpus.vocabulary(lm, "The tenant"), **options)
            shares.append(result.stats.phrase_share)
        assert shares[0] == 0.0 and shares[1] > 0.8

    def test_of_the_conditional_form_it_is_the_eagerness(self, run, tmp_path):
        lm = make_conditional(make_circling(), scale=0.02)
        lm.profile = Profile(phrase_bias=5.0, tolerance=0.9)
        corpus = build_corpus(tmp_path / "c.uv", [LEASE], lm, CorpusSettings(min_count=1))
        passages = [("The tenant", Document(" shall pay the rent on the first day"))]
        found = calibrate(lm, corpus, passages)
        assert found.option == "eagerness"
        save_profile(corpus, lm, found)
        options = profile_options(corpus, lm.fingerprint())
        assert options["eagerness"] == found.best.bias
        # Not on top of what the model's own profile has.
        assert options["phrase_bias"] == 0.0

    def test_the_command_generate_honours_it(self, run, folder, corpus):
        given = ["--corpus", corpus.folder, "--model", folder / "encoder", "--max-tokens", "24"]
        given += ["--mode", "unfold", "--json"]
        lm, shares = load(folder), []
        for bias, own in ((-100.0, []), (100.0, []), (100.0, ["--phrase-bias", "-100"])):
            save_profile(corpus, lm, calibration(phrase_bias=bias, tolerance=1.0))
            ran = run("generate", "The tenant", *given, *own)
            assert ran.code == 0, ran.err
            shares.append(json.loads(ran.out)["stats"]["phrase_share"])
        assert shares[0] == shares[2] == 0.0 and shares[1] > 0.8
