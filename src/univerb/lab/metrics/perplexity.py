"""Perplexity of generated text under a scorer (docs/method.md, Metrics: perplexity).

`stream` is the published kind: all texts as one, cut into windows. `per_sample` is the mean over
texts. The two are not comparable, nor are two scorers: a report names both.
"""

import math
import statistics
from collections.abc import Sequence

WINDOW = 1024
"""Tokens of a window of the scorer; windows do not overlap."""
SEPARATOR = "\n\n"
"""Between two texts of a stream."""


def stream_text(texts: Sequence[str]) -> str:
    """Join texts, each with its prefix, into one stream."""
    return SEPARATOR.join(texts)


def windows(ids: Sequence[int], size: int = WINDOW) -> list[Sequence[int]]:
    """Cut the tokens of a stream into windows; the last one may be shorter."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def stream_perplexity(each: Sequence[Sequence[float]]) -> float:
    """Return the perplexity of a stream; NaN if it is empty.

    Each window has the log-probabilities (nats) of its tokens but the first, which has nothing
    before it. As in the published figures, a window counts with all its tokens, as if its first
    were as likely as the others; one without any other is left out.
    """
    scored = [logprobs for logprobs in each if logprobs]
    total = sum(statistics.fmean(logprobs) * (len(logprobs) + 1) for logprobs in scored)
    return _perplexity(total, sum(len(logprobs) + 1 for logprobs in scored))


def per_sample_perplexity(each: Sequence[Sequence[float]]) -> float:
    """Return the mean of the perplexities of texts; empty texts are left out, NaN without any.

    Each text has the log-probabilities (nats) of all its tokens, after a begin token.
    """
    scores = [_perplexity(math.fsum(logprobs), len(logprobs)) for logprobs in each if logprobs]
    return statistics.fmean(scores) if scores else math.nan


def _perplexity(log_likelihood: float, tokens: int) -> float:
    if not tokens:
        return math.nan
    mean = -log_likelihood / tokens
    # The largest exponent of a float; a token of probability 0 makes the perplexity infinite.
    return math.exp(mean) if mean < 709.0 else math.inf
