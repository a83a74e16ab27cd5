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
        rows = [[output.logits[-1:]] for output in session.prefill(part)]
        if len(text) > 1:
            for own, output in zip(rows, session.step([text[:-1]] * len(part)), strict=True):
                own.append(output.logits)
        scores += [_mean_logprob(numpy.concatenate(own), text) for own in rows]
    return numpy.array(scores)


def _mean_logprob(logits: Floats, text: Sequence[int]) -> float:
    highest = logits.max(axis=-1, keepdims=True)
    totals = numpy.exp(logits - highest).sum(axis=-1, dtype=numpy.float64)
    chosen = logits[numpy.arange(len(text)), list(text)] - highest[:, 0]
    return float((chosen - numpy.log(totals)).mean())
