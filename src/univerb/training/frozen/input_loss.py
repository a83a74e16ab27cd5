"""Training the input head: a phrase fed as one vector should leave the LM where its tokens do.

Each phrase is a branch of the same plain text: it reads the true text before it from the KV cache,
and only its own row is computed with gradients. So one pass over a passage serves many phrases,
and every phrase has an exact context (L_kl of the paper with one phrase per sequence).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM
from univerb.training.frozen.windows import Windows


class AfterPhrase(NamedTuple):
    """Divergence of two next-token distributions, one value per phrase, in nats."""

    learned: Tensor
    """KL(static || dynamic), which is minimised: after as many steps it leaves both smaller than
    training with the other one does."""
    measured: Tensor
    """KL(dynamic || static), the paper's L_kl."""


def after_phrase(lm: DynamicLM, dynamic: Tensor, static: Tensor) -> AfterPhrase:
    """Compare the states (B, d) after phrases fed as vectors and as tokens, over V."""
    vector = lm.embeddings.output(dynamic).float().log_softmax(-1)
    tokens = lm.embeddings.output(static).float().log_softmax(-1)
    return AfterPhrase(
        (tokens.exp() * (tokens - vector)).sum(-1), (vector.exp() * (vector - tokens)).sum(-1)
    )


def context_begin(rows: Windows, lengths: Tensor, context: int) -> int:
    """Return the token from which on a passage is read, for phrases at word starts.

    The last phrase has at most `context` tokens before its end, the first one at least one.
    """
    end = torch.from_numpy(rows.start) + lengths
    return max(min(int(end.max()) - context, int(rows.start.min()) - 1), 0)


def input_losses(
    lm: DynamicLM, ids: Tensor, rows: Windows, lengths: Tensor, base: int
) -> AfterPhrase:
    """Feed phrases as single vectors and compare what the LM expects after them.

    Args:
        lm: The frozen LM and its encoder.
        ids: (N,) a passage.
        rows: Where the phrases begin; not at its first token.
        lengths: (B,) their tokens.
        base: The token from which on the passage is read.

    Returns:
        The divergences, with gradients to the encoder.
    """
    begin = torch.from_numpy(rows.start)
    end = begin + lengths
    # A passage begins as a prompt does; so does a text that begins within one.
    special = lm.tokenizer.begin_ids if base else []
    text = Branches(lm, [*special, *ids[base : int(end.max())].tolist()])
    base -= len(special)
    windows = torch.from_numpy(rows.ids)[:, : int(lengths.max())]
    hidden = lm.encoder.hidden_states(windows, lm.embeddings)
    at_last = torch.arange(len(windows)), lengths - 1
    last = lm.embeddings.input(windows[at_last])
    vectors, _ = lm.encoder.heads(hidden[at_last], last, torch.zeros_like(last))
    # It has the position of its last token: later tokens then keep their positions.
    branches = [
        Branch(start - base, vector[None], size - 1)
        for start, vector, size in zip(begin.tolist(), vectors, lengths.tolist(), strict=True)
    ]
    return after_phrase(lm, text.read(branches), text.hidden[end - 1 - base])
