"""Texts cut after their prefix: which ones, in which order, and what is held out of indexes."""

import pytest

from conftest import data_directory, make_gpt2, make_tokenizer
from tiny_data import tiny_data
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, OptionError
from univerb.lab.protocols.passages import (
    ACTS,
    COG,
    LAWMT,
    NATURAL,
    RAW,
    TEST_SETS,
    is_held_out,
)
from univerb.lab.protocols.passages import read_passages as read_set
from univerb.modeling.dynamic import DynamicLM


def read_passages(*arguments, **options):
    return read_set(*arguments, **options).passages


@pytest.fixture(scope="module")
def tokenizer():
    return DynamicLM.wrap(make_gpt2(), make_tokenizer()).tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", TEST_SETS)
def test_prefix_and_reference_are_the_text(tokenizer, data, name):
    for own in read_passages(name, data, tokenizer, 100, prefix=5):
        assert len(own.prefix) == 5
        assert own.reference
        whole = tokenizer.decode([*own.prefix, *own.reference])
        assert tokenizer.encode_prompt(whole) == [*own.prefix, *own.reference]


@pytest.mark.parametrize("name", TEST_SETS)
def test_a_longer_run_begins_as_a_shorter_one(tokenizer, data, name):
    few, many = (read_passages(name, data, tokenizer, limit) for limit in (3, 100))
    assert few == many[:3]
    assert len(many) > 3


def test_the_order_is_drawn(tokenizer, data):
    names = [own.name for own in read_passages(LAWMT, data, tokenizer, 100)]
    assert sorted(names) == ["1", "2", "3", "4", "5", "6"]
    assert names != sorted(names)


def test_titles_are_no_paragraphs(tokenizer, data):
    assert len(read_passages(RAW, data, tokenizer, 100)) == 7


def test_natural_text_has_no_removed_words_and_no_spaces_before_stops(tokenizer, data):
    found = read_passages(NATURAL, data, tokenizer, 100)
    assert len(found) == 6
    for own in found:
        text = tokenizer.decode([*own.prefix, *own.reference])
        assert "<unk>" not in text
        assert " ." not in text


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [("wikitxt", 5, "Did you mean 'wikitext'"), (RAW, 0, "limit is 0")],
)
def test_bad_options(tokenizer, data, name, limit, message):
    with pytest.raises(OptionError, match=message):
        read_passages(name, data, tokenizer, limit)


def test_missing_data(tokenizer, tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(DocumentError, match="wiki.test.tokens.*UNIVERB_DATA"):
            read_passages(RAW, folder, tokenizer, 5)


def test_texts_that_are_too_short(tokenizer, data):
    with pytest.raises(DocumentError, match="more than 5000 tokens"):
        read_passages(RAW, data, tokenizer, 5, prefix=5000)


def test_acts_are_those_that_are_held_out(tokenizer, data):
    acts = read_documents(data / "law/eurlex.jsonl.gz")
    held_out = {act.name for act in acts if is_held_out(act.name)}
    assert 0 < len(held_out) < len(acts) / 3
    passages = read_passages(ACTS, data, tokenizer, 1000)
    assert {passage.name.rsplit(" ", 1)[0] for passage in passages} == held_out
    assert not any(is_held_out(f"lease-{number}.txt") for number in range(200))


def test_cogs_form_keeps_every_paragraph(tokenizer, data):
    cog, raw, natural = (read_set(name, data, tokenizer, 100) for name in (COG, RAW, NATURAL))
    assert (cog.total, cog.left_out, len(cog.passages)) == (7, 0, 7)
    assert (raw.total, raw.left_out) == (7, 0)
    assert (natural.total, natural.left_out, natural.available) == (7, 1, 6)
    assert "6 of 6; the file has 7 texts, of which 1 are left out of this form and 0" in str(
        natural
    )
    [removed] = [p for p in cog.passages if p.name == "line 9"]
    assert tokenizer.encode("<|endoftext|>").ids[0] in removed.prefix


def test_the_number_of_passages_does_not_depend_on_the_limit(tokenizer, data):
    few, many = (read_set(COG, data, tokenizer, limit) for limit in (2, 100))
    assert (len(few.passages), few.available) == (2, many.available)


def test_wikitext_103_has_as_many_passages_as_it_should(tokenizer):
    """On the real file; how many are long enough depends on the tokenizer."""
    texts = {name: read_set(name, data_directory(), tokenizer, 1) for name in (COG, NATURAL)}
    assert (texts[COG].total, texts[COG].left_out) == (2183, 0)
    assert (texts[NATURAL].total, texts[NATURAL].left_out) == (2183, 828)
