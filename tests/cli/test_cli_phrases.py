"""`univerb phrases`, as a user types it."""

import re
import shutil

import pytest

from commands import refused
from conftest import TEXT
from univerb.phrases.content import content_words


def test_phrases_are_listed_as_a_table(run, tiny_folder, lease_file):
    ran = run("phrases", lease_file, "--model", tiny_folder, "--limit", 3)
    assert ran.code == 0
    rows = [line for line in ran.out.splitlines() if "lease.txt:" in line]
    assert len(rows) == 3
    total = run("phrases", lease_file, "--model", tiny_folder, "--json", "--limit", 0).json["total"]
    assert f"{total} phrases in 1 documents" in ran.out


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_phrases_are_listed_as_json_with_their_places(run, tiny_folder, lease_file, how):
    ran = run(
        *("phrases", "-" if how == "stdin" else lease_file, "--model", tiny_folder, "--json"),
        *("--limit", 0),
        stdin=TEXT,
    )
    data = ran.json
    assert data["schema_version"] == 1 and data["total"] == len(data["phrases"]) > 50
    for phrase in data["phrases"]:
        assert 2 <= len(phrase["ids"]) <= 8 and phrase["sources"]
        for span in phrase["sources"]:
            assert span["document"] == ("stdin" if how == "stdin" else "lease.txt")
            assert TEXT[span["start"] : span["end"]] == phrase["text"].strip()
    saved_tokens = [len(p["sources"]) * (len(p["ids"]) - 1) for p in data["phrases"]]
    assert saved_tokens == sorted(saved_tokens, reverse=True)


def test_the_listed_phrases_are_those_that_generate_would_use(run, tiny_folder, lease_file):
    listed = run("phrases", lease_file, "--model", tiny_folder, "--json").json
    used = run("generate", "x", "--docs", lease_file, "--model", tiny_folder, "--json").json
    assert listed["total"] == used["stats"]["phrases"]
    assert len(listed["phrases"]) == 20


def test_phrases_can_be_limited_and_counted_in_words(run, tiny_folder, lease_file):
    base = ("phrases", lease_file, "--model", tiny_folder, "--json", "--limit", 0)
    assert run(*base, "--max-phrases", 7).json["total"] == 7
    words = run(*base, "--source", "words", "--sizes", "3-3").json
    counts = [len(phrase["text"].split()) for phrase in words["phrases"]]
    assert len(counts) > 5 and max(counts) == 3


@pytest.mark.parametrize("source", ["tokens", "words", "fmm", "parsed"])
def test_glue_and_parts_of_numbers_are_listed_if_asked_for(run, tiny_folder, tmp_path, source):
    (tmp_path / "a.txt").write_text(
        "the rent of the day of the rent of the month is 1,500 or 1,500."
    )
    base = ("phrases", tmp_path / "a.txt", "--model", tiny_folder, "--json", "--limit", 0)
    base += ("--source", source, "--min-count", 2)
    default, loose = (
        {phrase["text"].strip() for phrase in run(*base, *more).json["phrases"]}
        for more in ((), ("--content", "none", "--no-whole-numbers"))
    )
    assert default < loose
    assert all(content_words(text) for text in default)
    assert not any(re.search(r"\b1$|^,500|^500", text) for text in default)
    assert not all(content_words(text) for text in loose)


def test_phrases_knows_the_backbone_of_a_saved_encoder(run, tiny_encoder, tiny_folder, lease_file):
    base = ("phrases", lease_file, "--json", "--limit", 0)
    assert run(*base, "--model", tiny_encoder).json == run(*base, "--model", tiny_folder).json


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.txt"], ["nothing.txt"]),
        (["lease.txt", "--sizes", "9-1"], ["sizes"]),
        (["lease.txt", "--max-phrases", "-1"], ["--max-phrases"]),
        (["lease.txt", "--limit", "-1"], ["limit"]),
        (["lease.txt", "--model", "/no/such/model"], ["/no/such/model"]),
        (["lease.txt", "--model", "."], ["tokenizer.json"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_of_phrases_ends_with_one_clear_line(
    run, arguments, words, lease_file, tmp_path, tiny_folder, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tiny = [] if "--model" in arguments else ["--model", str(tiny_folder)]
    refused(run("phrases", *arguments, *tiny), *words)


@pytest.mark.parametrize("card", ["", "[]", "{}", '{"backbone": 5}', "\udcff"])
def test_a_damaged_card_is_one_clear_line(run, tiny_encoder, lease_file, tmp_path, card):
    folder = shutil.copytree(tiny_encoder, tmp_path / "damaged")
    (folder / "univerb.json").write_text(card, errors="surrogateescape")
    refused(run("phrases", lease_file, "--model", folder), "univerb.json", "damaged")


def test_a_damaged_tokenizer_is_a_mistake_of_the_model(run, tiny_folder, lease_file, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    refused(run("phrases", lease_file, "--model", tmp_path / "m"), "tokenizer.json")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"backbone": 1}', '{"backbone": {}}', "["])
def test_a_damaged_card_of_an_encoder_is_an_error_of_one_line(run, lease_file, tmp_path, content):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "univerb.json").write_text(content)
    refused(run("phrases", lease_file, "--model", tmp_path / "encoder"), "univerb.json")
