"""Vectors from a corpus write what vectors made at request time write."""

from pathlib import Path

import numpy
import pytest
import torch

from conftest import TEXT, make_conditional, make_gpt2, make_llama, make_tokenizer, stir
from univerb.config import EncoderConfig
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.loop import generate
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.guards import PAPER_GUARDS

DOCUMENTS = [Document(f"{TEXT} {TEXT}", "lease"), Document("The rent is due. The rent.", "law")]
PROMPT = "The tenant shall"


def make_lm(heads: str = "split") -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer(), EncoderConfig(heads=heads)))


@pytest.mark.parametrize("mode", ["unfold", "atomic"])
@pytest.mark.parametrize("heads", ["split", "tied"])
def test_a_float32_corpus_writes_the_same(tmp_path: Path, heads: str, mode: str):
    plain, attached = make_lm(heads), make_lm(heads)
    corpus = build_corpus(tmp_path, DOCUMENTS, plain, CorpusSettings(dtype="float32"))
    attached.attach(corpus)
    attached.attach(corpus)
    results = []
    for lm in (plain, attached):
        # Glue, too: the corpus does not hold it, and this model writes it.
        selection = corpus.select(PROMPT, lm.tokenizer, others=True, guards=PAPER_GUARDS)
        vocabulary = lm.vocabulary(selection.phrases)
        options = {"mode": mode, "phrase_bias": 8.0, "max_tokens": 24, "ignore_eos": True}
        options |= {"tolerance": 0.999} if mode == "unfold" else {}
        results.append(generate(lm, PROMPT, vocabulary, **options))
    texts = [[(piece.text, piece.is_phrase) for piece in result.pieces] for result in results]
    assert texts[0] == texts[1] and any(is_phrase for _, is_phrase in texts[0])


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("float16", 4e-3), ("int8", 2e-2)])
def test_stored_vectors_are_the_encoders(tmp_path: Path, dtype, atol, monkeypatch):
    lm = make_lm()
    corpus = build_corpus(tmp_path, DOCUMENTS, lm, CorpusSettings(dtype=dtype))
    phrases = corpus.select(TEXT, lm.tokenizer).phrases
    fresh = lm.encoder.encode(phrases, lm.embeddings)
    lm.attach(corpus)
    monkeypatch.setattr(type(lm.encoder), "encode", None)
    for stored, made in zip(lm.vectors(phrases), fresh, strict=True):
        torch.testing.assert_close(torch.from_numpy(stored).float(), made, atol=atol, rtol=1e-3)


def test_a_corpus_has_the_tokens_that_documents_vote_on(tmp_path: Path, monkeypatch):
    lm, attached = make_conditional(), make_conditional()
    settings = CorpusSettings(dtype="float32")
    for document in DOCUMENTS:
        corpus = build_corpus(tmp_path, [document], lm, settings)
    phrases = corpus.select(PROMPT, lm.tokenizer).phrases
    numbers = corpus.phrases.numbers
    assert len(numbers) == corpus.manifest.phrase_count < len(corpus.phrases)
    assert {len(key) for key in corpus.phrases.ids(numbers)}.isdisjoint({1})
    others = numpy.setdiff1d(numpy.arange(len(corpus.phrases)), numbers)
    first = sorted({key[0] for key in corpus.phrases.ids(numbers)})
    assert corpus.phrases.ids(others) == [(token,) for token in first]
    assert all(len(phrase) > 1 for phrase in phrases) and corpus.verify()
    options = {"phrase_bias": 8.0, "tolerance": 1.0, "max_tokens": 24, "ignore_eos": True}
    wanted = generate(lm, PROMPT, lm.vocabulary(phrases), **options)
    attached.attach(corpus)
    monkeypatch.setattr(type(attached.encoder), "encode", None)
    made = generate(attached, PROMPT, lm.vocabulary(phrases), **options)
    assert made.text == wanted.text and made.stats.phrases == len(phrases)


def test_a_corpus_is_left_alone_once_the_encoder_is_trained(tmp_path: Path):
    lm = make_lm()
    corpus = build_corpus(tmp_path, DOCUMENTS, lm)
    lm.attach(corpus)
    phrases = corpus.select(TEXT, lm.tokenizer).phrases[:9]
    stir(lm, seed=5)
    expected = lm.encoder.encode(phrases, lm.embeddings)
    assert torch.equal(torch.from_numpy(lm.vectors(phrases).outputs), expected.outputs)
    with pytest.raises(CorpusError, match="another encoder"):
        lm.attach(corpus)


def test_a_corpus_is_never_made_of_another_corpus_rounded_vectors(tmp_path: Path):
    lm = make_lm()
    lm.attach(build_corpus(tmp_path / "half", DOCUMENTS, lm, CorpusSettings(dtype="float16")))
    full = build_corpus(tmp_path / "full", DOCUMENTS, lm, CorpusSettings(dtype="float32"))
    rows = full.vectors(full.phrases.ids(numpy.arange(len(full.phrases))))[1]
    assert (rows != rows.astype("float16").astype("float32")).any()


def test_vectors_that_float16_cannot_hold_are_refused(tmp_path: Path):
    lm = stir(DynamicLM.wrap(make_gpt2(), make_tokenizer()), scale=1e5)
    with pytest.raises(CorpusError, match="not finite in float16.*float32"):
        build_corpus(tmp_path / "half", DOCUMENTS, lm, CorpusSettings(dtype="float16"))
    assert build_corpus(tmp_path / "whole", DOCUMENTS, lm).verify(), "int8 has scales"
    assert build_corpus(tmp_path / "full", DOCUMENTS, lm, CorpusSettings(dtype="float32")).verify()
