"""The losses of rows of cached states against a pool of phrases: no |V| matrix product.

With z the logsumexp of the LM's logits over V, M the phrases' share of the softmax over V + P, and
everything relative to what the bare LM pays for the same text:

* L_p: only the longest phrase that fits is right; where none fits, the LM's own token is.
      phrase row  -log P(phrase) + log(probability of its tokens)      token row  -log(1 - M)
* marginal: every way to write the text counts, as in the exact likelihood (DESIGN 6).
      -log((1 - M) + sum over phrases that fit of P(phrase) / probability of its tokens)

The constants do not move the gradient; they make a loss below zero mean fewer bits than the LM.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.training.frozen.pools import Candidates
from univerb.training.frozen.windows import Windows


class Fits(NamedTuple):
    """Which candidates the text really goes on with, row by row."""

    place: Tensor
    """(R, L) the candidate that is the first so many tokens, less one; -1 if there is none."""
    barred: Tensor
    """(R, L) candidates that the row must not see: nothing but its own text brought them."""


class RowLosses(NamedTuple):
    """What each row pays, and what it would choose."""

    strict: Tensor
    marginal: Tensor
    gold: Tensor
    """(R,) the right candidate; -1 where a token is right."""
    chosen: Tensor
    """(R,) the candidate with the largest score."""
    fires: Tensor
    """(R,) whether it beats every token."""
    is_right: Tensor
    """(R,) whether the text goes on with it."""


def fits(rows: Windows, pool: Candidates, length: Tensor, mask_true: bool) -> Fits:
    """Look up the true continuations of rows.

    Args:
        rows: The rows.
        pool: What they choose from.
        length: (R,) tokens of the phrase that a row owns; 0 if it owns none.
        mask_true: Hide what a row's own text brought beyond that phrase. Otherwise it counts as
            a negative, as extensions do in the paper.

    Returns:
        What fits.
    """
    place = torch.where(rows.allowed, pool.find(rows.keys), -1)
    columns = torch.arange(place.shape[1])
    beyond = (length > 0)[:, None] & (columns >= length[:, None]) & (place >= 0)
    if mask_true:
        beyond &= pool.owners[place.clamp_min(0)] == 1
        return Fits(torch.where(beyond, -1, place), torch.where(beyond, place, -1))
    return Fits(torch.where(beyond, -1, place), torch.full_like(place, -1))


def row_losses(
    logits: Tensor, total: Tensor, best: Tensor, rows: Windows, found: Fits
) -> RowLosses:
    """Compute both losses of rows.

    Args:
        logits: (R, K) of the candidates.
        total: (R,) logsumexp over V.
        best: (R,) largest logit over V.
        rows: The rows.
        found: What fits them.

    Returns:
        The losses, relative to the bare LM, in nats.
    """
    row, column = (found.barred >= 0).nonzero(as_tuple=True)
    if len(row):
        logits = logits.index_put((row, found.barred[row, column]), logits.new_tensor(-torch.inf))
    whole = torch.logaddexp(total, logits.logsumexp(1))
    is_fit = found.place >= 0
    own = logits.gather(1, found.place.clamp_min(0)) - whole[:, None] - rows.cost
    own = own.masked_fill(~is_fit, -torch.inf)
    tokens = total - whole
    columns = torch.arange(is_fit.shape[1])
    longest = torch.where(is_fit, columns, -1).amax(1)
    has_gold = longest >= 0
    at_gold = own.gather(1, longest.clamp_min(0)[:, None])[:, 0]
    top, chosen = logits.detach().max(1)
    return RowLosses(
        strict=-torch.where(has_gold, at_gold, tokens),
        marginal=-torch.cat([tokens[:, None], own], dim=1).logsumexp(1),
        gold=found.place.gather(1, longest.clamp_min(0)[:, None])[:, 0].where(has_gold, -1),
        chosen=chosen,
        fires=top > best,
        is_right=(found.place == chosen[:, None]).any(1),
    )
