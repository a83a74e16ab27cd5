"""What a language model makes of a whole text: states, and figures of its next-token distributions.

Logits of all positions are many times larger than the states, so they are reduced as they come.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.engines.llamacpp.binding import last_error
from univerb.engines.llamacpp.native import PASS_ROWS, Context, Floats, NativeModel
from univerb.errors import ModelError, OptionError

_BLOCK = 32
"""Rows of logits that are reduced at once: they fit into a processor's cache."""


class TextStates(NamedTuple):
    """A text of N tokens as the LM sees it, one row for each position."""

    hidden: Floats
    """States after the final norm, (N, d)."""
    log_sum: Floats
    """The logarithm of the sum of exp(logit) over all tokens, (N,)."""
    top_logit: Floats
    """The largest logit, (N,)."""
    top_token: NDArray[numpy.int32]
    """The token that has it, (N,)."""
    next_logprob: Floats
    """The log-probability of the text's next token, (N - 1,): the last has none."""


def read_text(model: NativeModel, ids: Sequence[int]) -> TextStates:
    """Read a text from its beginning.

    Args:
        model: Computes, with its number of threads.
        ids: Tokens, at most as many as the model's context has.

    Returns:
        Copies, so they stay.

    Raises:
        OptionError: If there are no tokens, too many, or one that the model does not have.
        ModelError: If llama.cpp fails.
    """
    if not 1 <= len(ids) <= model.context_size:
        raise OptionError(f"a text of {len(ids)} tokens. Allowed: 1 to {model.context_size}.")
    if min(ids) < 0 or max(ids) >= model.static_size:
        raise OptionError(
            f"tokens from {min(ids)} to {max(ids)}. Allowed: 0 to {model.static_size - 1}."
        )
    context = model.acquire(len(ids), 1)
    try:
        context.give_states(True)
        begins = range(0, len(ids), PASS_ROWS)
        passes = [_read_pass(context, ids, begin) for begin in begins]
    finally:
        model.release(context)
    joined = TextStates(*map(numpy.concatenate, zip(*passes, strict=True)))
    return joined._replace(next_logprob=joined.next_logprob[:-1])


def _read_pass(context: Context, ids: Sequence[int], begin: int) -> TextStates:
    """Read the tokens of one pass; those before it have been read."""
    tokens = list(ids[begin : begin + PASS_ROWS])
    positions = range(begin, begin + len(tokens))
    if code := context.read(tokens, positions, [0] * len(tokens), True):
        raise ModelError(
            f"llama.cpp failed at token {begin} of {len(ids)} (code {code}): {last_error()}. Use "
            "shorter texts."
        )
    following = numpy.array([*tokens[1:], *ids[begin + PASS_ROWS :][:1], 0][: len(tokens)])
    blocks = [range(len(tokens))[at : at + _BLOCK] for at in range(0, len(tokens), _BLOCK)]
    figures = [_reduced(context.logits(rows), following[rows]) for rows in blocks]
    joined = map(numpy.concatenate, zip(*figures, strict=True))
    return TextStates(context.states(range(len(tokens))), *joined)


def _reduced(
    logits: Floats, following: NDArray[numpy.int64]
) -> tuple[Floats, Floats, NDArray[numpy.int32], Floats]:
    """Reduce logits (n, V), which are overwritten, given the next tokens (n,)."""
    rows = numpy.arange(len(logits))
    best = logits.argmax(axis=1)
    top, chosen = logits[rows, best], logits[rows, following]
    logits -= top[:, None]
    log_sum = top + numpy.log(numpy.exp(logits, out=logits).sum(axis=1))
    return log_sum, top, best.astype(numpy.int32), chosen - log_sum
