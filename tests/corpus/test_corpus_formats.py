"""Corpora of version 0.1: what it wrote still opens, and is still written in the same way."""

import json
import zipfile
from pathlib import Path

import numpy
import pytest

from univerb.corpus import open_corpus
from univerb.corpus.build import CorpusBuilder
from univerb.tokenizer import Tokenizer

QUERY = "tenant rent premises"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What version 0.1 wrote: a corpus, its tokenizer, and what it answered."""
    with zipfile.ZipFile(Path(__file__).with_name("corpus-0.1.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_a_corpus_of_version_0_1_answers_as_it_did(folder: Path):
    corpus = open_corpus(folder / "corpus.uv")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert corpus.manifest.created_by == "univerb 0.1.0"
    assert corpus.verify() > 0
    hits = [hit.chunk for hit in corpus.search(QUERY, 5)]
    assert [[chunk.document, chunk.start, chunk.text] for chunk in hits] == expected["hits"]
    phrases = [
        [list(p.ids), p.text, [[s.document, s.start, s.end] for s in p.sources]]
        for p in corpus.select(QUERY, tokenizer, 5).phrases
    ]
    assert phrases == expected["phrases"]
    keys = corpus.phrases.ids(numpy.arange(len(corpus.phrases)))
    _, inputs, outputs = corpus.vectors(keys)
    assert [inputs[:, 0].tolist(), outputs[:, 0].tolist()] == expected["vectors"]


def test_the_same_documents_become_the_same_files(folder: Path):
    old = open_corpus(folder / "corpus.uv")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    settings = old.manifest.settings.model_copy(update={"vectors": False})
    new = CorpusBuilder(folder / "new.uv", tokenizer, settings).add(old.documents())
    for one, other in zip(old.manifest.shards, new.shards, strict=True):
        assert one == other
    assert old.manifest.index == new.index
    phrases = (old.manifest.phrases, new.phrases)
    columns = [
        (root / "objects" / entry.name / "tokens.npy").read_bytes()
        for root, entry in zip((old.folder, folder / "new.uv"), phrases, strict=True)
    ]
    assert columns[0] == columns[1]
