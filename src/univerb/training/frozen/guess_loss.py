"""Training the guess of the LM's next state (`modeling.conditional`), which phrases are scored by.

The states of a passage are there, so at every word the state after its first token is known, and
with it what the LM would write next: far more to learn from than the few places where the text goes
on with a candidate.
"""

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.tokenized import START
from univerb.training.frozen.states import PassageStates

# Products are taken for probabilities without dividing by their sum, which would cost a pass over
# V at every step: it has to be about one.
_SUM_WEIGHT = 0.1


def guess_losses(
    lm: DynamicLM, passages: Sequence[PassageStates], count: int, generator: numpy.random.Generator
) -> Tensor:
    """Compare what the LM expects after the first tokens of words with what the guess expects.

    Args:
        lm: The frozen LM and its encoder.
        passages: Texts with the LM's states.
        count: Places of each passage, at most.
        generator: Draws them.

    Returns:
        (K,) KL(LM || guess) over V at each place, and a price for sums that are not one.
    """
    head, weight = lm.encoder.conditional, lm.embeddings.output_weight
    assert head is not None
    before, after, tokens = [], [], []
    for passage in passages:
        starts = numpy.flatnonzero(passage.text.has(START)[1 : len(passage.ids)])
        some = generator.permutation(starts)[:count]
        before.append(passage.hidden[some].float())
        after.append(passage.hidden[some + 1].float())
        tokens.append(passage.ids[some + 1])
    with torch.no_grad():
        rows = lm.embeddings.input(torch.cat(tokens))
    with torch.autocast(weight.device.type, enabled=False):
        guess, offset = _guess(head, torch.cat(before), rows)
    with torch.no_grad():
        wanted = lm.embeddings.output(torch.cat(after).to(weight)).float().log_softmax(-1)
    logits = lm.embeddings.output(guess.to(weight)).float()
    total = logits.logsumexp(-1)
    divergence = (wanted.exp() * (wanted - logits)).sum(-1) + total
    losses: Tensor = divergence + _SUM_WEIGHT * (total + offset).square()
    return losses


def _guess(head: ConditionalHead, hidden: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the guess as the LM has its states, and what is added to its logits."""
    query, offset = head.query(head.state(hidden), rows)
    return query * query.shape[-1] ** 0.5 @ head.unwhiten, offset
