"""Corpora of version 0.1: they still open, and become what a new one would be when they change."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy
import pytest

from univerb.corpus import open_corpus
from univerb.corpus.build import CorpusBuilder
from univerb.corpus.manifest import FORMAT, CorpusSettings, phrases_key
from univerb.corpus.objects import SUMS, ObjectEntry
from univerb.errors import CorpusError
from univerb.phrase import Document
from univerb.phrases.content import content_words
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.tokenized import CONTENT
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
        for p in corpus.select(QUERY, tokenizer, 5, guards=PAPER_GUARDS).phrases
    ]
    assert phrases == expected["phrases"]
    keys = corpus.phrases.ids(numpy.arange(len(corpus.phrases)))
    _, inputs, outputs = corpus.vectors(keys)
    assert [inputs[:, 0].tolist(), outputs[:, 0].tolist()] == expected["vectors"]
    with pytest.raises(CorpusError, match="earlier version.*univerb index"):
        corpus.chunk_ids(0)


def test_the_glue_in_a_corpus_of_version_0_1_is_not_offered(folder: Path):
    corpus = open_corpus(folder / "corpus.uv")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    for others in (False, True):
        every = corpus.select(QUERY, tokenizer, 5, others=others, guards=PAPER_GUARDS)
        offered = corpus.select(QUERY, tokenizer, 5, others=others)
        assert offered.phrases == [p for p in every.phrases if content_words(p.text)]
        assert len(offered.phrases) < len(every.phrases)
        assert (offered.stored == len(offered.phrases)) is not others


def test_the_same_documents_become_the_same_files(folder: Path):
    old = open_corpus(folder / "corpus.uv")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    without = {"vectors": False, "content": None, "whole_numbers": False}
    settings = old.manifest.settings.model_copy(update=without)
    new = CorpusBuilder(folder / "new.uv", tokenizer, settings).add(old.documents())
    pairs = [
        *zip(old.manifest.shards, new.shards, strict=True),
        (old.manifest.index, new.index),
    ]
    for one, other in pairs:
        files, others = read_files(old.folder, one), read_files(folder / "new.uv", other)
        if "flags.npy" in files:
            flags = [numpy.load(io.BytesIO(f.pop("flags.npy"))) for f in (files, others)]
            is_token = flags[1] & CONTENT
            assert (flags[0] | is_token).tolist() == flags[1].tolist()
        if "ids.npy" in files:
            ids, tokens = (
                numpy.load(io.BytesIO(f.pop(name)))
                for f, name in ((files, "ids.npy"), (others, "tokens.npy"))
            )
            assert (ids + 1).tolist() == tokens.tolist() and others.pop("chunk_tokens.npy")
        assert files == others
    tokens = [
        numpy.load(io.BytesIO(read_files(root, entry)["tokens.npy"])).tolist()
        for root, entry in ((old.folder, old.manifest.phrases), (folder / "new.uv", new.phrases))
    ]
    assert tokens[0] == tokens[1]


def read_files(root: Path, entry: ObjectEntry) -> dict[str, bytes]:
    paths = (root / "objects" / entry.name).iterdir()
    return {path.name: path.read_bytes() for path in paths if path.name != SUMS}


def without_vectors(folder: Path) -> CorpusSettings:
    """Leave the vectors out, so that no model is needed to change the corpus."""
    old = open_corpus(folder).manifest
    settings = old.settings.model_copy(update={"vectors": False})
    phrases = f"phrases-{phrases_key(old.shards, settings, (), version=1)}"
    (folder / "objects" / old.phrases.name).rename(folder / "objects" / phrases)
    entry = old.phrases.model_copy(update={"name": phrases})
    bare = {"settings": settings, "phrases": entry, "vectors": (), "encoder": "", "width": 0}
    left_out = {"settings": {"content", "whole_numbers"}}
    body = old.model_copy(update=bare).model_dump_json(exclude=left_out)
    outer = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    (folder / "manifest.json").write_text(json.dumps(outer))
    return settings


@pytest.mark.parametrize("change", ["add", "add nothing new", "remove"])
def test_a_corpus_of_version_0_1_that_changes_becomes_as_a_new_one(folder: Path, change: str):
    root, fresh_root = folder / "corpus.uv", folder / "fresh.uv"
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    settings = without_vectors(root)
    old = open_corpus(root)
    documents = list(old.documents())
    builder = CorpusBuilder(root, tokenizer, settings)
    if change == "remove":
        changed = builder.remove([documents.pop().name])
    else:
        documents += [Document("The rent of the rent is 1,500.", "new")] * (change == "add")
        changed = builder.add(documents)
    fresh = CorpusBuilder(fresh_root, tokenizer, settings).add(documents)
    assert changed.format == FORMAT > old.manifest.format
    assert changed.phrase_count == fresh.phrase_count
    selected = [
        open_corpus(each).select(QUERY, tokenizer, 5, guards=PAPER_GUARDS)
        for each in (root, fresh_root)
    ]
    assert selected[0] == selected[1]
    assert all(content_words(phrase.text) for phrase in selected[0].phrases)
