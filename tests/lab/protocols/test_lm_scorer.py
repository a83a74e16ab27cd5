"""Scorers against one plain pass of the same LM for each text, and against mauve-text."""

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import MAKERS, TEXT, make_gpt2, make_llama, make_tokenizer, saved
from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.lab.metrics.perplexity import SEPARATOR
from univerb.lab.protocols import lm_scorer
from univerb.lab.protocols.lm_scorer import TextScorer, load_scorer
from univerb.modeling.dynamic import DynamicLM

TEXTS = [TEXT[:begin] for begin in (1, 9, 150, 31, 60, 12, 40, 200, 75, 5)]


@pytest.fixture(params=["gpt2", "llama"])
def model(request):
    return MAKERS[request.param]()


def scorer_of(model, batch=8):
    return TextScorer(model, make_tokenizer(), "tiny", batch=batch)


def ids_of(text):
    return make_tokenizer()(text)["input_ids"]


def plain_losses(model, ids):
    """The negative log-probabilities of all tokens but the first, from the whole logits."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


# Features


def test_features_are_the_last_hidden_state_at_the_last_token(model, monkeypatch):
    monkeypatch.setattr(lm_scorer, "MAX_TOKENS", 20)
    found = scorer_of(model).features(TEXTS)
    assert (found.dtype, found.shape) == (numpy.float32, (len(TEXTS), 32))
    for row, text in zip(found, TEXTS, strict=True):
        ids = ids_of(text)[:20]
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        numpy.testing.assert_allclose(row, out.hidden_states[-1][0, -1], atol=1e-5)
        # After the final norm: what the output layer reads.
        logits = model.get_output_embeddings()(torch.from_numpy(row))
        torch.testing.assert_close(logits, out.logits[0, -1], atol=1e-4, rtol=1e-4)


def test_features_are_those_of_mauve_text(tmp_path, monkeypatch):
    mauve = pytest.importorskip("mauve.compute_mauve")
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    folder = saved(tmp_path / "tiny-gpt2", lm)
    expected = mauve.get_features_from_input(
        None, None, TEXTS, str(folder), 25, -1, "p", batch_size=3
    )
    monkeypatch.setattr(lm_scorer, "MAX_TOKENS", 25)
    found = load_scorer(str(folder)).features(TEXTS)
    numpy.testing.assert_allclose(found, expected, atol=1e-5)
    assert numpy.ptp(expected, axis=0).min() > 0.01, "features that are alike would show nothing"


def test_padding_and_batches_change_nothing(model):
    alone, together = scorer_of(model, batch=1), scorer_of(model, batch=8)
    numpy.testing.assert_allclose(alone.features(TEXTS), together.features(TEXTS), atol=1e-4)
    assert alone.per_sample_perplexity(TEXTS) == pytest.approx(
        together.per_sample_perplexity(TEXTS), rel=1e-5
    )


def test_long_windows_are_read_one_by_one(monkeypatch):
    # Each letter is a token.
    lists = [("xz" * size)[:size] for size in (9, 60, 70, 30)]
    scorer = scorer_of(make_llama())
    expected = scorer.features(lists)
    monkeypatch.setattr(lm_scorer, "_TOKENS", 70)
    passes = []
    found = scorer.features(lists, progress=lambda done, _: passes.append(done))
    numpy.testing.assert_allclose(found, expected, atol=1e-5)
    assert passes == [1, 2, 4]


@settings(max_examples=15)
@given(st.lists(st.text("the rn.xé", min_size=1, max_size=40), min_size=1, max_size=9))
def test_texts_keep_their_order(lists):
    scorer = scorer_of(make_gpt2(), batch=4)
    found = scorer.features(lists)
    each = numpy.concatenate([scorer.features([own]) for own in lists])
    numpy.testing.assert_allclose(found, each, atol=1e-4)


def test_no_more_is_read_than_the_context_holds():
    scorer = scorer_of(make_gpt2())
    assert scorer.context_size == 512
    found = scorer.features(["xz" * 300])
    numpy.testing.assert_allclose(found, scorer.features(["xz" * 256]), atol=1e-5)
    assert math.isfinite(scorer.per_sample_perplexity([TEXT * 20]))


def test_texts_without_tokens_are_refused():
    with pytest.raises(OptionError, match="text 1 is empty"):
        scorer_of(make_gpt2()).features(["a", "", "b"])


# Perplexity


def test_stream_perplexity_is_that_of_windows(model):
    texts = [TEXT * 6, "The tenant", "", TEXT * 9]
    ids = ids_of(SEPARATOR.join(texts))
    assert len(ids) > 512 and len(ids) % 512 > 1
    parts = [ids[begin : begin + 512] for begin in range(0, len(ids), 512)]
    # Each window's mean counts with all its tokens, as HF's loss times the window's length does.
    total = sum(float(plain_losses(model, part).mean()) * len(part) for part in parts)
    expected = math.exp(total / len(ids))
    assert scorer_of(model, batch=2).stream_perplexity(texts) == pytest.approx(expected, rel=1e-4)
    assert 100 < expected < 1e5


def test_per_sample_perplexity_begins_with_the_end_token(model):
    texts = [text for text in TEXTS if text]
    each = [math.exp(plain_losses(model, [0, *ids_of(text)]).mean()) for text in texts]
    found = scorer_of(model).per_sample_perplexity([*texts, ""])
    assert found == pytest.approx(sum(each) / len(each), rel=1e-4)


def test_per_sample_perplexity_begins_with_the_begin_token_if_there_is_one(model):
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "The"
    begin = tokenizer.bos_token_id
    assert begin not in (None, tokenizer.eos_token_id)
    expected = math.exp(plain_losses(model, [begin, *ids_of(TEXT)]).mean())
    found = TextScorer(model, tokenizer, "tiny").per_sample_perplexity([TEXT])
    assert found == pytest.approx(expected, rel=1e-4)


def test_without_any_token_to_begin_with_only_the_stream_is_scored():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    scorer = TextScorer(make_gpt2(), tokenizer, "tiny")
    with pytest.raises(ModelError, match="no token that begins or ends a text"):
        scorer.per_sample_perplexity([TEXT])
    assert math.isfinite(scorer.stream_perplexity([TEXT]))


def test_nothing_has_no_perplexity():
    scorer = scorer_of(make_gpt2())
    assert math.isnan(scorer.stream_perplexity([]))
    assert math.isnan(scorer.per_sample_perplexity([""]))


def test_logits_are_made_a_few_rows_at_a_time(monkeypatch):
    model = make_gpt2()
    rows = []
    model.lm_head.register_forward_hook(lambda _, given, made: rows.append(len(given[0])))
    scorer = scorer_of(model, batch=4)
    expected = scorer.stream_perplexity([TEXT * 20])
    rows.clear()
    monkeypatch.setattr(lm_scorer, "_ROWS", 7)
    assert scorer.stream_perplexity([TEXT * 20]) == pytest.approx(expected, rel=1e-6)
    assert max(rows) == 7


def test_progress_counts_up_to_the_end():
    told = []
    scorer_of(make_gpt2(), batch=4).features(TEXTS, progress=lambda *own: told.append(own))
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_every_tensor_is_made_on_the_models_device(model):
    """Where a tensor names no device it is of the one set here, which computes nothing."""
    scorer = scorer_of(model)
    expected = scorer.stream_perplexity(TEXTS), scorer.features(TEXTS)
    with torch.device("meta"):
        found = scorer.stream_perplexity(TEXTS), scorer.features(TEXTS)
    assert found[0] == pytest.approx(expected[0])
    numpy.testing.assert_allclose(found[1], expected[1], atol=1e-5)


# Who scores


def test_a_scorer_is_named_for_its_backbone(tmp_path, tiny):
    folder = saved(tmp_path / "some-gpt2", tiny)
    tiny.model.name_or_path = str(folder)
    of_lm, loaded = TextScorer.of(tiny), load_scorer(str(folder))
    assert of_lm.name == loaded.name == "some-gpt2"
    assert of_lm.stream_perplexity(TEXTS) == pytest.approx(loaded.stream_perplexity(TEXTS))
    half = load_scorer(str(folder), dtype="bfloat16")
    assert half.name == "some-gpt2 (bfloat16)"
    assert half.features(["a"]).dtype == numpy.float32
    tiny.model.name_or_path = "org/model"
    assert TextScorer.of(tiny).name == "org/model"


def test_an_adapted_backbone_does_not_score_under_its_name(tmp_path, tiny):
    tiny.adapter = tmp_path
    with pytest.raises(OptionError, match="was loaded with its adapter"):
        TextScorer.of(tiny)


def test_missing_models_and_bad_options_are_refused(tmp_path):
    with pytest.raises(ModelMissing, match="offline is set"):
        load_scorer("gpt2-large-that-is-nowhere", offline=True)
