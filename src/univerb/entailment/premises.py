"""What of a premise is held against a claim (docs/method.md, Metrics: citations).

A small NLI model fails on premises longer than the sentences it learned from, so a claim is held
against sentences, as in SummaC (Laban et al., 2022). It does not see numbers well either.
"""

import re

from univerb.documents.sentences import split_sentences

_LONGEST_RUN = 2
_RUNS = 4
_WHOLE = 2_000
_FEWEST_WORDS = 3
_TITLE = re.compile(r"Title: [^\n]*\n")
_NUMBER = re.compile(r"\b\d+(?:[.,]\d+)*")
_SHAPES = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
)


def decided(premise: str, claim: str) -> bool | None:
    """Tell what needs no model: stated word for word, or with a number that the premise lacks."""
    if states(premise, claim):
        return True
    return None if _numbers(claim) <= _numbers(premise) else False


def states(premise: str, claim: str) -> bool:
    """Tell whether a claim is one or more whole sentences of a premise, word for word.

    A part of a sentence is not enough: what stands behind "nobody believes that" is not stated.
    The shapes of white space, quotes and dashes do not count, nor does the last full stop; case,
    numbers and all other characters do. One or two words say too little.
    """
    wanted = _plain(claim)
    if len(wanted.split()) < _FEWEST_WORDS:
        return False
    sentences = _parts(premise)[1]
    for begin in range(len(sentences)):
        for end in range(begin + 1, len(sentences) + 1):
            run = _plain(" ".join(sentences[begin:end]))
            if run == wanted:
                return True
            if not wanted.startswith(run):
                break
    return False


def windows(premise: str, claim: str) -> list[str]:
    """Return the parts of a premise that a model reads.

    The four sentences or pairs of neighbours that share most words with the claim, with the
    premise's title and without it, and a premise of at most 2,000 characters as a whole.
    """
    title, sentences = _parts(premise)
    runs = [
        " ".join(sentences[begin : begin + length])
        for length in range(1, _LONGEST_RUN + 1)
        for begin in range(len(sentences) - length + 1)
    ]
    words = _words(claim)
    runs.sort(key=lambda run: len(words & _words(run)), reverse=True)
    parts = [lead + run for lead in ("", title) for run in runs[:_RUNS]]
    if len(premise) <= _WHOLE or not parts:
        parts.append(premise)
    return list(dict.fromkeys(parts))


def _parts(premise: str) -> tuple[str, list[str]]:
    """Return the title's line, if there is one, and the sentences."""
    title = _TITLE.match(premise)
    text = premise[title.end() :] if title else premise
    return title.group() if title else "", [text[a:b] for a, b in split_sentences(text)]


def _plain(text: str) -> str:
    return " ".join(text.translate(_SHAPES).split()).removesuffix(".")


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _numbers(text: str) -> set[str]:
    return {number.replace(",", "") for number in _NUMBER.findall(text)}
