"""`univerb lab data`: what is there, what is damaged, and what can be fetched."""

import gzip
import json
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import data_directory
from judge_server import LOOPBACK
from tiny_data import tiny_data
from univerb.errors import DocumentError, OptionError
from univerb.lab import data_sets
from univerb.lab.data import CORPORA, TRAINING_TEXT
from univerb.lab.data_sets import check_data, fetch_data
from univerb.lab.protocols.paper_tables import ASQA
from univerb.lab.protocols.passages import TEST_SETS


def states(folder):
    return {check.data_set.file: (check.state, check.found) for check in check_data(folder)}


def test_every_file_that_a_table_reads_is_listed():
    files = {test_set.file for test_set in TEST_SETS.values()} | {ASQA, TRAINING_TEXT}
    files |= {file for sources in CORPORA.values() for file in sources}
    assert files <= {each.file for each in data_sets.data_sets()}
    for each in data_sets.data_sets():
        assert each.address.startswith("https://") and each.licence and each.source


def test_the_shared_data_is_whole():
    found = states(data_directory())
    assert found["wikitext103/wiki.test.tokens"] == ("present", "245,569 tokens")
    assert found["wikitext103/wiki.valid.tokens"] == ("present", "217,646 tokens")
    assert found["law/lawmt.test.en"] == ("present", "2,000 lines")
    assert found["asqa/asqa_200_with_docs.json.gz"] == ("present", "200 questions")
    assert not any(state == "damaged" for state, _ in found.values())


def test_missing_and_damaged_files(run, tmp_path):
    assert {state for state, _ in states(None).values()} == {"missing"}
    folder = tiny_data(tmp_path / "data")
    (folder / "law/lawmt.test.en").unlink()
    (folder / "wikitext103/wiki.test.tokens").unlink()
    ran = run("lab", "data", "--data", folder)
    assert ran.code == 0, ran.err
    assert "missing law/lawmt.test.en" in ran.out and "present wiki/train-00.jsonl.gz" in ran.out
    (folder / "wikitext103/wiki.test.tokens").write_text(" only a part \n")
    (folder / "law/jrc-acquis.en").write_bytes(b"\xff\xfe\n")
    (folder / "law/eurlex.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 99)[:-20])
    (folder / "wiki/train-00.jsonl.gz").write_bytes(gzip.compress(b'["text"]\n'))
    (folder / "asqa/asqa_200_with_docs.json.gz").write_bytes(b"no gzip")
    ran = run("lab", "data", "--data", folder)
    assert ran.code == 1
    assert "damaged wikitext103/wiki.test.tokens (4 tokens, not 245569)" in ran.out
    ran = run("lab", "data", "--data", folder, "--json")
    assert ran.code == 1
    damaged = {each["file"] for each in ran.json if each["state"] == "damaged"}
    assert damaged == {
        "wikitext103/wiki.test.tokens",
        "law/jrc-acquis.en",
        "law/eurlex.jsonl.gz",
        "wiki/train-00.jsonl.gz",
        "asqa/asqa_200_with_docs.json.gz",
    }


def test_errors_about_missing_files_name_the_verb(run, tmp_path, tiny_encoder, tiny_folder):
    empty = tmp_path / "empty"
    empty.mkdir()
    models = ("--model", tiny_encoder, "--featuriser", tiny_folder)
    for table in ("main", "asqa"):
        ran = run("lab", "reproduce", table, *models, "--data", empty, "-o", tmp_path / "out")
        assert ran.code == 1
        assert "univerb lab data" in " ".join(ran.err.split())


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder behind a server on the loopback, which the archives' addresses lead to."""
    root = tmp_path / "served"
    root.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(root))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/archive.zip"
    known = data_sets.data_sets()
    ours = [each.model_copy(update={"archive": each.archive and address}) for each in known]
    monkeypatch.setattr(data_sets, "data_sets", lambda: ours)
    yield root
    server.shutdown()
    server.server_close()


def write_archive(root, names, folder="wikitext-103"):
    with zipfile.ZipFile(root / "archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{folder}/{name}", f" {name} \n")


NAMES = ["wiki.test.tokens", "wiki.valid.tokens", "wiki.train.tokens"]


@LOOPBACK
def test_fetching_takes_what_is_missing_out_of_the_archive(run, served, tmp_path):
    write_archive(served, [*NAMES, "other.txt"], folder="../../escaping")
    folder = tmp_path / "data"
    (folder / "wikitext103").mkdir(parents=True)
    (folder / "wikitext103/wiki.valid.tokens").write_text("mine")
    ran = run("lab", "data", "--fetch", "wikitext103", "--data", folder)
    # The files are not the real ones, and that is said.
    assert ran.code == 1 and "damaged wikitext103/wiki.test.tokens" in ran.out
    contents = {path.name: path.read_text() for path in (folder / "wikitext103").iterdir()}
    assert contents == {
        "wiki.test.tokens": " wiki.test.tokens \n",
        "wiki.train.tokens": " wiki.train.tokens \n",
        "wiki.valid.tokens": "mine",
    }
    assert not list(tmp_path.rglob("other.txt"))
    (served / "archive.zip").unlink()
    assert fetch_data("wikitext103", folder) == []


@LOOPBACK
def test_archives_that_cannot_be_used_leave_nothing(served, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    with pytest.raises(DocumentError, match="404.*by hand"):
        fetch_data("wikitext103", folder)
    (served / "archive.zip").write_bytes(b"no archive")
    with pytest.raises(DocumentError, match="not a zip file"):
        fetch_data("wikitext103", folder)
    write_archive(served, NAMES[1:])
    with pytest.raises(DocumentError, match="it has no wiki.test.tokens"):
        fetch_data("wikitext103", folder)
    write_archive(served, NAMES)
    monkeypatch.setattr(data_sets, "_MAX_FILE", 5)
    with pytest.raises(DocumentError, match="larger than"):
        fetch_data("wikitext103", folder)
    monkeypatch.setattr(data_sets, "_MAX_ARCHIVE", 5)
    with pytest.raises(DocumentError, match="larger than"):
        fetch_data("wikitext103", folder)
    assert list((folder / "wikitext103").iterdir()) == []


def test_what_cannot_be_fetched_names_its_page(tmp_path):
    with pytest.raises(OptionError, match="'law' cannot be fetched; wikitext103 can.*https://"):
        fetch_data("law", tmp_path)
    with pytest.raises(OptionError, match="Did you mean 'wikitext103'"):
        fetch_data("wikitext", tmp_path)


def test_fetching_needs_a_folder(run, tmp_path, monkeypatch):
    monkeypatch.delenv("UNIVERB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    ran = run("lab", "data", "--fetch", "wikitext103")
    assert ran.code == 1 and "--data or UNIVERB_DATA" in ran.err
    assert {each["state"] for each in json.loads(run("lab", "data", "--json").out)} == {"missing"}


def test_json_that_is_nested_too_deep_is_damaged(tmp_path):
    (tmp_path / "wiki").mkdir()
    with gzip.open(tmp_path / "wiki" / "train-00.jsonl.gz", "wb") as file:
        file.write(b"[" * 200_000)
    assert states(tmp_path)["wiki/train-00.jsonl.gz"][0] == "damaged"
