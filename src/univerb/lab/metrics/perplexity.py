"""The perplexity of generated text under a scorer (METHOD C.3), from log-probabilities of tokens.

`stream` is what the published figures are: all texts as one, cut into windows. `per_sample` is the
mean over texts. The two do not compare, nor do two scorers: a report names both.
"""

import math
import statistics
from collections.abc import Sequence

WINDOW = 1024
"""Tokens that the scorer sees at once; windows do not overlap."""
SEPARATOR = "\n\n"
"""Between two texts of a stream."""


def stream_text(texts: Sequence[str]) -> str:
    """Join texts, each with its prefix, into one stream."""
    return SEPARATOR.join(texts)


def windows(ids: Sequence[int], size: int = WINDOW) -> list[Sequence[int]]:
    """Cut the tokens of a stream into windows; the last one may be shorter."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def stream_perplexity(each: Sequence[Sequence[float]]) -> float:
    """Return the perplexity of a stream.

    Args:
        each: For each window the log-probabilities (nats) of its tokens but the first, which has
            nothing before it.

    Returns:
        The perplexity. As in the published figures, a window counts with all its tokens, as if its
        first were as likely as the others; one without any other is left out. NaN without any.
    """
    scored = [own for own in each if own]
    total = sum(statistics.fmean(own) * (len(own) + 1) for own in scored)
    return _perplexity(total, sum(len(own) + 1 for own in scored))


def per_sample_perplexity(each: Sequence[Sequence[float]]) -> float:
    """Return the mean of the perplexities of texts.

    Args:
        each: For each text the log-probabilities (nats) of all its tokens, after a begin token.

    Returns:
        The mean; empty texts are left out. NaN without any.
    """
    found = [_perplexity(math.fsum(own), len(own)) for own in each if own]
    return statistics.fmean(found) if found else math.nan


def _perplexity(log_likelihood: float, tokens: int) -> float:
    if not tokens:
        return math.nan
    mean = -log_likelihood / tokens
    # Beyond this a float ends: a scorer that gives no chance to a token is infinitely perplexed.
    return math.exp(mean) if mean < 709.0 else math.inf
