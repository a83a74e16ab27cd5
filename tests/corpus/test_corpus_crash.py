"""Builds that are killed, that share their work, or that cannot write."""

import dataclasses
import errno
import os
import pickle
import random
import threading
from pathlib import Path

import numpy
import pytest

from conftest import TEXT, make_gpt2, make_llama, make_tokenizer, saved, with_fresh_encoder
from killed_builds import HOW, Killed, content, documents, started_session
from univerb import files
from univerb.corpus import build as building
from univerb.corpus import encode as encoding
from univerb.corpus import manifest, open_corpus, shards
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import MinedPhrases
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import local_workers
from univerb.phrase import Document


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with started_session(tmp_path_factory.mktemp("session")) as session:
        yield session


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    backbone = saved(folder / "lm", DynamicLM.wrap(make_gpt2(), make_tokenizer()))
    with_fresh_encoder(backbone).save_pretrained(folder / "encoder")
    return folder / "encoder"


@pytest.fixture
def lm(model: Path) -> DynamicLM:
    return DynamicLM.from_pretrained(str(model))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["build", "append", "remove"])
def test_killed_at_any_moment_old_or_new_is_there_and_the_rest_goes_on(session, tmp_path, verb):
    killed = Killed(session, verb, tmp_path)
    moments = set(random.Random(verb).sample(range(1, killed.calls + 1), 8))
    if verb == "remove":
        # The last calls delete what was removed.
        moments |= {killed.calls - 3 * i for i in range(8)}
    killed.check(sorted(moments))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_processes_and_ray_write_the_same_bytes(session, lm, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 400)
    plain = HOW.model_copy(update={"vectors": False})
    for name, pool in (("one", local_workers(1)), ("two", local_workers(2))):
        CorpusBuilder(tmp_path / name, lm.tokenizer, plain, workers=pool).add(documents("build"))
    session.run("build", tmp_path / "ray", ray=1)
    one, two, ray = (content(tmp_path / name) for name in ("one", "two", "ray"))
    assert len(one) > 20 and one == two == ray


def test_a_worker_encodes_with_a_model_of_its_own(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "_loaded", {})
    expected = build_corpus(tmp_path / "c", documents("build"), lm, HOW).manifest.vectors
    phrases = open_corpus(tmp_path / "c").phrases
    keys = phrases.ids(numpy.arange(len(phrases)))
    mined = MinedPhrases(
        numpy.array([i for key in keys for i in key], numpy.int32), phrases.ends, phrases.counts
    )
    every = numpy.arange(len(keys))
    tasks = encoding.encode_tasks(lm, tmp_path / "worker", mined, every, "int8")
    sent = pickle.loads(pickle.dumps(tasks))
    encoding._loaded.clear()
    assert tuple(map(encoding.encode_batch, sent)) == expected
    encoding._loaded.clear()
    other = dataclasses.replace(sent[0], fingerprint="another", root=tmp_path / "other")
    with pytest.raises(CorpusError, match="not the one that the corpus is built with"):
        encoding.encode_batch(other)


@pytest.mark.parametrize(
    ("number", "place"), [(errno.ENOSPC, "sync"), (errno.EIO, "save"), (errno.EROFS, "manifest")]
)
def test_a_disk_that_fails_leaves_the_old_corpus(lm, tmp_path, monkeypatch, number, place):
    build_corpus(tmp_path / "c", documents("build"), lm, HOW)
    before = content(tmp_path / "c")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if place == "manifest":
            patch.setattr(manifest, "atomic_write", fail)
        elif place == "sync":
            patch.setattr(files, "sync", fail)
        else:
            patch.setattr(encoding.Path, "write_bytes", fail)
        with pytest.raises(CorpusError, match=os.strerror(number)):
            build_corpus(tmp_path / "c", documents("append"), lm)
    after = content(tmp_path / "c")
    assert {name: after[name] for name in before} == before
    assert open_corpus(tmp_path / "c").verify()
    assert not [name for name in after if "/." in name], "no halves are left"
    build_corpus(tmp_path / "c", documents("append"), lm)
    build_corpus(tmp_path / "fresh", documents("build"), lm, HOW)
    build_corpus(tmp_path / "fresh", documents("append"), lm)
    assert content(tmp_path / "c") == content(tmp_path / "fresh")


def test_a_path_that_is_a_file_or_cannot_be_made(lm, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(CorpusError, match="cannot be written"):
            build_corpus(folder, documents("build"), lm)
    assert (tmp_path / "file").read_text() == "mine"


def test_one_writer_at_a_time_and_each_sees_what_was_written_before(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "PATIENCE", 0)
    first, second = (CorpusBuilder(tmp_path / "c", lm.tokenizer, HOW, lm=lm) for _ in range(2))
    refused: list[str] = []

    def meanwhile(*_: object) -> None:
        with pytest.raises(CorpusError, match="being written by another process") as raised:
            second.add([Document("Something else.", "other")])
        refused.append(str(raised.value))

    busy = CorpusBuilder(tmp_path / "c", lm.tokenizer, HOW, lm=lm, progress=meanwhile)
    busy.add(documents("build"))
    assert refused
    first.add(documents("append"))
    second.add([Document("Something else.", "other")])
    found = {document.name for document in open_corpus(tmp_path / "c").documents()}
    assert found == {"d0", "d1", "d2", "d3", "d4", "other"}
    assert open_corpus(tmp_path / "c").verify()
    other = CorpusBuilder(tmp_path / "new", lm.tokenizer, CorpusSettings(max_words=9), lm=lm)
    CorpusBuilder(tmp_path / "new", lm.tokenizer, HOW, lm=lm).add(documents("build"))
    with pytest.raises(CorpusError, match="other settings"):
        other.add(documents("append"))


def test_readers_in_threads_agree(lm, tmp_path):
    corpus = build_corpus(tmp_path / "c", documents("build"), lm, HOW)
    expected = corpus.select(TEXT, lm.tokenizer, 5).phrases
    fresh, results = open_corpus(tmp_path / "c"), []

    def read() -> None:
        phrases = fresh.select(TEXT, lm.tokenizer, 5).phrases
        results.append((phrases, fresh.vectors([p.ids for p in phrases])[1].sum()))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [phrases for phrases, _ in results] == [expected] * 6
    assert len({float(total) for _, total in results}) == 1


def test_another_model_is_refused(lm, tmp_path):
    corpus = build_corpus(tmp_path / "c", documents("build"), lm, HOW)
    other = DynamicLM.wrap(make_llama(seed=3), make_tokenizer())
    with pytest.raises(CorpusError, match="another encoder"):
        other.attach(corpus)
    with pytest.raises(CorpusError, match="another encoder"):
        CorpusBuilder(tmp_path / "c", other.tokenizer, lm=other)
    half = DynamicLM.from_pretrained(lm.name, dtype="bfloat16")
    with pytest.raises(CorpusError, match=r"another encoder.*dtype"):
        half.attach(corpus)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["tenantry"])
    strange = DynamicLM.wrap(make_gpt2(), tokenizer)
    for use in (
        lambda: CorpusBuilder(tmp_path / "c", strange.tokenizer, lm=strange),
        lambda: corpus.select("rent", strange.tokenizer),
    ):
        with pytest.raises(CorpusError, match="another tokenizer"):
            use()
