"""Corpora whose numbers were changed on purpose, with every checksum made right again."""

import hashlib
import io
import json
import math
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from conftest import TEXT
from univerb.corpus import encode, open_corpus, shards
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings, index_key, phrases_key
from univerb.corpus.objects import SUMS, ObjectEntry, ObjectSums, _file_sums
from univerb.errors import UniverbError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

QUERY = "tenant landlord rent"

WRONG = (0, -1, 1, 2**40, 2**70, 1e308, math.nan, "x", None, [1], {"a": {"b": 1}})
HEADERS = {
    "objects": lambda shape, descr: (shape, "|O", False),
    "huge": lambda shape, descr: ((2**40, *shape[1:]), descr, False),
    "overflowing": lambda shape, descr: ((2**62, 2**62), descr, False),
    "negative": lambda shape, descr: ((-1, *shape[1:]), descr, False),
    "fortran": lambda shape, descr: (shape, descr, True),
    "scalar": lambda shape, descr: ((), descr, False),
    "column": lambda shape, descr: ((*shape, 1), descr, False),
    "shorter": lambda shape, descr: ((max(shape[0] - 1, 0), *shape[1:]), descr, False),
    "bytes": lambda shape, descr: ((*shape[:-1], shape[-1] * int(descr[2:])), "|u1", False),
    "floats": lambda shape, descr: (shape, "<f" + descr[2:], False),
    "strings": lambda shape, descr: (shape, "|S" + descr[2:], False),
    "big-endian": lambda shape, descr: (shape, ">" + descr[1:], False),
    "structured": lambda shape, descr: (shape, [("a", descr)], False),
    "nonsense": lambda shape, descr: ("x", 7, None),
}
BYTES = {
    "zip": lambda data: b"PK\x03\x04" + data,
    "version": lambda data: data[:6] + b"\x03\x00" + data[8:],
    "nested": lambda data: data[:10] + b"(" * (len(data) - 10),
    "empty": lambda data: b"",
}


def _wide(array: Any) -> Any:
    is_whole = array.dtype.kind in "iu"
    return numpy.full_like(array, numpy.iinfo(array.dtype).max if is_whole else 1e38)


VALUES: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda a: a[::-1],
    "one more": lambda a: a + a.dtype.type(1),
    "one less": lambda a: a - a.dtype.type(1),
    "huge": _wide,
    "smallest": lambda a: ~_wide(a) if a.dtype.kind in "iu" else -_wide(a),
    "zeros": numpy.zeros_like,
    "not finite": lambda a: numpy.full_like(a, numpy.nan if a.dtype.kind == "f" else 77),
    "last huge": lambda a: numpy.concatenate([a[:-1], _wide(a[-1:])]),
    "first negative": lambda a: numpy.concatenate([(a[:1] * 0 - 3).astype(a.dtype), a[1:]]),
    "wrapped": lambda a: (a.astype(numpy.uint64) + numpy.uint64(2**63)).astype(a.dtype),
    "empty": lambda a: a[:0],
    "longer": lambda a: numpy.concatenate([a, a]),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where the numbers of a JSON value are."""
    if isinstance(value, dict):
        return [p for key, one in value.items() for p in places(one, (*path, key))]
    if isinstance(value, list):
        return [p for i, one in enumerate(value) for p in places(one, (*path, i))]
    return [path] if isinstance(value, int | float) else []


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with another one at a place."""
    value = json.loads(json.dumps(value))
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return value


def read_fields(folder: Path) -> dict[str, Any]:
    return json.loads(json.loads((folder / "manifest.json").read_text())["body"])


def write_fields(folder: Path, fields: dict[str, Any]) -> None:
    """Write a manifest with the right hash."""
    body = json.dumps(fields)
    outer = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    (folder / "manifest.json").write_text(json.dumps(outer))


def seal(folder: Path, fields: dict[str, Any]) -> None:
    """Make all checksums, sizes and names right, as somebody would who forges a corpus."""
    root = folder / "objects"

    def sealed(entry: dict[str, Any]) -> dict[str, Any]:
        inside = root / entry["name"]
        paths = sorted(p for p in inside.rglob("*") if p.is_file() and p.name != SUMS)
        sums = ObjectSums(files={p.relative_to(inside).as_posix(): _file_sums(p) for p in paths})
        content = sums.model_dump_json()
        (inside / SUMS).write_text(content)
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        return {"name": entry["name"], "sha256": sha256, "sizes": sums.sizes}

    for kind in ("shards", "vectors"):
        fields[kind] = [sealed(entry) for entry in fields[kind]]
    shards, vectors = ([ObjectEntry(**entry) for entry in fields[k]] for k in ("shards", "vectors"))
    try:
        settings = CorpusSettings(**fields["settings"])
    except Exception:  # refused by itself
        settings = CorpusSettings()
    keys = {"index": index_key(shards), "phrases": phrases_key(shards, settings, vectors)}
    for kind, key in keys.items():
        name = f"{kind}-{key}"
        if name != fields[kind]["name"]:
            (root / fields[kind]["name"]).rename(root / name)
        fields[kind] = sealed({"name": name})
    write_fields(folder, fields)


