"""Content words: the words of a text that are not on a published stop list.

The lists are those of the bm25s package. In a word with apostrophes each part counts, so that
"don't", "we've" and the "'s" of "tenant's" are no content.
"""

import re
from functools import cache
from typing import Annotated

import numpy
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from univerb.errors import OptionError, did_you_mean, shown

_LISTS = {
    "da": "DANISH",
    "de": "GERMAN",
    "en": "EN_PLUS",
    "es": "SPANISH",
    "fr": "FRENCH",
    "it": "ITALIAN",
    "ko": "KOREAN",
    "nl": "DUTCH",
    "no": "NORWEGIAN",
    "pt": "PORTUGUESE",
    "ru": "RUSSIAN",
    "sv": "SWEDISH",
    "tr": "TURKISH",
    "zh": "CHINESE",
}
_UNSPACED = ("zh",)
_PART = re.compile(r"([^\W_]+)")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def checked_language(code: str | None) -> str | None:
    """Return the code of a stop list, or None for none, if it is allowed."""
    if code is not None and (not isinstance(code, str) or code not in _LISTS):
        problem = f"no stop list is called {shown(code)}; give none for any words."
        raise OptionError(f"{problem} {did_you_mean(code, _LISTS)}")
    return code


StopList = Annotated[
    str | None,
    Field(max_length=16),
    AfterValidator(lambda code: checked_language(None if code == "none" else code)),
]
"""The language code of a stop list; None, in files and flags also "none", for no list."""


def content_words(text: str, language: str = "en") -> list[str]:
    """Return the content words of a text, in order, with their apostrophes."""
    stop_words = _stop_words(language)
    return [
        word
        for word in _WORD.findall(_without_unspaced(text, language))
        if not all(part.lower() in stop_words for part in _PART.findall(word))
    ]


def content_characters(text: str, language: str) -> NDArray[numpy.bool_]:
    """Return which characters of a text belong to content words."""
    stop_words = _stop_words(language)
    # What stands between words, and words, in turn.
    pieces = _PART.split(_without_unspaced(text, language))
    is_content = numpy.zeros(len(pieces), dtype=bool)
    is_content[1::2] = [word.lower() not in stop_words for word in pieces[1::2]]
    return numpy.repeat(is_content, [len(piece) for piece in pieces])


def _without_unspaced(text: str, language: str) -> str:
    """Replace stop words by spaces if the script has none between words."""
    if language not in _UNSPACED:
        return text
    return _unspaced_stop_words(language).sub(lambda match: " " * len(match.group()), text)


@cache
def _stop_words(language: str) -> frozenset[str]:
    checked_language(language)
    # Takes a third of a second.
    from bm25s import stopwords

    return frozenset(getattr(stopwords, f"STOPWORDS_{_LISTS[language]}"))


@cache
def _unspaced_stop_words(language: str) -> re.Pattern[str]:
    longest_first = sorted(_stop_words(language), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, longest_first)))
