"""Content words: what is left of a text without the words of a published stop list."""

import re

import pytest
from bm25s import stopwords
from hypothesis import example, given
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.phrases.content import content_characters, content_words

GLUE = {
    "da": "det er ikke", "de": "das war nicht", "en": "It is not the", "es": "el de los",
    "fr": "c'est dans l'", "it": "che non è", "ko": "그리고 우리", "nl": "het is niet",
    "no": "det er ikke", "pt": "que não é", "ru": "что он не", "sv": "det är inte",
    "tr": "ve için", "zh": "我们的",
}  # fmt: skip
CONTENT = {
    "da": "huslejen", "de": "Miete", "en": "rent", "es": "alquiler", "fr": "loyer",
    "it": "affitto", "ko": "임대료", "nl": "huur", "no": "husleien", "pt": "aluguel",
    "ru": "аренда", "sv": "hyran", "tr": "kira", "zh": "租金",
}  # fmt: skip


@pytest.mark.parametrize("language", GLUE)
def test_each_language_has_its_list(language: str):
    assert content_words(GLUE[language], language) == []
    assert content_words(f"{GLUE[language]} {CONTENT[language]}.", language) == [CONTENT[language]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  … (–) ___ ❤️ \u0301", []),
        ("of the THE Of", []),
        ("The tenant's landlord", ["tenant's", "landlord"]),
        ("We don't, I’m, they've, isn’t it?", []),
        ("O'Brien and O’Hara", ["O'Brien", "O’Hara"]),
        ("'the' 'rent'", ["rent"]),
        ("in 2013 and 7", ["2013", "7"]),
        ("of_the lease_term", ["lease", "term"]),
        ("a B2B re-let", ["B2B", "let"]),
        ("the 東京 of", ["東京"]),
    ],
)
def test_words_are_runs_of_letters_and_digits_with_apostrophes_inside(text: str, words: list[str]):
    assert content_words(text) == words


def test_english_has_the_longer_of_the_two_lists():
    assert content_words(" ".join(stopwords.STOPWORDS_EN_PLUS)) == []
    assert content_words("would could herself") == ["would", "could"]


def test_without_spaces_every_letter_outside_stop_words_counts():
    text = "我们的租金和房子"
    is_content = content_characters(text, "zh").tolist()
    assert [letter for letter, own in zip(text, is_content, strict=True) if own] == [*"租金房子"]
    assert content_characters(text, "en").all()


@given(st.text(st.sampled_from("htefo rent's’_.,7é東\u0301\n") | st.characters(codec="utf-8")))
@example("The rent's of O'Hara")
def test_characters_of_content_are_those_of_words_that_are_not_listed(text: str):
    found = content_characters(text, "en").tolist()
    assert len(found) == len(text)
    listed = set(stopwords.STOPWORDS_EN_PLUS)
    for place, own in enumerate(found):
        word = re.findall(r"[^\W_]*$", text[:place])[0] + re.match(r"[^\W_]*", text[place:])[0]
        is_word = text[place].isalnum()
        assert own == (is_word and word.lower() not in listed)
    assert any(found) == bool(content_words(text))


@pytest.mark.parametrize("language", ["english", "", "EN", "xx"])
def test_a_language_without_a_list_is_refused_with_those_that_have_one(language: str):
    with pytest.raises(OptionError, match=f"{language!r}.*da, de, en, es, fr, it, ko, nl, no, pt"):
        content_words("the rent", language)
