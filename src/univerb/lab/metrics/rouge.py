"""ROUGE-L of texts with several sentences, as ALCE and rouge-score compute it (METHOD C.9).

This is `rougeLsum` with stemming: a reference's sentence is compared with every sentence of the
prediction, and all its words that some longest common subsequence has are found.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy

from univerb.errors import MissingExtra

_WORD = re.compile(r"[a-z0-9]+")
_SHORT = 3
"""Words of at most this length keep their ending."""


class Rouge(NamedTuple):
    """From 0 to 1."""

    precision: float
    recall: float
    f1: float


def rouge_words(text: str) -> list[str]:
    """Split a text into the words that ROUGE counts: lower case, letters a-z and digits, stemmed.

    Args:
        text: Any text.

    Returns:
        Its words.

    Raises:
        MissingExtra: If NLTK, whose stemmer rouge-score uses, is not installed.
    """
    stem = _stemmer()
    return [stem(word) if len(word) > _SHORT else word for word in _WORD.findall(text.lower())]


@cache
def _stemmer() -> Callable[[str], str]:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise MissingExtra("nltk", "nltk") from None
    return cache(PorterStemmer().stem)


def rouge_l(prediction: Sequence[str], reference: Sequence[str]) -> Rouge:
    """Compare a text with a reference.

    Args:
        prediction: Its sentences.
        reference: Those of the reference. ALCE splits the texts in lower case with NLTK; a splitter
            that looks at capitals has to come before.

    Returns:
        Zeros if one side has no word.
    """
    ours, theirs = _lines(prediction), _lines(reference)
    left = Counter(word for sentence in theirs for word in sentence)
    right = Counter(word for sentence in ours for word in sentence)
    if not left or not right:
        return Rouge(0.0, 0.0, 0.0)
    # A word counts at most as often as the prediction has it, in whatever sentences it is found.
    found = Counter(word for sentence in theirs for word in _union(sentence, ours))
    hits = (found & right).total()
    whole = left.total() + right.total()
    return Rouge(hits / right.total(), hits / left.total(), 2.0 * hits / whole)


def best_rouge_l(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> Rouge:
    """Return the best score over references, by F1; zeros without any."""
    found = [rouge_l(prediction, reference) for reference in references]
    return max(found, key=lambda own: own.f1, default=Rouge(0.0, 0.0, 0.0))


def _lines(sentences: Sequence[str]) -> list[list[str]]:
    """Return the words of each sentence; a line break ends one too."""
    return [rouge_words(line) for sentence in sentences for line in sentence.split("\n")]


def _union(sentence: Sequence[str], others: Sequence[Sequence[str]]) -> list[str]:
    """Return the words of a sentence that are part of its common subsequence with any other."""
    places = {place for other in others for place in _common(sentence, other)}
    return [sentence[place] for place in sorted(places)]


def _common(left: Sequence[str], right: Sequence[str]) -> list[int]:
    """Return the places in `left` of one longest common subsequence: that of rouge-score."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, own in enumerate(left, 1):
        for j, other in enumerate(right, 1):
            longer = max(table[i - 1][j], table[i][j - 1])
            table[i][j] = table[i - 1][j - 1] + 1 if own == other else longer
    places = []
    i, j = len(left), len(right)
    while i and j:
        if left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            places.append(i)
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places


class RougeMean(NamedTuple):
    """F1 over texts in percent: the middle of bootstrap means, and the ends of 95 % of them."""

    middle: float
    low: float
    high: float


def mean_rouge(each: Sequence[Rouge], resamples: int = 1000, seed: int = 0) -> RougeMean:
    """Average texts as rouge-score does; its figure moves with each run, ours with the seed.

    Args:
        each: The texts' scores.
        resamples: How often texts are drawn.
        seed: Of the drawing.

    Returns:
        Zeros if there is no text.
    """
    if not each:
        return RougeMean(0.0, 0.0, 0.0)
    scores = numpy.array([own.f1 for own in each])
    draw = numpy.random.default_rng(seed)
    means = [scores[draw.integers(len(each), size=len(each))].mean() for _ in range(resamples)]
    low, middle, high = 100.0 * numpy.percentile(means, [2.5, 50.0, 97.5])
    return RougeMean(float(middle), float(low), float(high))
