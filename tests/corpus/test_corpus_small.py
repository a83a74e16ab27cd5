"""What keeps a corpus small: which phrases it lists, and whose vectors it stores."""

from pathlib import Path

import numpy
import pytest

from conftest import make_gpt2, make_tokenizer
from univerb.corpus import mine
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import mine_phrases
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.hashing import split_ids
from univerb.phrases.tokenized import BREAK, CONTENT, END, LETTER, START, TokenArrays

QUERY = "the tenant shall pay"
TEXTS = [
    "The tenant shall pay the rent. The tenant shall pay the rent in advance.",
    "The landlord shall keep the premises in repair. The landlord shall keep the keys.",
    "The tenant shall pay the rent. The tenant shall leave. The tenant shall pay the rent.",
]
DOCUMENTS = [Document(text, f"{number}.txt") for number, text in enumerate(TEXTS)]


@pytest.fixture
def lm() -> DynamicLM:
    return DynamicLM.wrap(make_gpt2(), make_tokenizer())


def mined(ids: list[int], **settings: object) -> dict[tuple[int, ...], int]:
    flags = numpy.full(len(ids), START | END | LETTER | CONTENT, numpy.uint8)
    arrays = TokenArrays(numpy.array(ids, numpy.int32), flags)
    found = mine_phrases(arrays, CorpusSettings(sizes=(2, 4), **settings))
    return dict(zip(split_ids(found.tokens, found.ends), found.counts.tolist(), strict=True))


def test_a_large_corpus_has_only_frequent_phrases(monkeypatch):
    text = numpy.random.default_rng(1).integers(0, 6, 2000).tolist()
    every = mined(text, min_count=2)
    assert mined(text) == every and min(every.values()) == 2, "a small one has all"
    monkeypatch.setattr(mine, "SMALL", 0)
    assert mined(text) == {k: c for k, c in every.items() if c >= 8}
    monkeypatch.setattr(mine, "SMALL", 300)
    few = mined(text, min_count=100)
    assert len(few) == 300 and min(few.values()) >= sorted(every.values())[-300]


def test_vectors_that_are_not_stored_are_encoded_once(lm, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(mine, "SMALL", 0)
    corpus = build_corpus(tmp_path / "c", DOCUMENTS, lm, CorpusSettings(min_count=4))
    before = {path: path.read_bytes() for path in corpus.folder.rglob("*") if path.is_file()}
    selection = corpus.select(QUERY, lm.tokenizer, others=True)
    assert 0 < selection.stored < len(selection.phrases)
    exact = lm.run_encoder(selection.phrases)
    lm.attach(corpus)
    first = lm.vectors(selection.phrases)
    for side, made in zip(first, exact, strict=True):
        numpy.testing.assert_allclose(side, made, atol=0.02)
    # Built alike: a model with the same weights.
    other = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    other.attach(corpus)
    monkeypatch.setattr(type(other.encoder), "encode", None)
    for side, made in zip(other.vectors(selection.phrases), first, strict=True):
        assert (side == made).all(), "a later process has the very same vectors"
    corpus.verify()
    assert before == {p: p.read_bytes() for p in corpus.folder.rglob("*") if p.is_file()}


def test_a_phrase_that_becomes_rare_is_no_phrase_any_more(lm, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(mine, "SMALL", 0)
    settings = CorpusSettings(min_count=3)
    builder = CorpusBuilder(tmp_path / "c", lm.tokenizer, settings, lm=lm)
    before = builder.add(DOCUMENTS).phrase_count
    changed = builder.remove(["2.txt"])
    fresh = CorpusBuilder(tmp_path / "f", lm.tokenizer, settings, lm=lm).add(DOCUMENTS[:2])
    assert changed.phrase_count == fresh.phrase_count < before


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_chunk_has_its_tokens(lm, tmp_path: Path, overlap: int):
    settings = CorpusSettings(max_words=6, overlap=overlap, vectors=False)
    texts = [*DOCUMENTS, Document("One line\nof 家 🙂 text\n\n\nand another. End.", "odd.txt")]
    corpus = build_corpus(tmp_path / "c", texts, lm, settings)
    for number in range(corpus.manifest.chunks):
        ids = corpus.chunk_ids(number)
        lines = [part[part != BREAK].tolist() for part in numpy.split(ids, *numpy.where(ids < 0))]
        written = " ".join(lm.tokenizer.decode(line) for line in lines if line)
        assert written.split() == corpus.chunk(number).text.split()
