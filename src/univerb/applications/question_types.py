"""What kind of answer an English question asks for, as far as its first words tell."""

import re

from univerb.phrases.content import content_words


def _asks(words: str) -> re.Pattern[str]:
    """Match the beginning of a question, perhaps behind a clause or a preposition."""
    prepositions = "after|at|before|by|during|for|from|in|of|on|since|to|under|until|with|within"
    return re.compile(rf"\W*(?:[^,]*, )?(?:(?:{prepositions}) )?(?:{words})\b", re.IGNORECASE)


_AMOUNT = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|twenty|thirty|forty|fifty|sixty|seventy|eighty"
    r"|ninety|hundred|thousand|once|twice|first|second|third|fifth|half)s?\b"
)
# May, march and fall are common verbs, March and May at the beginning of a sentence are rare.
_TIME = (
    r"|\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun|week|holi)?days?|weekends?|daily|weekly"
    r"|monthly|yearly|(?:month|year|week|hour|minute)s?|noon|midnight|mornings?|afternoons?"
    r"|evenings?|nights?|today|tomorrow|yesterday"
    r"|spring|summer|autumn|winter|january|february|april|june|july|august|september|october"
    r"|november|december|(?-i:March|May))\b"
)
# Also at the beginning of a sentence if another one follows.
_NAME = r"(?<=[a-z,;:] )[A-Z][\w'’-]+|[A-Z][\w'’-]+(?= [A-Z])"
_PLACE = r"\b(?i:above|at|behind|below|beside|between|in|inside|into|near|on|outside|under) [^\W\d]"
_AUXILIARY = r"(?:am|are|can|could|did|do|does|had|has|have|is|may|must|shall|should|was|were|will)"
_KINDS = (
    (
        _asks(
            rf"when {_AUXILIARY}|how (?:early|late|long|often|soon)"
            r"|(?:what|which) (?:date|day|month|season|time|year)"
        ),
        re.compile(_AMOUNT + _TIME, re.IGNORECASE),
    ),
    (
        _asks(
            r"how (?:big|deep|far|fast|heavy|high|large|many|much|old|tall|wide)"
            r"|(?:what|which) (?:age|number|percentage|temperature)"
        ),
        re.compile(_AMOUNT, re.IGNORECASE),
    ),
    (_asks("where"), re.compile(f"{_NAME}|{_PLACE}")),
    (_asks("who|whom|whose"), re.compile(_NAME)),
)
_WORD = re.compile(r"\w+")


def answer_fit(question: str, text: str) -> float:
    """Tell whether a text can answer a question: 1.0 yes, -1.0 no, 0.0 if the question is open.

    Questions for numbers and times need one, those for people a name that is not in the question,
    those for places such a name or words such as "in the".
    """
    for asks, fitting in _KINDS:
        if asks.match(question):
            asked = set(_WORD.findall(question.lower()))
            fits = any(match.lower() not in asked for match in fitting.findall(text))
            return 1.0 if fits else -1.0
    return 0.0


def has_words(question: str, text: str) -> bool:
    """Tell whether a text has all content words of a question, perhaps with other endings."""
    words = content_words(text.lower())
    asked = [w for w in content_words(question.lower()) if not re.fullmatch(_AUXILIARY, w)]
    stems = [word[: max(3, len(word) - 2)] for word in asked]
    return all(any(word.startswith(stem) for word in words) for stem in stems)
