"""What texts are worth: against the metrics themselves, and kept across runs."""

import pytest
import torch

from conftest import make_gpt2, make_llama, make_tokenizer
from tiny_data import paragraph
from univerb.errors import OptionError
from univerb.lab.metrics.mauve import mauve, quantise
from univerb.lab.metrics.repetition import repetition, words
from univerb.lab.protocols.generation_runner import GeneratedText
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache
from univerb.lab.protocols.text_quality import MIN_TEXTS, QualityMeter
from univerb.modeling.dynamic import DynamicLM

COUNT = 24


@pytest.fixture(scope="module")
def lm():
    return DynamicLM.wrap(make_gpt2(), make_tokenizer())


@pytest.fixture(scope="module")
def scorer(lm):
    return TextScorer.of(lm)


@pytest.fixture(scope="module")
def passages(lm):
    ids = [lm.tokenizer.encode_prompt(paragraph(number)) for number in range(COUNT)]
    return [Passage(f"{n}", tuple(own[:8]), tuple(own[8:40])) for n, own in enumerate(ids)]


def meter(scorer, lm, folder=None, featuriser=None):
    return QualityMeter(scorer, featuriser or scorer, lm.tokenizer, ResultCache(folder, "k"))


def written(lm, passages, size=20):
    """Return texts that have nothing to do with the passages."""
    each = [lm.tokenizer.encode_prompt(paragraph(900 + n))[:size] for n in range(len(passages))]
    return [
        GeneratedText(own.name, lm.tokenizer.decode(ids), ids, len(ids), len(ids), [], 0)
        for own, ids in zip(passages, each, strict=True)
    ]


def test_figures_are_those_of_the_metrics(lm, scorer, passages):
    texts = written(lm, passages)
    found = meter(scorer, lm).measure(passages, texts)
    decode = lm.tokenizer.decode
    wholes = [decode(p.prefix) + t.text for p, t in zip(passages, texts, strict=True)]
    assert found.ppl == pytest.approx(scorer.stream_perplexity(wholes))
    assert found.ppl_per_sample == pytest.approx(scorer.per_sample_perplexity(wholes))
    spaced = [f"{decode(p.prefix)} {t.text}" for p, t in zip(passages, texts, strict=True)]
    assert found.repetition == repetition([words(text).tokens for text in spaced])
    # Both sides go on for the 20 tokens that were written.
    sides = (
        [decode([*p.prefix, *p.reference[:20]]) for p in passages],
        [decode([*p.prefix, *t.ids]) for p, t in zip(passages, texts, strict=True)],
    )
    assert found.mauve_matched == mauve(quantise(*(scorer.features(side) for side in sides)))
    texts_of_cog = [f"{decode(p.prefix)} {decode(p.reference).strip()}" for p in passages]
    assert found.mauve_cog == mauve(
        quantise(scorer.features(texts_of_cog), scorer.features(spaced))
    )


def test_repetition_ends_where_the_reference_does(lm, scorer, passages):
    short = [Passage(p.name, p.prefix, p.reference[:4]) for p in passages]
    texts = written(lm, passages)
    found = meter(scorer, lm).measure(short, texts)
    decode = lm.tokenizer.decode
    cut = [f"{decode(p.prefix)} {decode(t.ids[:4])}" for p, t in zip(short, texts, strict=True)]
    assert found.repetition == repetition([words(text).tokens for text in cut])


def test_the_truth_itself_is_like_the_truth(lm, scorer, passages):
    texts = [
        GeneratedText(p.name, lm.tokenizer.decode(p.reference), list(p.reference), 32, 32, [], 0)
        for p in passages
    ]
    found = meter(scorer, lm).measure(passages, texts)
    assert found.mauve_matched.mean == pytest.approx(1.0)


def test_too_few_for_mauve(lm, scorer, passages):
    few = passages[: MIN_TEXTS - 1]
    found = meter(scorer, lm).measure(few, written(lm, few))
    assert found.mauve_cog is None
    assert found.mauve_matched is None
    assert found.ppl > 1.0


def test_what_is_kept_is_what_was_found(lm, scorer, passages, tmp_path, monkeypatch):
    texts = written(lm, passages)
    first = meter(scorer, lm, tmp_path).measure(passages, texts)
    monkeypatch.setattr(scorer, "features", None)
    monkeypatch.setattr(scorer, "stream_perplexity", None)
    assert meter(scorer, lm, tmp_path).measure(passages, texts) == first
    other = [*texts[:-1], GeneratedText(texts[-1].passage, "x", [5], 1, 1, [], 0)]
    with pytest.raises(TypeError):
        meter(scorer, lm, tmp_path).measure(passages, other)


def test_another_scorer_has_tokens_of_its_own(lm, passages):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["tenant"])
    other = DynamicLM.wrap(make_llama(vocab_size=330), tokenizer)
    scorer = TextScorer.of(other)
    texts = written(lm, passages)
    found = meter(scorer, lm).measure(passages, texts)
    sides = (
        [lm.tokenizer.decode([*p.prefix, *p.reference[:20]]) for p in passages],
        [lm.tokenizer.decode([*p.prefix, *t.ids]) for p, t in zip(passages, texts, strict=True)],
    )
    assert found.mauve_matched == mauve(quantise(*map(scorer.features, sides)))


def test_without_a_featuriser_there_is_no_mauve(lm, scorer, passages):
    alone = QualityMeter(scorer, None, lm.tokenizer, ResultCache(None, "k"))
    found = alone.measure(passages, written(lm, passages))
    assert (found.mauve_cog, found.mauve_matched) == (None, None) and found.ppl > 1.0


def test_texts_of_other_passages(lm, scorer, passages):
    texts = written(lm, passages)[::-1]
    with pytest.raises(OptionError, match="not those of the passages"):
        meter(scorer, lm).measure(passages, texts)


def test_two_scorers_of_one_name_are_two(lm, passages, tmp_path):
    texts, found = written(lm, passages), []
    for scale in (1.0, 1.5):
        model = make_gpt2()
        with torch.no_grad():
            model.transformer.wte.weight.mul_(scale)
        scorer = TextScorer(model, make_tokenizer(), "gpt2")
        found.append(meter(scorer, lm, tmp_path).measure(passages, texts).ppl)
    assert found[0] != found[1]


def test_a_featuriser_of_its_own_changes_mauve_alone(lm, scorer, passages, tmp_path):
    texts, other = (
        written(lm, passages),
        TextScorer.of(DynamicLM.wrap(make_llama(), make_tokenizer())),
    )
    own = meter(scorer, lm, tmp_path).measure(passages, texts)
    found = meter(scorer, lm, tmp_path, other).measure(passages, texts)
    assert (found.ppl, found.repetition) == (own.ppl, own.repetition)
    sides = (
        [lm.tokenizer.decode([*p.prefix, *p.reference[:20]]) for p in passages],
        [lm.tokenizer.decode([*p.prefix, *t.ids]) for p, t in zip(passages, texts, strict=True)],
    )
    assert found.mauve_matched == mauve(quantise(*map(other.features, sides))) != own.mauve_matched
