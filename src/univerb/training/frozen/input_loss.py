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
from univerb.training.frozen.states import TokenizedPassages
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


def input_losses(
    lm: DynamicLM, passages: TokenizedPassages, rows: Windows, lengths: Tensor, context: int
) -> AfterPhrase:
    """Feed phrases as single vectors and compare what the LM expects after them.

    Args:
        lm: The frozen LM and its encoder.
        passages: Some text.
        rows: Where the phrases begin, all in one passage.
        lengths: (B,) their tokens.
        context: Tokens of text before the last phrase, at most.

    Returns:
        The divergences, with gradients to the encoder.
    """
    begin = rows.before + 1
    end = begin + lengths
    first_of_passage = int((passages.passage < passages.passage[begin[0]]).sum())
    base = max(int(end.max()) - context, first_of_passage)
    # Also the first phrase has text before it.
    base = min(base, max(int(begin.min()) - 1, first_of_passage))
    # A passage begins as a prompt does; so does a text that begins within one.
    special = lm.tokenizer.begin_ids if base > first_of_passage else []
    text = Branches(lm, [*special, *passages.ids[base : int(end.max())].tolist()])
    base -= len(special)
    hidden = lm.encoder.hidden_states(rows.ids[:, : int(lengths.max())], lm.embeddings)
    at_last = torch.arange(len(rows)), lengths - 1
    last, first = rows.ids[at_last], rows.ids[:, 0]
    vectors, _ = lm.encoder.heads(
        hidden[at_last], lm.embeddings.input(last), lm.embeddings.output_weight[first]
    )
    # It has the position of its last token: later tokens then keep their positions.
    branches = [
        Branch(start - base, vector[None], size - 1)
        for start, vector, size in zip(begin.tolist(), vectors, lengths.tolist(), strict=True)
    ]
    return after_phrase(lm, text.read(branches), text.hidden[end - 1 - base])
