"""What kind of answer an English question asks for, as far as its first words tell."""

import re

_ASKS_FOR_NUMBER = re.compile(
    r"\bwhen\b|\bhow (?:many|much|long|old|far|fast|deep|high|tall|big|large|often|wide|heavy|late"
    r"|early|soon)\b|\b(?:what|which) (?:year|age|date|day|time|temperature|percentage|number)\b",
    re.IGNORECASE,
)
_ASKS_FOR_NAME = re.compile(r"\b(?:who|whom|whose|where)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty"
    r"|fifty|sixty|ninety|hundred|thousand|once|twice|first|second|third|fifth|half|month|year|day"
    r"|week|hour|minute)s?\b",
    re.IGNORECASE,
)
# Also at the beginning of a sentence if another one follows.
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z][\w'’-]+|[A-Z][\w'’-]+(?= [A-Z])")
_WORD = re.compile(r"\w+")


def answer_fit(question: str, text: str) -> float:
    """Tell whether a text can answer a question: 1.0 yes, -1.0 no, 0.0 if the question is open.

    Questions for numbers and times need a number, those for people and places a name that is not
    in the question.
    """
    if _ASKS_FOR_NUMBER.search(question):
        return 1.0 if _NUMBER.search(text) else -1.0
    if _ASKS_FOR_NAME.search(question):
        asked = set(_WORD.findall(question.lower()))
        return 1.0 if any(name.lower() not in asked for name in _NAME.findall(text)) else -1.0
    return 0.0
