"""Builds that are killed, that share their work, or that cannot write."""

import dataclasses
import errno
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

import univerb
from conftest import TEXT, make_gpt2, make_llama, make_tokenizer, saved
from univerb import files
from univerb.corpus import encode as encoding
from univerb.corpus import manifest, open_corpus, shards
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import MinedPhrases
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import local_workers
from univerb.phrase import Document

HOW = CorpusSettings(max_words=16, sizes=(2, 4))

# One command of a user, in a process of its own. It stops at the n-th system call that brings
# something onto the disk, and says on standard output what it computes.
DRIVER = """
import os, signal, sys
from pathlib import Path
from univerb.corpus import build as building
from univerb.corpus import encode as encoding
from univerb.corpus import shards
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import make_workers
from univerb.corpus import objects
from univerb.corpus.manifest import CorpusSettings
from test_corpus_crash import HOW, documents

def counted(module, name):
    real = getattr(module, name)
    def write(task, folder):
        print(name, module.__name__.rpartition(".")[2], task.key[:8], flush=True)
        return real(task, folder)
    setattr(module, name, write)

def main(model, folder):
    lm = DynamicLM.from_pretrained(model)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, target, last, ray = line.split()
        if ray == "1":
            plain = HOW.model_copy(update={"vectors": False})
            shards.SHARD_CHARACTERS = 400
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen to this machine only
            import ray as cluster
            cluster.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            pool = make_workers(ray_address="auto")
            builder = building.CorpusBuilder(target, lm.tokenizer, plain, workers=pool)
            builder.add(documents(verb))
        elif os.fork() == 0:
            run(lm, Path(target), verb, int(last))
            os._exit(0)
        else:
            os.wait()
        print("end", flush=True)

def run(lm, folder, verb, last):
    shards.SHARD_CHARACTERS, encoding.BATCH = 400, 32
    counted(shards, "_write")
    counted(encoding, "_write")
    left = [last]
    def stop_at(name):
        real = getattr(os, name)
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        setattr(os, name, call)
    for name in ("fsync", "replace", "mkdir", "rmdir", "unlink"):
        stop_at(name)
    builder = building.CorpusBuilder(folder, lm.tokenizer, HOW, lm=lm)
    if verb == "remove":
        builder.remove(["d1", "d4"])
    else:
        builder.add(documents(verb))
    print("calls", last - left[0], flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def documents(verb: str) -> list[Document]:
    first = [Document(f"{TEXT} Clause {'x' * i}.", f"d{i}") for i in range(4)]
    if verb == "build":
        return first
    return [
        Document(f"{TEXT} A new clause, a new clause.", "d1"),
        Document(f"Another text of another day. {TEXT}", "d4"),
    ]


class Session:
    """A process that has loaded the model and runs commands in children of its own."""

    def __init__(self, model: Path, script: Path) -> None:
        script.write_text(DRIVER)
        tests = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        paths = os.pathsep.join([*tests, str(Path(univerb.__file__).parents[1])])
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(model), "x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        assert self._line() == "ready"

    def run(self, verb: str, folder: Path, last: int = 1 << 30, ray: int = 0):
        """Return what was computed, and how many calls there were if it came to its end."""
        assert self.process.stdin
        self.process.stdin.write(f"{verb} {folder} {last} {ray}\n")
        self.process.stdin.flush()
        made, calls = [], None
        while (line := self._line()) != "end":
            if line.startswith("calls"):
                calls = int(line.split()[1])
            else:
                made.append(line)
        return made, calls

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the driver died"
        return line.strip()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return saved(folder, DynamicLM.wrap(make_gpt2(), make_tokenizer()))


@pytest.fixture(scope="module")
def session(model: Path, tmp_path_factory):
    session = Session(model, tmp_path_factory.mktemp("driver") / "driver.py")
    yield session
    session.process.stdin.close()
    session.process.wait(30)


@pytest.fixture
def lm(model: Path) -> DynamicLM:
    return DynamicLM.from_pretrained(str(model))


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["build", "append", "remove"])
def test_killed_at_any_moment_old_or_new_is_there_and_the_rest_goes_on(session, tmp_path, verb):
    before = [] if verb == "build" else ["build"] if verb == "append" else ["build", "append"]
    whole = tmp_path / "whole"
    for step in before:
        session.run(step, whole)
    old = content(whole) if before else {}
    made, calls = session.run(verb, whole)
    new = content(whole)
    assert calls > 20 and len(made) >= (2 if verb != "remove" else 0)
    moments = sorted(random.Random(verb).sample(range(1, calls + 1), 8))
    for moment in moments:
        folder = tmp_path / f"killed{moment}"
        for name, data in old.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        first, ended = session.run(verb, folder, moment)
        assert ended is None, "it was killed"
        if before or (folder / "manifest.json").exists():
            corpus = open_corpus(folder)
            corpus.verify()
            now = (folder / "manifest.json").read_bytes()
            assert now in (old.get("manifest.json"), new["manifest.json"])
        done = {path.name.partition("-")[2][:8] for path in (folder / "objects").glob("[!.]*")}
        try:
            second, ended = session.run(verb, folder)
        except AssertionError:
            pytest.fail(f"{verb} does not go on after {moment}")
        assert not {line.split()[2] for line in second} & done, "nothing is computed again"
        if ended is None:
            # A removal that had been done: the second says that there is no such document.
            assert verb == "remove"
        assert content(folder) == new, (verb, moment)


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
    tasks = encoding.encode_tasks(lm, tmp_path / "worker", mined, every, "float16")
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


def test_one_writer_at_a_time_and_each_sees_what_was_written_before(lm, tmp_path):
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
