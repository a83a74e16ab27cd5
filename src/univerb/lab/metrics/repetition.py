"""Rep-n and Diversity (docs/method.md, Metrics: repetition and diversity)."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from math import prod
from typing import NamedTuple

SIZES = (2, 3, 4)
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class Words(NamedTuple):
    """The words of a text, and what split it: figures of two splitters are not comparable."""

    tokens: list[str]
    splitter: str


def words(text: str) -> Words:
    """Split a text into words and punctuation with spaCy's English rules, or a regex without it."""
    name, split = _splitter()
    return Words(split(text), name)


@cache
def _splitter() -> tuple[str, Callable[[str], list[str]]]:
    try:
        import spacy
    except ImportError:
        return "regex", _WORD.findall
    english = spacy.blank("en")
    return f"spacy.blank('en') {version('spacy')}", lambda text: [
        token.text for token in english.tokenizer(text)
    ]


def rep_n(tokens: Sequence[Hashable], n: int) -> float:
    """Return the percentage of n-grams that occurred before; 0 for a text too short for one."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 100.0 * (1.0 - len(set(grams)) / len(grams)) if grams else 0.0


@dataclass(frozen=True, slots=True)
class Repetition:
    """Rep-n as means over texts, and the Diversity that follows from them."""

    rep: dict[int, float]
    """By n, in percent."""
    diversity: float
    """The product of 1 - Rep-n / 100 over n: 1 if nothing is repeated."""


def repetition(texts: Sequence[Sequence[Hashable]]) -> Repetition:
    """Measure texts, each as its words or tokens; without any text, there is no repetition.

    Rep-n text by text, then the means, then their product (as CoG does).
    """
    return mean_repetition([{n: rep_n(text, n) for n in SIZES} for text in texts])


def mean_repetition(each: Sequence[dict[int, float]]) -> Repetition:
    """Average the Rep-n of texts, each by n; Diversity is that of the means."""
    means = {n: sum(rep[n] for rep in each) / max(len(each), 1) for n in SIZES}
    return Repetition(means, prod(1.0 - value / 100.0 for value in means.values()))