def with_header(data: bytes, change: Callable[[Any, Any], Any]) -> bytes:
    """Return a .npy file with another header before the same numbers."""
    array = numpy.load(io.BytesIO(data))
    shape, descr, is_fortran = change(array.shape, array.dtype.str)
    text = repr({"descr": descr, "fortran_order": is_fortran, "shape": shape}).encode()
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11 + 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=False)
    return file.getvalue()


def array_forgeries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield other contents of a .npy file."""
    array = numpy.load(io.BytesIO(data))
    for name, change in HEADERS.items():
        yield f"header {name}", with_header(data, change)
    for name, bytes_of in BYTES.items():
        yield f"bytes {name}", bytes_of(data)
    with numpy.errstate(all="ignore"):
        for name, values in VALUES.items():
            yield f"values {name}", saved(values(array))
            first, second = numpy.array_split(array, 2)
            mixed = numpy.concatenate([first, values(second)])
            yield f"values {name} in the second half", saved(mixed)


def json_forgeries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield other contents of a JSON file: wrong values of some of its numbers."""
    value = json.loads(data)
    found = places(value)
    for place in found[:: max(1, len(found) // 3)]:
        for new in WRONG:
            yield f"{place} {new}", json.dumps(replaced(value, place, new)).encode()
    for text in (b"", b"[]", b"{}", b"null", b"[" * 100_000, b"\xff", b'{"a": 1}'):
        yield f"text {text[:9]!r}", text


Forge = Callable[[Path], None]
"""Forges a corpus in place."""


def forgeries(folder: Path) -> Iterator[tuple[str, Forge]]:
    """Yield the names of forgeries, and functions that make them of copies of this corpus."""
    fields = read_fields(folder)
    for place in places(fields):
        for new in WRONG:
            forge = _forged_manifest(replaced(fields, place, new), "sizes" not in place[1:])
            yield f"manifest {place} {new}", forge
    kinds: set[str] = set()
    for path in sorted((folder / "objects").rglob("*.*")):
        kind = f"{path.parent.name.partition('-')[0]}/{path.name}"
        if path.name != SUMS and kind not in kinds:
            kinds.add(kind)
            for what, data in _file_forgeries(path):
                yield f"{kind} {what}", _forged_file(path.relative_to(folder), data)
    for place in ("size", "blocks", "sha256"):
        for new in WRONG:
            yield f"sums {place} {new}", _forged_sums(place, new)


def _file_forgeries(path: Path) -> Iterator[tuple[str, bytes]]:
    data = path.read_bytes()
    if path.suffix == ".bin":
        return iter([("not finite", b"\xff" * len(data)), ("empty", b""), ("odd", data[:-1])])
    return array_forgeries(data) if path.suffix == ".npy" else json_forgeries(data)


def _forged_file(name: Path, data: bytes) -> Forge:
    def forge(copy: Path) -> None:
        (copy / name).write_bytes(data)
        seal(copy, read_fields(copy))

    return forge


def _forged_manifest(fields: dict[str, Any], is_sealed: bool) -> Forge:
    return lambda copy: seal(copy, fields) if is_sealed else write_fields(copy, fields)


def _forged_sums(place: str, new: Any) -> Forge:
    def forge(copy: Path) -> None:
        fields = read_fields(copy)
        for entry in (fields["index"], fields["phrases"]):
            path = copy / "objects" / entry["name"] / SUMS
            sums = json.loads(path.read_text())
            for file in sums["files"].values():
                is_text = place == "blocks" and new == "x"
                file[place] = "z" * len(file[place]) if is_text else new
            content = json.dumps(sums)
            path.write_text(content)
            entry["sha256"] = hashlib.sha256(content.encode()).hexdigest()
        write_fields(copy, fields)

    return forge


def copied(folder: Path, target: Path) -> Path:
    """Return a fresh copy of a corpus."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def small_corpus(folder: Path, lm: DynamicLM) -> Path:
    """Build a corpus of several objects of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_CHARACTERS", 600)
        patch.setattr(encode, "BATCH", 16)
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
