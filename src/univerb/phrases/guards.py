"""Guards: the rules that keep useless or harmful spans out of a vocabulary."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from univerb.phrases.content import checked_language

NUMBER = re.compile(r"(?:§§?[ \xa0]?)?\d+(?:[.,:/–-]\d+)*(?:\([^\W_]{1,5}\))*%?")
"""A number expression: 1,500, 3.14, 12:30, 10/11/2013, 1990–95, 50%, § 12(3)(a)."""

# Scripts written without spaces between words; each of their characters counts as a word.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x3FFFF),  # Han, further extensions
)


@dataclass(frozen=True, slots=True)
class Guards:
    """Which spans may become phrases; each rule can be switched off."""

    min_tokens: int = 2
    """Shorter spans duplicate V."""
    word_boundaries: bool = True
    """Begin and end where words do."""
    whole_characters: bool = True
    """Never begin or end inside a UTF-8 character."""
    no_special: bool = True
    """Contain no special token."""
    no_newline: bool = True
    """Stay within a line. Matters to lists; n-gram sources cut documents into lines first."""
    no_digits: bool = True
    """Do not merge bare numbers: it ruins arithmetic."""
    whole_numbers: bool = True
    """Never begin or end inside a number such as 1,500 or § 12(3). Not for lists."""
    content: str | None = "en"
    """Have a word that is not on this language's stop list: "of the" alone says nothing. None for
    any words. Not for lists, which are deliberate."""

    def __post_init__(self) -> None:
        checked_language(self.content)

    def objection(self, ids: Sequence[int], text: str, special_ids: frozenset[int]) -> str | None:
        """Return why a span is no phrase, in a few words, or None if it is one.

        Rules about boundaries and content need the text around a span and are checked where it is
        cut out.
        """
        if len(ids) < self.min_tokens:
            return f"it has fewer than {self.min_tokens} tokens"
        if self.no_special and not special_ids.isdisjoint(ids):
            return "it contains a special token"
        if self.no_newline and "\n" in text:
            return "it contains a line break"
        if self.whole_characters and "\N{REPLACEMENT CHARACTER}" in text:
            return "it is not valid UTF-8"
        if self.no_digits and is_number(text):
            return "it is a bare number"
        return None


PAPER_GUARDS = Guards(whole_numbers=False, content=None)
"""For what is built as in the paper: training samples, and the tables that are reproduced."""


def is_number(text: str) -> bool:
    """Tell whether a text has digits and no letters."""
    characters = [character for character in text if character.isalnum()]
    return bool(characters) and all(character.isdigit() for character in characters)


def is_unspaced(character: str) -> bool:
    """Tell whether a character belongs to a script without spaces between words."""
    code = ord(character)
    return code >= 0x0E00 and any(low <= code <= high for low, high in _UNSPACED)
