"""Distillation of the LM's own expectation into the choice among phrases that begin as the text.

The text shows which of the candidates was right, if any: little information in most places. The
state after the true first token says more. It gives the probability of every second token, so of
all phrases that share that first token: which of them the LM would go on to write.
"""

import torch
from torch import Tensor

from univerb.training.frozen.pools import CandidateTree, Stretch
from univerb.training.frozen.states import PassageStates


def distillation_loss(
    pool: CandidateTree, stretch: Stretch, go: Tensor, passage: PassageStates, output_weight: Tensor
) -> Tensor:
    """Compare the choice among phrases with the LM's second tokens, where it first goes on.

    Args:
        pool: The candidates.
        stretch: The choices along the text.
        go: (O,) log-probability of each option, given that its node is reached.
        passage: The LM's states.
        output_weight: (V, d) the LM's output matrix.

    Returns:
        KL(LM || phrases) over the second tokens that the options offer, summed over the choices
        and weighted by the LM's probability that one of these tokens follows.
    """
    is_first = ~torch.from_numpy(stretch.is_phrase)
    choice = torch.from_numpy(stretch.choice)
    mask = is_first[choice]
    # A sampled option stands for those that it shares the second token with.
    weight = torch.from_numpy(stretch.group_weight - stretch.log_weight).float()
    choice, scores = choice[mask], (go + weight)[mask]
    second = torch.from_numpy(pool.ids[stretch.option, 1])[mask]
    count = len(stretch.state)
    pairs, pair = torch.unique(torch.stack([choice, second]), dim=1, return_inverse=True)
    after = torch.from_numpy(stretch.state)[pairs[0]] + 1
    with torch.no_grad():
        products = (passage.hidden[after].float() * output_weight[pairs[1]]).sum(-1)
        teacher = (products - passage.logsumexp[after]).exp()
        covered = torch.zeros(count).index_add(0, pairs[0], teacher)
        target = teacher / covered[pairs[0]].clamp_min(1e-9)
    # What the options have in common is whether to go on at all: not the LM's question.
    shares = scores.exp()
    total = torch.zeros(count).index_add(0, choice, shares)
    student = torch.zeros(len(target)).index_add(0, pair, shares) / total[pairs[0]].clamp_min(1e-9)
    # Where the target is 0, so is the term, whatever the scores.
    divergence = target * (target.clamp_min(1e-12).log() - student.clamp_min(1e-12).log())
    return (divergence * covered[pairs[0]]).sum()
