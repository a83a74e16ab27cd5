"""The exact likelihood of a stretch of text over all its segmentations, and its gradient.

The gradient of log Z with respect to the log-probability of a unit is the unit's posterior: how
likely it is that the text, as it is, was written with it. So one forward-backward pass over the
units (`modeling.likelihood`) replaces differentiating through the sum.

A price per unit, in nats, makes segmentations with fewer units count for more: 0 is the marginal
likelihood, which hardly fires, since the LM's own next token is always well informed; a very high
one is the paper's L_p, in which only the longest phrases are right.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.likelihood import segmentations
from univerb.training.frozen.pools import Stretch


class StretchLoss(NamedTuple):
    """What is minimised, and what is logged, over a stretch."""

    loss: Tensor
    gain: float
    """Nats by which phrases raise the exact log-likelihood of the text over the bare LM's."""
    priced: float
    """The same with the price per unit: what is maximised."""
    saved: float
    """Units that the expected segmentation, at the price per unit, has fewer than tokens."""
    go: Tensor
    """(O,) log-probability of each option, given that its node is reached."""


@torch.autocast("cpu", enabled=False)
def stretch_loss(
    head: ConditionalHead,
    stretch: Stretch,
    vectors: Tensor,
    hidden: Tensor,
    next_logprob: Tensor,
    unit_price: float,
) -> StretchLoss:
    """Compute the loss of a stretch, in single precision: as it is scored when decoding.

    Args:
        head: Scores states.
        stretch: The ways of writing it.
        vectors: (O, d) the output vectors of its options.
        hidden: (N, d) the LM's states after each token of the passage.
        next_logprob: (N,) the LM's log-probability of the token that follows each.
        unit_price: Nats that a unit less is worth.

    Returns:
        The loss.
    """
    state = torch.from_numpy(stretch.state)
    choice = torch.from_numpy(stretch.choice)
    # A place with several nodes has one query.
    places, place = torch.unique(state, return_inverse=True)
    queries = head.query(hidden[places].float())
    scores = (queries[place[choice]] * vectors).sum(-1)
    scores = scores + head.bonus(torch.from_numpy(stretch.overlap))
    scores = scores + torch.from_numpy(stretch.log_weight).float()
    kinds, sizes = torch.from_numpy(stretch.is_phrase), torch.from_numpy(stretch.size)
    stops = head.stops(hidden[state].float(), kinds, sizes)
    total = _log_totals(scores, choice, stops)
    go, stop = scores - total[choice], stops - total
    begin = torch.from_numpy(stretch.unit_begin)
    bare = next_logprob[begin - 1].double()
    logprob = bare
    for parts, (unit, index) in ((go, stretch.taken), (stop, stretch.stopped)):
        chosen = parts[torch.from_numpy(index)].double()
        logprob = logprob.index_add(0, torch.from_numpy(unit), chosen)
    values, edges = logprob.detach().numpy(), (stretch.unit_begin, stretch.unit_end)
    exact = segmentations(*edges, values, 0.0).log_likelihood
    priced = segmentations(*edges, values, unit_price)
    tokens = float(next_logprob[stretch.begin - 1 : stretch.end - 1].double().sum())
    lengths = stretch.unit_end - stretch.unit_begin
    expected = (torch.from_numpy(priced.posterior) * (logprob - bare)).sum()
    gained = priced.log_likelihood - tokens
    # It has the gradient of what is gained, but another value.
    loss = expected.detach() - expected - gained
    saved = float((priced.posterior * (lengths - 1)).sum())
    return StretchLoss(loss.float(), exact - tokens, gained, saved, go)


def _log_totals(scores: Tensor, choice: Tensor, stops: Tensor) -> Tensor:
    """Return logsumexp over the options of each choice and stopping."""
    highest = stops.detach().scatter_reduce(0, choice, scores.detach(), "amax")
    shares = (scores - highest[choice]).exp()
    total = (stops - highest).exp().index_add(0, choice, shares)
    return highest + total.log()
