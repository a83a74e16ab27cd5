"""Training the guess of the LM's next state (`modeling.conditional`), which phrases are scored by.

The states of a passage are there, so at every word the state after its first token is known, and
with it what the LM would write next: far more to learn from than the few places where the text goes
on with a candidate.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor, nn

from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import START
from univerb.training.frozen.states import PassageStates

# Products are taken for probabilities without dividing by their sum, which would cost a pass over
# V at every step: it has to be about one.
_SUM_WEIGHT = 0.1
# Of the fit: penalty in units of the inputs' own variance, words whose sums are computed, and how
# many of them at a time.
_RIDGE = 0.02
_SUMMED = 4096
_ROWS = 256


class _Words(NamedTuple):
    """The first tokens of words."""

    before: Tensor
    """(K, d) the LM's states before them."""
    rows: Tensor
    """(K, d) their input rows."""
    after: Tensor
    """(K, d) its states after them."""


def _words(lm: DynamicLM, passage: PassageStates, places: Ints) -> _Words:
    with torch.no_grad():
        rows = lm.embeddings.input(passage.ids[places + 1].clone())
    return _Words(passage.hidden[places].float(), rows, passage.hidden[places + 1].float())


def _joined(parts: Iterable[_Words]) -> _Words:
    return _Words(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _word_starts(passage: PassageStates) -> Ints:
    """Return the tokens after which a word begins."""
    return numpy.flatnonzero(passage.text.has(START)[1 : len(passage.ids)])


def guess_losses(
    lm: DynamicLM,
    passages: Sequence[PassageStates],
    count: int,
    generators: Sequence[numpy.random.Generator],
) -> Tensor:
    """Compare what the LM expects after the first tokens of words with what the guess expects.

    Args:
        lm: The frozen LM and its encoder.
        passages: Texts with the LM's states.
        count: Places of each passage, at most.
        generators: Draw them, one for each passage.

    Returns:
        (K,) KL(LM || guess) over V at each place, and a price for sums that are not one.
    """
    head, output = lm.encoder.conditional, lm.embeddings.output
    assert head is not None
    words = _joined(
        _words(lm, passage, generator.permutation(_word_starts(passage))[:count])
        for passage, generator in zip(passages, generators, strict=True)
    )
    with torch.autocast(words.rows.device.type, enabled=False):
        query, offset = head.query(head.state(words.before), words.rows)
        guess = query * query.shape[-1] ** 0.5 @ head.unwhiten
    with torch.no_grad():
        wanted = output(words.after).float().log_softmax(-1)
    logits = output(guess).float()
    total = logits.logsumexp(-1)
    divergence = (wanted.exp() * (wanted - logits)).sum(-1) + total
    losses: Tensor = divergence + _SUM_WEIGHT * (total + offset).square()
    return losses


@torch.no_grad()
def fit_guess(lm: DynamicLM, passages: Sequence[PassageStates]) -> None:
    """Begin with the best linear guess of the next state, and of what its products sum up to.

    Gradient steps alone would need hundreds of steps to come as far.
    """
    head = lm.encoder.conditional
    assert head is not None
    words = _joined(_words(lm, passage, _word_starts(passage)) for passage in passages)
    if not len(words.rows):
        return
    inputs = head.guess_inputs(head.state(words.before), words.rows)
    inputs = nn.functional.pad(inputs, (0, 1), value=1.0)
    states = _ridge(inputs, words.after)
    some = inputs[:_SUMMED]
    sums = [lm.embeddings.output(part @ states).logsumexp(-1) for part in torch.split(some, _ROWS)]
    weights = torch.cat([states, _ridge(some, -torch.cat(sums)[:, None])], dim=1)
    head.linear.weight.copy_(weights[:-1].T)
    head.linear.bias.copy_(weights[-1])


def _ridge(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the linear map (n, m) from inputs (N, n) to targets (N, m), by ridge regression."""
    weight = _RIDGE * len(inputs) * torch.eye(inputs.shape[1])
    solved: Tensor = torch.linalg.solve(inputs.T @ inputs + weight, inputs.T @ targets)
    return solved
