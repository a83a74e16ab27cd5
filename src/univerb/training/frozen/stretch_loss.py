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
from torch import Tensor, nn

from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.likelihood import segmentations
from univerb.training.frozen.pools import Stretch
from univerb.training.frozen.votes import Ballot


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
    stop: Tensor
    """(C,) of stopping at each node."""


def stretch_loss(
    head: ConditionalHead,
    stretch: Stretch,
    vectors: Tensor,
    hidden: Tensor,
    next_logprob: Tensor,
    voted_logprob: Tensor,
    unit_price: float,
) -> StretchLoss:
    """Compute the loss of a stretch.

    Args:
        head: Scores states.
        stretch: The ways of writing it.
        vectors: (O, d) the output vectors of its options.
        hidden: (N, d) the LM's states after each token of the passage.
        next_logprob: (N,) the LM's log-probability of the token that follows each.
        voted_logprob: (T,) that of each token of the stretch, with the documents' vote.
        unit_price: Nats that a unit less is worth.

    Returns:
        The loss.
    """
    state = torch.from_numpy(stretch.state)
    choice = torch.from_numpy(stretch.choice)
    # A place may have several nodes.
    places, place = torch.unique(state, return_inverse=True)
    states = head.state(hidden[places].float())
    products = (head.scaled(states)[place[choice]] * vectors).sum(-1)
    scores = products + head.bonus(stretch.evidence)
    scores = scores + torch.from_numpy(stretch.log_weight).float()
    kinds, totals = torch.from_numpy(stretch.is_phrase), torch.from_numpy(stretch.total)
    # The last one, where there is none, counts as zero.
    arrival = nn.functional.pad(products, (0, 1))[torch.from_numpy(stretch.arrival)]
    stops = head.stops(states[place], kinds, totals, arrival)
    total = _log_totals(scores, choice, stops)
    go, stop = scores - total[choice], stops - total
    begin = torch.from_numpy(stretch.unit_begin)
    logprob = voted_logprob[begin - stretch.begin].double()
    for parts, (unit, index) in ((go, stretch.taken), (stop, stretch.stopped)):
        chosen = parts[torch.from_numpy(index)].double()
        logprob = logprob.index_add(0, torch.from_numpy(unit), chosen)
    values, edges = logprob.detach().numpy(), (stretch.unit_begin, stretch.unit_end)
    exact = segmentations(*edges, values, 0.0).log_likelihood
    priced = segmentations(*edges, values, unit_price)
    tokens = float(next_logprob[stretch.begin - 1 : stretch.end - 1].double().sum())
    lengths = stretch.unit_end - stretch.unit_begin
    expected = (torch.from_numpy(priced.posterior) * logprob).sum()
    gained = priced.log_likelihood - tokens
    # It has the gradient of what is gained, but another value.
    loss = expected.detach() - expected - gained
    saved = float((priced.posterior * (lengths - 1)).sum())
    return StretchLoss(loss.float(), exact - tokens, gained, saved, go, stop)


def _log_totals(scores: Tensor, choice: Tensor, stops: Tensor) -> Tensor:
    """Return logsumexp over the options of each choice and stopping."""
    highest = stops.detach().scatter_reduce(0, choice, scores.detach(), "amax")
    shares = (scores - highest[choice]).exp()
    total = (stops - highest).exp().index_add(0, choice, shares)
    return highest + total.log()


def voted_logprobs(
    head: ConditionalHead,
    ballot: Ballot,
    vectors: Tensor,
    output_rows: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    logprob: Tensor,
) -> Tensor:
    """Return the log-probability (T,) of each token of a stretch, with the documents' vote.

    Args:
        head: Scores states.
        ballot: The tokens that are voted on.
        vectors: (F, d) their output vectors, each as a phrase of one token.
        output_rows: (F, d) the LM's output rows of them.
        hidden: (T, d) the LM's states before each token of the stretch.
        logsumexp: (T,) of its logits there.
        logprob: (T,) the LM's own log-probability of each.

    Returns:
        log(P(LM's part) P_LM(token) + P(documents' part) P_documents(token)).
    """
    if not len(ballot.tokens):
        return logprob
    own = hidden.float() @ output_rows.T - logsumexp[:, None]
    own = own + torch.from_numpy(ballot.log_weight).float()
    state = head.state(hidden.float())
    scores = head.scaled(state) @ vectors.T
    longest = torch.from_numpy(ballot.longest)
    part, chosen = head.voted(state, scores, own, ballot.evidence, longest)
    truth = torch.from_numpy(ballot.truth)
    named = chosen.gather(1, truth.clamp_min(0)[:, None])[:, 0].masked_fill(truth < 0, -torch.inf)
    by_lm = nn.functional.logsigmoid(-part) + logprob
    return torch.logaddexp(by_lm, nn.functional.logsigmoid(part) + named)
