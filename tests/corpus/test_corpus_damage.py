"""A damaged corpus says so: at once, by name, without a crash, and without being changed."""

import hashlib
import json
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.corpus import encode as encoding
from univerb.corpus import open_corpus, shards
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import FORMAT, CorpusSettings
from univerb.errors import CorpusError, CorruptCorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.tokenizer import Tokenizer

QUERY = "tenant landlord rent"
MANIFEST = "manifest.json"


class DamagedCorpus:
    """A corpus to damage, and what it answers when it is whole."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        self.files = [path for path in found if path.name != "lock"]
        self.content = {path: path.read_bytes() for path in self.files}
        self.keys = self.open().phrases.ids(numpy.arange(len(self.open().phrases)))
        self.answers = self.ask()

    def open(self) -> Any:
        return open_corpus(self.folder)

    def ask(self) -> list[Any]:
        whole = self.open()
        selected = whole.select(QUERY, self.tokenizer, 9, others=True)
        vectors = [part.tolist() for part in whole.vectors(self.keys)]
        sources = [(p.ids, p.text, p.sources) for p in selected.phrases]
        return [whole.search(QUERY, 9), sources, vectors, list(whole.documents())]

    def state(self) -> list[tuple[int, int]]:
        stats = [path.stat() for path in self.files if path.exists()]
        return [(stat.st_mtime_ns, stat.st_size) for stat in stats]

    def restore(self) -> None:
        for path, data in self.content.items():
            path.write_bytes(data)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> DamagedCorpus:
    lm = stir(DynamicLM.wrap(make_llama(), make_tokenizer()))
    documents = [Document(f"{TEXT} Clause {i * 'x'}. {TEXT}", f"d{i}") for i in range(3)]
    folder = tmp_path_factory.mktemp("corpus") / "c.uv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_CHARACTERS", 600)
        patch.setattr(encoding, "BATCH", 16)
        build_corpus(folder, documents, lm, CorpusSettings(max_words=20))
    corpus = DamagedCorpus(folder, lm.tokenizer)
    manifest = corpus.open().manifest
    assert len(manifest.shards) == 3 and len(manifest.vectors) > 1
    return corpus


def check_refused(corpus: DamagedCorpus, what: object, must_refuse: bool = False) -> None:
    """Ask everything, then verify: the right answers or a typed error, and always an error last."""
    before = corpus.state()
    try:
        answers = corpus.ask()
    except CorpusError as error:
        assert str(error).count("\n") == 0 and len(str(error)) < 600, what
    else:
        assert not must_refuse and answers == corpus.answers, what
    with pytest.raises(CorpusError):
        corpus.open().verify()
        pytest.fail(f"not found by verify: {what}")
    assert corpus.state() == before, what


@pytest.fixture(autouse=True)
def restored(corpus: DamagedCorpus):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    corpus.restore()
    # In kilobytes; what was the most before counts too.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_whole_corpus_answers_and_verifies(corpus: DamagedCorpus):
    assert corpus.ask() == corpus.answers
    objects = corpus.folder / "objects"
    sizes = [path.stat().st_size for path in objects.rglob("*") if path.name != "sums.json"]
    folders = sum(path.stat().st_size for path in objects.rglob("*") if path.is_dir())
    assert corpus.open().verify() == sum(sizes) - folders


def test_every_file_cut_short_or_made_longer(corpus: DamagedCorpus):
    for path in corpus.files:
        data = corpus.content[path]
        points = {len(data) * i // 4 for i in range(4)} | {max(len(data) - 1, 0)}
        for point in sorted(points):
            path.write_bytes(data[:point])
            check_refused(corpus, (path, point), must_refuse=path.name != "sums.json")
        path.write_bytes(data + b"\0")
        check_refused(corpus, (path, "longer"))
        path.write_bytes(data)


def test_flipped_bits_of_every_file(corpus: DamagedCorpus):
    choose = random.Random(0)
    weights = [len(corpus.content[path]) for path in corpus.files]
    for path in [*corpus.files, *choose.choices(corpus.files, weights, k=60)]:
        data = bytearray(corpus.content[path])
        bit = choose.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        check_refused(corpus, (path, bit))
        path.write_bytes(corpus.content[path])


def test_files_swapped_also_of_equal_size(corpus: DamagedCorpus):
    by_size: dict[int, list[Path]] = {}
    for path in corpus.files:
        by_size.setdefault(len(corpus.content[path]), []).append(path)
    pairs = [(same[0], other) for same in by_size.values() for other in same[1:]]
    pairs = [(a, b) for a, b in pairs if corpus.content[a] != corpus.content[b]]
    assert len(pairs) > 9
    sizes = [same[0] for same in by_size.values()]
    for one, other in [*pairs, *zip(sizes[::4], sizes[1::4], strict=False)]:
        one.write_bytes(corpus.content[other])
        other.write_bytes(corpus.content[one])
        check_refused(corpus, (one, other))
        corpus.restore()


def test_objects_swapped_as_a_whole(corpus: DamagedCorpus, tmp_path: Path):
    for kind in ("shard", "vectors"):
        one, other = sorted((corpus.folder / "objects").glob(f"{kind}-*"))[:2]
        for source, goal in ((one, tmp_path / "x"), (other, one), (tmp_path / "x", other)):
            source.rename(goal)
        check_refused(corpus, kind, must_refuse=True)
        for source, goal in ((one, tmp_path / "x"), (other, one), (tmp_path / "x", other)):
            source.rename(goal)


def test_every_file_missing_or_a_folder(corpus: DamagedCorpus):
    for path in corpus.files:
        path.unlink()
        check_refused(corpus, path)
        path.mkdir()
        with pytest.raises(CorpusError):
            corpus.open().verify()
        path.rmdir()
        path.write_bytes(corpus.content[path])
    for folder in sorted((corpus.folder / "objects").iterdir()):
        folder.rename(folder.with_name("away"))
        check_refused(corpus, folder, must_refuse=True)
        folder.with_name("away").rename(folder)


def forge(corpus: DamagedCorpus, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and make its own hash right again."""
    fields = json.loads(json.loads(corpus.content[corpus.folder / MANIFEST])["body"])
    change(fields)
    body = json.dumps(fields)
    outer = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    (corpus.folder / MANIFEST).write_text(json.dumps(outer))


def numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for key, one in value.items() for p in numbers(one, (*path, key))]
    if isinstance(value, list):
        return [p for i, one in enumerate(value) for p in numbers(one, (*path, i))]
    return [path] if isinstance(value, int) else []


def test_one_number_of_the_manifest_changed_and_its_hash_made_right(corpus: DamagedCorpus):
    fields = json.loads(json.loads(corpus.content[corpus.folder / MANIFEST])["body"])
    places = numbers(fields)
    assert len(places) > 30
    for place in places:
        for new in (lambda n: 2**40, lambda n: -1, lambda n: 2**70, lambda n: n + 1, lambda n: 0):

            def change(fields: dict[str, Any], new=new, place=place) -> None:
                *above, last = place
                for key in above:
                    fields = fields[key]
                fields[last] = new(fields[last])

            forge(corpus, change)
            changed = json.loads((corpus.folder / MANIFEST).read_text())["body"]
            if json.loads(changed) != fields:
                check_refused(corpus, (place, changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(width=f["width"] // 2),
        lambda f: f.update(width=f["width"] * 2),
        lambda f: f.update(width=1),
        lambda f: f.update(is_tied=True),
        lambda f: f["settings"].update(dtype="float32"),
        lambda f: f["settings"].update(dtype="float64"),
        lambda f: f["settings"].update(sizes=[2, 1 << 40]),
        lambda f: f["settings"].update(content="xx"),
        lambda f: f["settings"].update(content=["en"]),
        lambda f: f["settings"].update(content=None),
        lambda f: f["settings"].update(whole_numbers=False),
        lambda f: f.update(format=1),
        lambda f: f["settings"].update(method="hybrid:bm25+bm25"),
        lambda f: f.update(byteorder="big"),
        lambda f: f.update(index=f["phrases"]),
        lambda f: f.update(phrases=None),
        lambda f: f.update(vectors=f["vectors"][:1]),
        lambda f: f.update(shards=f["shards"][::-1]),
        lambda f: f.update(vectors=f["vectors"][::-1]),
        lambda f: f.update(extra=1),
        lambda f: f["index"].update(name="../../etc"),
        lambda f: f["index"]["sizes"].update({"../../manifest.json": 1}),
        lambda f: f["shards"][0]["sizes"].clear(),
    ],
)
def test_a_manifest_forged_on_purpose(corpus: DamagedCorpus, change):
    forge(corpus, change)
    check_refused(corpus, "forged")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"body": 1, "sha256": ""}', "[" * 100_000, '"\\ud800"', "\0"]
)
def test_a_manifest_that_is_something_else(corpus: DamagedCorpus, text: str):
    (corpus.folder / MANIFEST).write_text(text)
    with pytest.raises(CorruptCorpusError, match=r"manifest.json.*univerb index"):
        corpus.open()


def test_a_corpus_of_a_newer_version_says_so(corpus: DamagedCorpus):
    forge(corpus, lambda fields: fields.update(format=FORMAT + 1, unheard_of=[1]))
    with pytest.raises(CorpusError, match=f"has format {FORMAT + 1}.*Update univerb") as raised:
        corpus.open()
    assert not isinstance(raised.value, CorruptCorpusError)


def test_no_corpus_where_one_is_looked_for(corpus: DamagedCorpus, tmp_path: Path):
    with pytest.raises(CorpusError, match=r"does not exist.*univerb index"):
        open_corpus(tmp_path / "nothing")
    with pytest.raises(
        CorpusError, match=r"holds no corpus. Build one with: univerb index DOCS -o"
    ):
        open_corpus(tmp_path)
    shutil.copytree(corpus.folder, tmp_path / "moved")
    assert open_corpus(tmp_path / "moved").search(QUERY, 9) == corpus.answers[0]
