"""Corpora forged with right checksums: a typed error or an answer, soon and in little memory."""

import io
import json
import os
from pathlib import Path

import numpy
import pytest

from conftest import make_llama, make_tokenizer, stir
from forged_corpora import (
    QUERY,
    check_forgeries,
    copied,
    read_fields,
    replaced,
    saved,
    seal,
    small_corpus,
    use,
    write_fields,
)
from univerb.corpus import open_corpus
from univerb.corpus.manifest import read_manifest
from univerb.corpus.vectors import row_format
from univerb.errors import CorpusError, CorruptCorpusError
from univerb.modeling.dynamic import DynamicLM


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def corpus(lm, tmp_path_factory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("corpus") / "c.uv", lm)


def test_forged_numbers_are_refused_by_name(corpus, lm, tmp_path):
    assert check_forgeries(corpus, lm, tmp_path / "c", step=29) > 30


def test_a_forgery_that_changes_nothing_is_a_corpus(corpus, lm, tmp_path):
    folder = copied(corpus, tmp_path / "c")
    seal(folder, read_fields(folder))
    use(folder, lm)


def test_a_forged_number_of_texts_asks_for_no_memory(corpus, lm, tmp_path):
    folder = copied(corpus, tmp_path / "c")
    path = next(folder.glob("objects/index-*/params.index.json"))
    path.write_text(json.dumps(replaced(json.loads(path.read_text()), ("num_docs",), 2**40)))
    seal(folder, read_fields(folder))
    assert open_corpus(folder).search(QUERY, 5) == open_corpus(corpus).search(QUERY, 5)
    fields = read_fields(folder)
    write_fields(folder, replaced(fields, ("chunks",), 2**40))
    with pytest.raises(CorruptCorpusError, match="another number of chunks"):
        open_corpus(folder).search(QUERY, 5)


def test_stored_vectors_that_are_not_finite_name_their_file(corpus, lm, tmp_path):
    folder = copied(corpus, tmp_path / "c")
    path = sorted(folder.glob("objects/vectors-*/rows.bin"))[-1]
    layout = row_format(read_manifest(folder))
    rows = numpy.frombuffer(path.read_bytes(), layout.record).copy()
    rows["scales"][-1, -1] = numpy.nan
    path.write_bytes(rows.tobytes())
    seal(folder, read_fields(folder))
    forged = open_corpus(folder)
    with pytest.raises(CorruptCorpusError, match=r"rows\.bin' holds vectors that are not finite"):
        forged.vectors(forged.phrases.ids(numpy.arange(len(forged.phrases))))
    with pytest.raises(CorruptCorpusError, match=r"rows\.bin"):
        forged.verify()


def test_tokens_that_the_model_does_not_know_are_not_encoded(corpus, lm, tmp_path):
    folder = copied(corpus, tmp_path / "c")
    for path in folder.glob("objects/shard-*/tokens.npy"):
        ids = numpy.load(io.BytesIO(path.read_bytes()))
        path.write_bytes(saved(numpy.where(ids == numpy.bincount(ids[ids > 0]).argmax(), 999, ids)))
    seal(folder, read_fields(folder))
    with pytest.raises(CorruptCorpusError, match="tokens that the model does not know"):
        use(folder, lm)


@pytest.mark.parametrize("name", ["manifest.json", "profile.json", "objects/phrases-*/sums.json"])
@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_a_device_or_a_pipe_in_place_of_a_file_is_not_read(corpus, lm, run, tmp_path, name, kind):
    folder = copied(corpus, tmp_path / "c")
    (folder / "profile.json").touch()
    path = next(folder.glob(name))
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    ran = run("inspect", folder, "--verify")
    assert ran.code == 1 and ran.err.startswith("error:") and ran.err.count("\n") == 1
    if name != "profile.json":
        with pytest.raises(CorpusError):
            use(folder, lm)
