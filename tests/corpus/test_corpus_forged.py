"""Corpora forged with right checksums: a typed error or an answer, soon and in little memory."""

import io
import json
import os
import resource
from pathlib import Path

import numpy
import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from forged_corpora import copied, forgeries, read_fields, replaced, saved, seal, write_fields
from univerb.corpus import encode as encoding
from univerb.corpus import open_corpus, shards
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import CorpusError, CorruptCorpusError, UniverbError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

QUERY = "tenant landlord rent"


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def corpus(lm, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "c.uv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_CHARACTERS", 600)
        patch.setattr(encoding, "BATCH", 64)
        documents = [Document(f"{TEXT} Clause {i * 'x'}. {TEXT}", f"d{i}") for i in range(3)]
        build_corpus(folder, documents, lm, CorpusSettings(max_words=20))
    return folder


def use(folder: Path, lm: DynamicLM) -> None:
    """Read everything that a corpus has, verify it and add a document."""
    corpus = open_corpus(folder)
    corpus.select(QUERY, lm.tokenizer, 9, others=True)
    corpus.vectors(corpus.phrases.ids(numpy.arange(len(corpus.phrases))))
    assert len(list(corpus.documents())) == len(corpus.listed())
    corpus.verify()
    CorpusBuilder(folder, lm.tokenizer, lm=lm).add([Document(f"A new one. {TEXT}", "new")])


def check_forgeries(corpus: Path, lm: DynamicLM, target: Path, step: int) -> int:
    """Use every `step`-th forged corpus; return how many were refused."""
    refused = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, forge in list(forgeries(corpus))[::step]:
        folder = copied(corpus, target)
        forge(folder)
        try:
            use(folder, lm)
        except UniverbError as error:
            assert str(error).count("\n") == 0 and len(str(error)) < 700, name
            assert "delete" not in str(error).lower(), name
            refused += 1
        except Exception as error:
            pytest.fail(f"{name}: {error!r}")
    # In kilobytes; what was the most before counts too.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    return refused


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
    rows = numpy.frombuffer(path.read_bytes(), numpy.float16).copy()
    rows[-1] = numpy.nan
    path.write_bytes(rows.tobytes())
    seal(folder, read_fields(folder))
    forged = open_corpus(folder)
    with pytest.raises(CorruptCorpusError, match=r"rows\.bin' holds vectors that are not finite"):
        forged.vectors(forged.phrases.ids(numpy.arange(len(forged.phrases))))
    with pytest.raises(CorruptCorpusError, match=r"rows\.bin"):
        forged.verify()


def test_tokens_that_the_model_does_not_know_are_not_encoded(corpus, lm, tmp_path):
    folder = copied(corpus, tmp_path / "c")
    for path in folder.glob("objects/shard-*/ids.npy"):
        ids = numpy.load(io.BytesIO(path.read_bytes()))
        path.write_bytes(saved(numpy.where(ids == numpy.bincount(ids[ids >= 0]).argmax(), 999, ids)))
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
