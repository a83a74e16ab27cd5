"""`univerb index`, `univerb inspect` and `--corpus`, as a user types them."""

import functools
import json
from pathlib import Path

import pytest

from conftest import TEXT, make_tokenizer, saved_encoder
from univerb.cli import index as cli_index
from univerb.corpus import encode as encoding
from univerb.corpus import open_corpus
from univerb.errors import CorpusError
from univerb.files import exclusive_lock
from univerb.tokenizer import Tokenizer

DEMO = Path(cli_index.__file__).parents[1] / "assets" / "demo"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    return saved_encoder(folder)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "lease.txt").write_text(f"{TEXT} {TEXT}")
    (folder / "家 🙂.txt").write_text("The rent is due. The rent is due each month.")
    return folder


@pytest.fixture
def index(run, model, tmp_path):
    return functools.partial(run, "index", "--model", model, "-o", tmp_path / "c.uv")


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Fail as soon as a model would be loaded."""
    monkeypatch.setattr(cli_index, "load_model", lambda *_, **__: pytest.fail("it was loaded"))


def test_build_append_remove_and_inspect(index, run, docs, tmp_path):
    corpus = tmp_path / "c.uv"
    ran = index(docs)
    assert ran.code == 0 and "2 documents" in ran.out and "phrases" in ran.out
    before = open_corpus(corpus).manifest
    (docs / "new.txt").write_text("A new clause of a new lease. A new clause.")
    data = index(docs, "--json").json
    assert data["documents"] == 3 and data["corpus"] == str(corpus)
    assert data["phrase_count"] > before.phrase_count and data["bytes"] > 0
    ran = index("--remove", "new.txt", "--json")
    assert ran.json["documents"] == 2
    assert open_corpus(corpus).manifest.phrase_count == before.phrase_count
    shown = run("inspect", corpus)
    assert shown.code == 0 and "lease.txt" in shown.out and "家 🙂.txt" in shown.out
    facts = run("inspect", corpus, "--verify", "--json", "--limit", "1").json
    assert facts["documents"] == 2 and len(facts["documents_listed"]) == 1
    assert facts["verified_bytes"] == facts["bytes"]["all"]
    assert sum(facts["phrases_by_length"].values()) == facts["phrases"]
    assert facts["settings"]["dtype"] == "int8"


def test_a_damaged_corpus_is_found_by_inspect(index, run, docs, tmp_path):
    index(docs)
    path = next((tmp_path / "c.uv" / "objects").glob("vectors-*/rows.bin"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run("inspect", tmp_path / "c.uv").code == 0
    ran = run("inspect", tmp_path / "c.uv", "--verify")
    assert ran.code == 1 and ran.err.startswith("error:") and "rows.bin" in ran.err
    assert ran.err.count("\n") == 1 and not ran.out


def test_generate_from_a_corpus(index, run, model, docs, tmp_path):
    index(docs)
    ran = run(
        *("generate", "The tenant shall", "--corpus", tmp_path / "c.uv", "--model", model),
        *("--mode", "atomic", "--phrase-bias", "900", "--max-tokens", "12", "--json"),
    )
    assert ran.code == 0
    text = f"{TEXT} {TEXT}"
    places = [s for piece in ran.json["pieces"] for s in piece.get("sources", [])]
    assert places
    for place in places:
        if place["document"] == "lease.txt":
            assert text[place["start"] : place["end"]].strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give documents"),
        (["--remove", "x"], "no corpus yet"),
        (["nowhere.txt"], "nowhere.txt"),
        (["DOCS", "--max-words", "0"], "--max-words"),
        (["DOCS", "--sizes", "1-3"], "at least 2 tokens"),
        (["DOCS", "--sizes", "2-99"], "sizes"),
        (["DOCS", "--sizes", "x"], "sizes"),
        (["DOCS", "--method", "bm52"], "bm52"),
        (["DOCS", "--splitter", "rulez"], "rulez"),
        (["DOCS", "--min-count", "0"], "--min-count"),
        (["DOCS", "--content", "english"], "da, de, en"),
        (["DOCS", "--overlap", "-1"], "--overlap"),
    ],
)
def test_what_cannot_be_is_said_before_the_model_is_loaded(
    index, docs, no_model, tmp_path, arguments, said
):
    ran = index(*(docs if one == "DOCS" else one for one in arguments))
    assert ran.code == 1 and said in ran.err and ran.err.startswith("error:")
    assert ran.err.count("\n") == 1 and not (tmp_path / "c.uv").exists()


def test_an_output_that_is_a_file_and_a_name_that_is_not_there(index, docs, run, model, tmp_path):
    (tmp_path / "file").write_text("mine")
    ran = run("index", docs, "--model", model, "-o", tmp_path / "file")
    assert ran.code == 1 and "is a file" in ran.err and ran.err.count("\n") == 1
    index(docs)
    ran = index("--remove", "nobody.txt")
    assert ran.code == 1 and "no document 'nobody.txt'" in ran.err
    assert run("inspect", tmp_path / "nothing").code == 1
    assert json.loads(index(docs, "--json").out)["documents"] == 2


def test_settings_that_differ_from_those_of_the_corpus_are_refused(run, model, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = tmp_path / "own.uv"
    base = ("index", tmp_path / "a.txt", "-o", corpus, "--model", model)
    assert run(*base, "--min-count", 1).code == 0
    assert run(*base).code == 0
    assert run(*base, "--min-count", 1).code == 0
    ran = run(*base, "--min-count", 3)
    assert ran.code == 1
    assert "min" in ran.err and "= 1" in ran.err


@pytest.mark.parametrize("content", ["en", "none"])
def test_glue_is_indexed_and_selected_only_if_any_words_may_be(run, model, tmp_path, content):
    (tmp_path / "a.txt").write_text("the rent of the day of the rent of the notice at 1,500")
    corpus = tmp_path / "own.uv"
    base = ("index", tmp_path / "a.txt", "-o", corpus, "--model", model)
    assert run(*base, "--content", content, "--no-whole-numbers").code == 0
    built = open_corpus(corpus)
    assert built.manifest.settings.content == (None if content == "none" else content)
    tokenizer = Tokenizer(make_tokenizer().backend_tokenizer)
    for others in (False, True):
        selected = [p.text for p in built.select("rent", tokenizer, others=others).phrases]
        assert (" of the" in selected) is (content == "none")
        assert " of the rent" in selected or " the rent" in selected
    assert " at 1" in selected
    ran = run("generate", "x", "--corpus", corpus, "--content", "de", "--model", model)
    assert ran.code == 1 and "--content" in ran.err and "--docs" in ran.err
    ran = run(*base, "--content", "de")
    assert ran.code == 1 and "content" in ran.err


def test_an_interrupted_build_says_how_to_go_on(index, run, docs, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    corpus = tmp_path / "c.uv"
    again = "Run the same command again to continue."
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode_batch", interrupt)
        ran = index(docs)
    assert ran.code == 130 and again in ran.err and not ran.out
    ran = run("inspect", corpus)
    assert ran.code == 1 and "was interrupted" in ran.err and "command again to continue" in ran.err
    kept = {path.name for path in (corpus / "objects").iterdir()}
    assert kept
    assert index(docs).code == 0
    assert kept <= {path.name for path in (corpus / "objects").iterdir()}
    assert "change" not in run("inspect", corpus, "--json").json
    (docs / "new.txt").write_text("A new clause of a new lease. A new clause.")
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode_batch", interrupt)
        assert again in index(docs).err
    shown = run("inspect", corpus)
    assert shown.code == 0 and "interrupted: run the same" in shown.out
    assert index(docs).code == 0
    assert "interrupted" not in run("inspect", corpus).out


def test_a_corpus_that_is_being_built_or_changed_says_so(index, run, docs, tmp_path):
    corpus, busy = tmp_path / "c.uv", CorpusError("busy")
    (corpus / "objects").mkdir(parents=True)
    with exclusive_lock(corpus / "lock", busy):
        ran = run("inspect", corpus)
        assert ran.code == 1 and "is being built. Wait" in ran.err
    index(docs)
    with exclusive_lock(corpus / "lock", busy):
        assert run("inspect", corpus, "--json").json["change"].startswith("under way")


def test_inspect_reports_every_file_that_is_not_of_the_corpus(index, run, docs, tmp_path):
    index(docs)
    corpus = tmp_path / "c.uv"
    facts = run("inspect", corpus, "--verify", "--json").json
    assert facts["unknown_files"] == [] and "change" not in facts
    shard = next((corpus / "objects").glob("shard-*"))
    for path in (corpus / "notes\033[1m.txt", shard / "more.npy", corpus / "objects" / "mine"):
        path.write_text("mine")
    (corpus / "objects" / f"shard-{'0' * 32}").mkdir()
    (corpus / "objects" / f"shard-{'0' * 32}" / "text.npy").touch()
    facts = run("inspect", corpus, "--verify", "--json").json
    unknown = ["notes\033[1m.txt", "objects/mine", f"objects/{shard.name}/more.npy"]
    assert facts["unknown_files"] == unknown
    assert facts["change"].startswith("interrupted")
    shown = run("inspect", corpus, "--verify").out
    assert "notes[1m.txt" in shown and "\033[1m.txt" not in shown


@pytest.mark.parametrize(
    "content", ["", "{}", '{"encoder": "x", "phrase_bias": NaN}', "x" * 99_999]
)
def test_inspect_verifies_the_profile_too(index, run, docs, tmp_path, content):
    index(docs)
    profile = tmp_path / "c.uv" / "profile.json"
    profile.write_text('{"encoder": "x", "phrase_bias": 1.5, "tolerance": 0.5}')
    assert run("inspect", tmp_path / "c.uv", "--verify", "--json").json["unknown_files"] == []
    profile.write_text(content)
    ran = run("inspect", tmp_path / "c.uv", "--verify")
    assert ran.code == 1 and "profile.json" in ran.err and "univerb calibrate" in ran.err
    assert run("inspect", tmp_path / "c.uv").code == 0
