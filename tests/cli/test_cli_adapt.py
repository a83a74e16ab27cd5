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
    assert found["continuations"]
    for each in found["continuations"]:
        assert each["document"].endswith("09.txt")
        assert each["before"]["corpus"] is None and each["before"]["passages"] == []
        assert each["after"]["corpus"] == str(corpus)
        assert each["after"]["passages"] == each["without_phrases"]["passages"]
        assert each["is_changed"] is (each["after"]["text"] != each["without_phrases"]["text"])
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


def test_each_continuation_says_what_the_model_had_for_it(run, model, domain, tmp_path):
    ran = run("adapt", domain, "-o", tmp_path / "c.uv", "--model", model, "-k", 4)
    assert ran.code == 0, ran.err
    for words in (
        "before  plain LM, no passages shown",
        "without phrases  plain LM, 2 passages shown",
        "after  phrases of c.uv, 2 passages shown",
    ):
        assert ran.out.count(words) == 1
    assert "of 1 continuation;" in ran.out
    # Elsewhere the calibrated values would be used with other chunks.
    assert ran.out.rstrip().endswith("c.uv -k 4")


@pytest.mark.filterwarnings("always::univerb.applications.calibrate.NoChangeWarning")
@pytest.mark.parametrize("verb", ["adapt", "calibrate"])
def test_a_profile_that_changes_nothing_is_said(run, model, tmp_path, verb):
    # No two words occur twice, so the corpus has no phrases.
    (tmp_path / "docs.txt").write_text("Nothing here returns.")
    (tmp_path / "held.txt").write_text(f"{TEXT} {TEXT}")
    held, corpus = tmp_path / "held.txt", tmp_path / "c.uv"
    if verb == "adapt":
        given = ["adapt", tmp_path / "docs.txt", "-o", corpus, "--held-out", held]
    else:
        assert run("index", tmp_path / "docs.txt", "-o", corpus, "--model", model).code == 0
        given = ["calibrate", corpus, held]
    ran = run(*given, "--model", model)
    assert ran.code == 0, ran.err
    assert "0.0% of the tokens other than the plain LM's" in ran.out
    assert "note: the phrases change no word: with" in ran.err
    assert "index more text" in ran.err


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
