"""How likely an LM finds a text behind different prompts."""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from univerb.config import GenerationConfig
from univerb.decoding.loop import resolved_for
from univerb.engines.base import Floats
from univerb.engines.factory import engine_of
from univerb.modeling.phrase_model import PhraseModel

_AT_ONCE = 8
"""Prompts in one pass: their caches lie in memory together."""
_ROWS = 32
"""Tokens in one pass: each has V logits."""


def continuation_logprobs(
    lm: PhraseModel, prompts: Sequence[Sequence[int]], text: Sequence[int]
) -> NDArray[numpy.float64]:
    """Return the log-probability of a text behind each prompt, in nats per token.

    Args:
        lm: The LM; phrases have no part in it.
        prompts: Token ids, at least one each.
        text: Token ids, at least one.

    Returns:
        A number for each prompt.
    """
    engine, config = engine_of(lm), resolved_for(lm, GenerationConfig())
    at_once = 1 if lm.has_window else _AT_ONCE
    scores = []
    for begin in range(0, len(prompts), at_once):
        part = prompts[begin : begin + at_once]
        session = engine.session(config, has_phrases=False, needs_states=False)
        totals = [_logprob(output.logits[-1:], text[:1]) for output in session.prefill(part)]
        for at in range(1, len(text), _ROWS):
            ids = text[at : at + _ROWS]
            outputs = session.step([text[at - 1 : at - 1 + len(ids)]] * len(part))
            totals = [
                total + _logprob(output.logits, ids)
                for total, output in zip(totals, outputs, strict=True)
            ]
        scores += totals
    return numpy.array(scores) / len(text)


def _logprob(logits: Floats, ids: Sequence[int]) -> float:
    """Return the log-probability of ids by their logits (r, V), row by row to copy one at most."""
    total = 0.0
    for row, chosen in zip(logits, ids, strict=True):
        highest = row.max()
        mass = numpy.exp(row - highest).sum(dtype=numpy.float64)
        total += float(row[chosen] - highest - numpy.log(mass))
    return total
