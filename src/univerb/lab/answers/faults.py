"""What is wrong with an answer's citations, found from its JSON and the documents alone.

It shares no code with what makes citations: a fault there must not hide itself here.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

# Written out here on purpose: the guards of the product are what is checked.
_WORDS = (
    "a an and are as at be been but by can could did do does for from had has have he her his if in"
    " into is it its may more most must no nor not of on one or other shall she should so some such"
    " than that the their them then there these they this to under up was we were what when where"
    " which who will with would you your"
)
_GLUE = frozenset(_WORDS.split())
_WHOLE = re.compile(
    r"(?<![\w.,:/-])\d{1,3}(?:[ \xa0\u202f]\d{3})+(?!\d)"
    r"|\d\^[-+−]?\d+"
    r"|§ ?\d+(?: ?\(\w{1,3}\))*"
    r"|(?<![\w.,:/-])\d+(?: \((?:\d|[a-z])\))+"
)
"""Numbers of several parts, which are not to be cut: 1 500, 10^12, § 12 (3), 12 (a)."""
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def citation_faults(answer: Mapping[str, Any], documents: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the citations of an answer.

    Args:
        answer: As `Answer.to_dict()` returns it.
        documents: Texts by name.

    Yields:
        A sentence for each fault.
    """
    text = answer["text"]
    for citation in answer["citations"]:
        source = documents.get(citation["document"], "")
        said = text[citation["answer_start"] : citation["answer_end"]]
        there = source[citation["start"] : citation["end"]]
        if not said or there != citation["text"] or said.split() != there.split():
            yield f"{said!r} is not what the document has: {there!r}"
        for whole, start, end in (
            (text, citation["answer_start"], citation["answer_end"]),
            (source, citation["start"], citation["end"]),
        ):
            if _cuts(whole, start) or _cuts(whole, end):
                yield f"{whole[start:end]!r} is cut out of {whole[max(start - 9, 0) : end + 9]!r}"
        words = [word.strip(".,;:!?()\"'“”’").lower() for word in said.split()]
        if all(word in _GLUE or not word for word in words):
            yield f"{said!r} is glue"
        elif len(words) == 1 and said.islower() and not any(map(_is_word, said)):
            yield f"{said!r} is a single common word"


def _cuts(text: str, at: int) -> bool:
    """Tell whether a position is inside a word or a number, as 1.5, 31,840 and co-operate are."""
    if any(match.start() < at < match.end() for match in _WHOLE.finditer(text)):
        return True
    before, after = text[:at], text[at:]
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return False
    if _is_unspaced(before[-1]) or _is_unspaced(after[0]):
        return False
    if before[-1].isalnum() and after[0].isalnum():
        return True
    joins = ".,:/-–‐‑'’"
    if before[-1].isalnum() and after[0] in joins:
        return after[1:2].isalnum()
    return after[0].isalnum() and before[-1] in joins and before[-2:-1].isalnum()


def _is_word(character: str) -> bool:
    """Tell whether a character says something by itself."""
    return character.isdigit() or _is_unspaced(character)


def _is_unspaced(character: str) -> bool:
    """Tell whether a character's script has no spaces between words."""
    return unicodedata.name(character, "").startswith(_WITHOUT_SPACES)
