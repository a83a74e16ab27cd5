"""What a corpus does to others: foreign files stay, readers go on, names are not taken unasked."""

import errno
import os
import shutil

import pytest
from pydantic import ValidationError

from conftest import TEXT, make_llama, make_tokenizer, saved, stir
from univerb.corpus import open_corpus
from univerb.corpus.build import CorpusBuilder
from univerb.corpus.manifest import OBJECTS, CorpusSettings
from univerb.corpus.objects import ObjectEntry, write_object
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

PLAIN = CorpusSettings(vectors=False)


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


def test_a_folder_that_is_somebody_elses_is_refused_and_untouched(tmp_path, lm):
    mine = tmp_path / OBJECTS / "thesis" / "chapter.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    with pytest.raises(CorpusError, match="not empty and no corpus"):
        CorpusBuilder(tmp_path, lm.tokenizer, PLAIN).add([Document(TEXT, "a")])
    assert mine.read_text() == "years of work"


def test_only_objects_of_the_corpus_are_swept(tmp_path, lm):
    builder = CorpusBuilder(tmp_path / "c.uv", lm.tokenizer, PLAIN)
    builder.add([Document(TEXT, "a")])
    mine = tmp_path / "c.uv" / OBJECTS / "notes"
    mine.mkdir()
    for name in "bcd":
        builder.add([Document(f"{name} {TEXT}", name)])
    assert mine.is_dir()


def test_a_reader_goes_on_after_a_change(tmp_path, lm):
    CorpusBuilder(tmp_path / "c.uv", lm.tokenizer, PLAIN).add([Document(TEXT, "a")])
    reader = open_corpus(tmp_path / "c.uv")
    CorpusBuilder(tmp_path / "c.uv", lm.tokenizer).add([Document(f"More. {TEXT}", "b")])
    assert {hit.chunk.document for hit in reader.search("tenant rent", 9)} == {"a"}
    assert reader.select("tenant rent", lm.tokenizer).phrases
    fresh = open_corpus(tmp_path / "c.uv")
    assert {hit.chunk.document for hit in fresh.search("tenant rent", 9)} == {"a", "b"}


def test_two_folders_with_equal_names_do_not_overwrite_each_other(tmp_path, run, lm):
    model = saved(tmp_path / "model", lm)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text(f"{folder} {TEXT}")
    corpus = tmp_path / "c.uv"
    base = ("index", "--model", model, "-o", corpus, "--no-vectors")
    assert run(*base, tmp_path / "one").code == 0
    refused = run(*base[:5], tmp_path / "two")
    assert refused.code == 1
    assert "notes.txt" in refused.err and "--replace" in refused.err
    assert next(open_corpus(corpus).documents()).text.startswith("one")
    assert run(*base[:5], tmp_path / "two", "--replace").code == 0
    assert next(open_corpus(corpus).documents()).text.startswith("two")


def test_a_worker_that_comes_second_takes_what_is_there(tmp_path, monkeypatch):
    key = "0" * 32

    def write(folder):
        (folder / "a.bin").write_bytes(b"same")

    first = write_object(tmp_path, "shard", key, write)
    real, moved = os.replace, tmp_path / "moved"
    shutil.move(tmp_path / first.name, moved)

    def late(source, target):
        real(moved, target)
        raise OSError(errno.ENOTEMPTY, "not empty")

    monkeypatch.setattr(os, "replace", late)
    assert write_object(tmp_path, "shard", key, write) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@pytest.mark.parametrize("name", ["/dev/zero", "../../etc/passwd", "a/../b", ".hidden", "", "a//b"])
def test_no_file_name_leads_out_of_an_object(name):
    with pytest.raises(ValidationError):
        ObjectEntry(name=f"shard-{'0' * 32}", sha256="0" * 64, sizes={name: 1})
