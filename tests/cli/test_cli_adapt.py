"""`univerb adapt` and `univerb calibrate`, as a user types them."""

import json
from pathlib import Path

import pytest

from conftest import TEXT, saved_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    return saved_encoder(folder)


@pytest.fixture
def domain(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(f"Lease {number}. {TEXT} {TEXT}")
    return folder


def test_adapt_indexes_calibrates_and_reports(run, model, domain, tmp_path):
    corpus = tmp_path / "c.uv"
    ran = run("adapt", domain, "-o", corpus, "--model", model, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    # Every tenth document is held out, and repeated text is nearly all phrases.
    assert found["before"]["all_phrases"]["units_per_token"] == 1.0
    assert found["after"]["all_phrases"]["units_per_token"] < 0.5
    profile = json.loads((corpus / "profile.json").read_text())
    assert profile["phrase_bias"] == found["calibration"]["best"]["bias"]
    # What was held out is indexed in the end: users get all of their documents.
    assert json.loads(run("inspect", corpus, "--json").out)["documents"] == 12
    again = run("adapt", domain, "-o", corpus, "--model", model)
    assert again.code == 1
    assert "nothing would be held out" in again.err
    assert (
        run("generate", "The", "--corpus", corpus, "--model", model, "--mode", "verify").code == 0
    )


def test_the_table_names_both_sides(run, model, domain, tmp_path):
    ran = run("adapt", domain, "-o", tmp_path / "c.uv", "--model", model)
    assert ran.code == 0, ran.err
    for words in ("before", "after", "units per base token", "phrase_bias", "use it"):
        assert words in ran.out


def test_generate_takes_the_calibrated_values(run, model, domain, tmp_path, monkeypatch):
    corpus = tmp_path / "c.uv"
    assert run("adapt", domain, "-o", corpus, "--model", model).code == 0
    profile = json.loads((corpus / "profile.json").read_text())
    (corpus / "profile.json").write_text(json.dumps(profile | {"phrase_bias": -100.0}))
    shy = run("generate", "The tenant", "--corpus", corpus, "--model", model, "--json")
    assert json.loads(shy.out)["stats"]["phrase_share"] == 0.0
    asked = ("--phrase-bias", "100", "--tolerance", "1")
    bold = run("generate", "The tenant", "--corpus", corpus, "--model", model, "--json", *asked)
    assert json.loads(bold.out)["stats"]["phrase_share"] > 0.5


def test_calibrate_replaces_the_profile(run, model, domain, tmp_path):
    corpus = tmp_path / "c.uv"
    assert run("index", domain, "-o", corpus, "--model", model).code == 0
    assert not (corpus / "profile.json").exists()
    ran = run("calibrate", corpus, domain, "--model", model, "--passages", 2)
    assert ran.code == 0, ran.err
    assert "passes per token" in ran.out
    assert (corpus / "profile.json").is_file()
    (corpus / "profile.json").write_text("{}")
    broken = run("generate", "The tenant", "--corpus", corpus, "--model", model)
    assert broken.code == 1
    assert "profile.json" in broken.err


def test_few_documents_are_held_out_by_their_ends(run, model, tmp_path):
    (tmp_path / "one.txt").write_text("\n\n".join([TEXT] * 12))
    ran = run("adapt", tmp_path / "one.txt", "-o", tmp_path / "c.uv", "--model", model, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["after"]["all_phrases"]["covered_share"] > 0.5


def test_too_little_text_is_one_clear_line(run, model, tmp_path):
    (tmp_path / "one.txt").write_text("Too short.")
    ran = run("adapt", tmp_path / "one.txt", "-o", tmp_path / "c.uv", "--model", model)
    assert ran.code == 1
    assert "--held-out" in ran.err
    assert not (tmp_path / "c.uv").exists()


def test_a_missing_corpus_to_compare_with_is_noticed_before_the_model_is_loaded(
    run, domain, tmp_path
):
    ran = run("adapt", domain, "-o", tmp_path / "c.uv", "--before", tmp_path / "none.uv")
    assert ran.code == 1
    assert "does not exist" in ran.err
