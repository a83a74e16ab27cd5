"""The losses of rows of cached states against a pool of phrases: no |V| matrix product.

With M the phrases' share of the softmax over V + P, and everything relative to the bare LM's loss
on the same text (docs/method.md, Frozen regime):

* strict (L_p): only the longest phrase that the text continues with is right; where there is none,
  the LM's token is.
      phrase row  -log P(phrase) + log(probability of its tokens)      token row  -log(1 - M)
* marginal: every segmentation of the text counts, as in the exact likelihood.
      -log((1 - M) + sum over phrases that match of P(phrase) / probability of its tokens)

The constants do not move the gradient; they make a loss below zero mean fewer bits than the LM.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.training.frozen.pools import Candidates
from univerb.training.frozen.windows import Windows


class GoldMatches(NamedTuple):
    """Candidates that the text really continues with, row by row."""

    candidate: Tensor
    """(R, L) the candidate that is the first l + 1 tokens; -1 if there is none."""
    masked: Tensor
    """(R, L) candidates hidden from the row, since only its own text brought them; or -1."""


class RowLosses(NamedTuple):
    """The losses of each row, and what it would choose."""

    strict: Tensor
    marginal: Tensor
    gold: Tensor
    """(R,) the right candidate; -1 where a token is right."""
    chosen: Tensor
    """(R,) the candidate with the largest score."""
    fires: Tensor
    """(R,) whether it beats every token."""
    is_right: Tensor
    """(R,) whether the text continues with it."""


def match_gold(rows: Windows, pool: Candidates, length: Tensor, mask_true: bool) -> GoldMatches:
    """Look up the true continuations of rows.

    Args:
        rows: The rows.
        pool: The candidates.
        length: (R,) tokens of the phrase that a row owns; 0 if it owns none.
        mask_true: Hide what a row's own text brought beyond that phrase. Otherwise it counts as
            a negative, as extensions do in the paper.

    Returns:
        What matches.
    """
    index = torch.where(rows.is_phrase, pool.index_of(rows.keys), -1)
    columns = torch.arange(index.shape[1])
    beyond = (length > 0)[:, None] & (columns >= length[:, None]) & (index >= 0)
    if mask_true:
        beyond &= pool.owners[index.clamp_min(0)] == 1
        return GoldMatches(torch.where(beyond, -1, index), torch.where(beyond, index, -1))
    return GoldMatches(torch.where(beyond, -1, index), torch.full_like(index, -1))


def row_losses(
    logits: Tensor, logsumexp: Tensor, max_logit: Tensor, rows: Windows, matches: GoldMatches
) -> RowLosses:
    """Compute both losses of rows, relative to the bare LM, in nats.

    Args:
        logits: (R, K) of the candidates.
        logsumexp: (R,) of the LM's logits over V.
        max_logit: (R,) the largest of them.
        rows: The rows.
        matches: Their true continuations.

    Returns:
        The losses.
    """
    row, column = (matches.masked >= 0).nonzero(as_tuple=True)
    if len(row):
        masked = row, matches.masked[row, column]
        logits = logits.index_put(masked, logits.new_tensor(-torch.inf))
    total = torch.logaddexp(logsumexp, logits.logsumexp(1))
    is_match = matches.candidate >= 0
    phrases = logits.gather(1, matches.candidate.clamp_min(0)) - total[:, None] - rows.logprob
    phrases = phrases.masked_fill(~is_match, -torch.inf)
    tokens = logsumexp - total
    columns = torch.arange(is_match.shape[1])
    longest = torch.where(is_match, columns, -1).amax(1)
    has_gold = longest >= 0
    longest = longest.clamp_min(0)[:, None]
    top, chosen = logits.detach().max(1)
    return RowLosses(
        strict=-torch.where(has_gold, phrases.gather(1, longest)[:, 0], tokens),
        marginal=-torch.cat([tokens[:, None], phrases], dim=1).logsumexp(1),
        gold=matches.candidate.gather(1, longest)[:, 0].where(has_gold, -1),
        chosen=chosen,
        fires=top > max_logit,
        is_right=(matches.candidate == chosen[:, None]).any(1),
    )
