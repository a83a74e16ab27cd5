"""Readers keep the version that they opened, whatever writers do meanwhile."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import univerb
from conftest import TEXT, make_llama, make_tokenizer, stir
from corpus_traffic import document, traffic
from univerb.corpus import corpus as reading
from univerb.corpus import open_corpus
from univerb.corpus.build import CorpusBuilder
from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.objects import BLOCK, StoredObject, write_object
from univerb.errors import CorpusError, CorruptCorpusError
from univerb.files import map_array
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture
def builder(lm, tmp_path) -> CorpusBuilder:
    settings = CorpusSettings(max_words=20, dtype="float32")
    builder = CorpusBuilder(tmp_path / "c", lm.tokenizer, settings, lm=lm)
    secret = Document(f"{TEXT} Xylophonists juggle quartz.", "secret")
    builder.add([document(1), document(2), secret])
    return builder


def holds_secret(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return any(b"ylophonists" in path.read_bytes() for path in files)


def test_no_read_fails_while_others_write(lm, tmp_path):
    counts = traffic(tmp_path / "c", lm, readers=4, writers=2, seconds=5)
    assert not [(what, n) for what, n in counts.items() if what.startswith("failed")]
    assert counts["reads"] >= 4 and counts["added"] >= 2 and counts["removed"] >= 2


def test_a_version_that_goes_between_its_manifest_and_its_lease_is_opened_anew(
    builder, monkeypatch
):
    lease = reading.lease

    def late(*args):
        with monkeypatch.context() as patch:
            patch.setattr(reading, "lease", lease)
            builder.remove(["secret"])
        monkeypatch.setattr(reading, "lease", lease)
        return lease(*args)

    monkeypatch.setattr(reading, "lease", late)
    assert [d.name for d in open_corpus(builder.folder).documents()] == ["d1", "d2"]


def test_only_versions_that_are_read_stay(builder):
    first = open_corpus(builder.folder)
    for number in range(3, 7):
        builder.add([document(number)])
    assert len(list(builder.folder.glob("manifest-*.json"))) == 1
    names = {
        entry.name for c in (first, open_corpus(builder.folder)) for entry in c.manifest.entries()
    }
    assert {path.name for path in (builder.folder / "objects").iterdir()} == names
    every = numpy.arange(len(first.phrases))
    assert first.verify() and len(first.vectors(first.phrases.ids(every))[0]) == len(every)
    first.close()
    builder.add([document(7)])
    assert not list(builder.folder.glob("manifest-*.json"))


def test_a_reader_that_is_killed_keeps_nothing(builder):
    code = "import sys; from univerb.corpus import open_corpus; c = open_corpus(sys.argv[1])"
    code += "; print(len(c.search('rent', 5)), flush=True); input()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(builder.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(univerb.__file__).parents[1])},
    )
    with reader:
        assert reader.stdout.readline()
        builder.remove(["secret"])
        assert holds_secret(builder.folder), "it is being read"
        reader.kill()
        reader.wait()
    assert open_corpus(builder.folder).verify()
    assert not holds_secret(builder.folder)


def test_a_disk_that_cannot_be_written_is_read_and_left_as_it_is(builder, monkeypatch):
    reader = open_corpus(builder.folder)
    builder.remove(["secret"])
    reader.close()
    really_open = os.open

    def read_only(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really_open(path, flags, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        corpus = open_corpus(builder.folder)
        assert corpus.search("rent", 5) and corpus.verify()
        assert holds_secret(builder.folder), "only somebody who may write can finish"
    open_corpus(builder.folder)
    assert not holds_secret(builder.folder)


def test_a_corpus_that_is_only_kept_from_being_read_is_not_called_damaged(builder):
    """A limit of open files, as it could be a permission: nothing has to be built again."""
    builder.remove(["secret"])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    corpus = open_corpus(builder.folder)
    lowest = os.dup(0)
    os.close(lowest)
    actions = (
        lambda: open_corpus(builder.folder),
        lambda: corpus.search("rent", 3),
        lambda: corpus.phrases,
        corpus.listed,
        corpus.verify,
    )
    for more in range(12):
        for action in actions:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, limits[1]))
            try:
                action()
            except CorpusError as error:
                said = error
            else:
                continue
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert not isinstance(said, CorruptCorpusError), said
            assert "Too many open files" in str(said) and "try again" in str(said)
    assert corpus.verify()


def test_everything_is_on_the_disk_before_it_is_named_and_gone_before_it_is_forgotten(
    builder, monkeypatch
):
    """The order of writes that a power cut must not see changed."""
    events: list[tuple[str, str]] = []
    folder = builder.folder

    def recorded(name, describe):
        real = getattr(os, name)

        def call(*args, **kwargs):
            events.append((name, describe(*args)))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    recorded("fsync", lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
    recorded("replace", lambda source, target: str(target))
    recorded("unlink", lambda path, **_: str(path))
    builder.remove(["secret"])
    named = events.index(("replace", str(folder / "manifest.json")))
    synced = {Path(path).name for name, path in events[:named] if name == "fsync"}
    new = [Path(target) for name, target in events[:named] if name == "replace"]
    objects = [path for path in new if path.parent.name == "objects"]
    assert len(objects) >= 3
    assert {path.name for one in objects for path in one.rglob("*")} <= synced
    for path in (*objects, folder / "manifest.json"):
        at = events.index(("replace", str(path)))
        assert events[at + 1] == ("fsync", str(path.parent)), path
    (record,) = [path for path in new if path.name.startswith("manifest-")]
    assert record == new[-1], "the last before the manifest"
    forgotten = events.index(("unlink", str(record)))
    assert events[forgotten - 1] == ("fsync", str(folder / "objects"))
    deleted = [at for at, (name, _) in enumerate(events) if name == "unlink" and at < forgotten]
    assert deleted and named < min(deleted)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_every_block_is_checked_the_last_one_too(tmp_path, size):
    data = numpy.random.default_rng(size).bytes(size)
    entry = write_object(
        tmp_path,
        "shard",
        f"{size:064x}"[::-1],
        lambda f: (f / "text.npy").write_bytes(data) and None,
    )
    path = tmp_path / entry.name / "text.npy"
    assert StoredObject(tmp_path, entry).path("text.npy").read_bytes() == data
    for at in {0, size // 2, (size - 1) // BLOCK * BLOCK, size - 1}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptCorpusError, match=f"damaged near byte {at // BLOCK * BLOCK}"):
            StoredObject(tmp_path, entry).path("text.npy")


def test_a_damaged_last_row_is_found_when_it_is_read(builder):
    path = next((builder.folder / "objects").glob("vectors-*/rows.bin"))
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    corpus = open_corpus(builder.folder)
    assert len(corpus.vectors(corpus.phrases.ids(numpy.arange(1)))[0]) == 1
    last = int(corpus.phrases.rows.argmax())
    with pytest.raises(CorruptCorpusError, match=r"rows\.bin' is damaged"):
        corpus.vectors(corpus.phrases.ids(numpy.array([last])))


def test_a_folder_of_something_else_is_left_as_it_is(lm, tmp_path):
    """A repository has a folder `objects`, too."""
    (tmp_path / "repository" / "objects").mkdir(parents=True)
    with pytest.raises(CorpusError, match="holds no corpus"):
        open_corpus(tmp_path / "repository")
    with pytest.raises(CorpusError, match="no corpus"):
        CorpusBuilder(tmp_path / "repository", lm.tokenizer, CorpusSettings(), lm=lm)
    assert [path.name for path in (tmp_path / "repository").rglob("*")] == ["objects"]
    (tmp_path / "file").write_text("text")
    with pytest.raises(CorpusError, match="is no folder"):
        open_corpus(tmp_path / "file")


def test_a_version_that_comes_back_is_not_taken_for_one_that_goes(builder):
    reader = open_corpus(builder.folder)
    builder.add([document(7)])
    builder.remove([document(7).name])
    assert open_corpus(builder.folder).manifest == reader.manifest
    assert list(builder.folder.glob("manifest-*.json")) == []
    assert len(list(reader.documents())) == 3


def test_a_builder_that_is_only_alive_keeps_no_version(lm, builder):
    CorpusBuilder(builder.folder, lm.tokenizer, lm=lm).remove(["secret"])
    assert not holds_secret(builder.folder)


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_lock_that_is_never_given_back_is_an_error(builder, monkeypatch):
    import fcntl

    monkeypatch.setattr("univerb.files.PATIENCE", 0.0)
    (path,) = (builder.folder / "objects").glob("phrases-*/sums.json")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CorpusError, match="another process has locked it"):
            open_corpus(builder.folder)
    assert open_corpus(builder.folder).manifest.documents == 3


@pytest.mark.parametrize("array", [numpy.arange(3), numpy.zeros((2, 5), "f2"), numpy.ones(0, "u1")])
def test_arrays_are_mapped_as_numpy_wrote_them(tmp_path, array):
    numpy.save(tmp_path / "a.npy", array)
    assert numpy.array_equal(map_array(tmp_path / "a.npy", array.dtype, array.ndim), array)
    numpy.save(tmp_path / "b.npy", numpy.asfortranarray(numpy.ones((2, 3))))
    with pytest.raises(ValueError, match="plain numbers"):
        map_array(tmp_path / "b.npy")


@pytest.mark.parametrize(
    "folder", ["~nobody-here/x", "x" * 5000, 10**5000, None], ids=["home", "long", "huge", "none"]
)
def test_what_is_no_folder_is_no_corpus(lm, folder):
    with pytest.raises(CorpusError, match="there is no corpus"):
        open_corpus(folder)
    with pytest.raises(CorpusError, match="there is no corpus"):
        CorpusBuilder(folder, lm.tokenizer, CorpusSettings(), lm=lm)
