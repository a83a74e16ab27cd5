"""ROUGE-L of texts with several sentences, as ALCE computes it (docs/method.md, Metrics: answers).

This is rouge-score's `rougeLsum` with stemming. Its bootstrap of the mean has no seed: ours has.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy

from univerb.errors import MissingExtra

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

_RESAMPLES = 1000


def rouge_l(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the F1 of a text against the closest reference, each as its sentences; 0 without any.

    ALCE splits the texts in lower case with NLTK; a splitter that looks at capitals has to come
    before. Raises MissingExtra if rouge-score is not installed.
    """
    scorer, text = _scorer(), "\n".join(prediction)
    scores = (scorer.score("\n".join(reference), text)["rougeLsum"] for reference in references)
    return max((float(score.fmeasure) for score in scores), default=0.0)


@cache
def _scorer() -> "RougeScorer":
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtra("rouge-score", "eval") from None
    return RougeScorer(["rougeLsum"], use_stemmer=True)


def mean_rouge(scores: Sequence[float], seed: int = 0) -> float:
    """Return the median of bootstrap means in percent, as rouge-score does; 0 without a text."""
    if not scores:
        return 0.0
    draws = numpy.random.default_rng(seed).integers(len(scores), size=(_RESAMPLES, len(scores)))
    return 100.0 * float(numpy.median(numpy.asarray(scores)[draws].mean(axis=1)))
