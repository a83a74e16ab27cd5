"""Log-probabilities of continuations over V + P, exact: over all ways to write them.

Phrases are read as their tokens (`unfold` with tolerance 1), so the states are the bare LM's. The
continuations of one context share its pass; what follows is one more pass for all of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from univerb.lab.harness.phrases import Phrases
from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import Fit, ScoredText, exact_likelihood, fits, scored_text

_TOGETHER = 512
"""Tokens of continuations that are read in one pass: each looks at all of them."""
_SCORES = 1 << 25
"""Logits that are held at once."""


class Likelihood(NamedTuple):
    """What the harness asks of a continuation."""

    logprob: float
    """In nats, that the text goes on so; what comes after it is not asked."""
    is_greedy: bool
    """Whether greedy decoding, unit by unit, goes on so."""


@torch.inference_mode()
def likelihoods(
    lm: DynamicLM,
    context: Sequence[int],
    continuations: Sequence[Sequence[int]],
    phrases: Phrases | None,
    phrase_bias: float,
) -> list[Likelihood]:
    """Score continuations of one context.

    Args:
        lm: The model.
        context: Its tokens, at least one.
        continuations: Their tokens.
        phrases: What else may be written; None for the bare LM.
        phrase_bias: Added to the logit of every phrase, besides the encoder's own bias.

    Returns:
        One result for each continuation, in order.
    """
    states = _states(lm, context, continuations)
    each = zip(states, continuations, strict=True)
    return [_likelihood(lm, own, ids, phrases, phrase_bias) for own, ids in each]


def _states(
    lm: DynamicLM, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> Iterator[Tensor]:
    """Yield for each continuation the states that predict its tokens, (T, d)."""
    # A branch's mask knows no sliding window.
    if len(continuations) == 1 or lm.has_window:
        for ids in continuations:
            yield Branches(lm, [*context, *ids[:-1]]).hidden[len(context) - 1 :]
        return
    text = Branches(lm, context)
    for part in _parts(continuations):
        # No state is needed after a last token.
        rows = [_rows(lm, ids[:-1]) for ids in part]
        read = text.read([Branch(len(context), own) for own in rows])
        for own in torch.split(read, [len(own) for own in rows]):
            yield torch.cat([text.hidden[-1:], own])


def _parts(continuations: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield continuations in order, as many as go together."""
    part: list[Sequence[int]] = []
    for ids in continuations:
        if part and sum(map(len, part)) + len(ids) > _TOGETHER:
            yield part
            part = []
        part.append(ids)
    yield part


def _rows(lm: DynamicLM, ids: Sequence[int]) -> Tensor:
    given = torch.tensor(list(ids), dtype=torch.long, device=lm.model.device)
    rows: Tensor = lm.embeddings.input(given)
    return rows


def _likelihood(
    lm: DynamicLM, states: Tensor, ids: Sequence[int], phrases: Phrases | None, bias: float
) -> Likelihood:
    found = fits(ids, phrases.keys if phrases else [])
    step = max(_SCORES // (lm.static_size + (len(phrases.keys) if phrases else 0)), 1)
    texts: list[ScoredText] = []
    chosen: list[int] = []
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        logits = lm.embeddings.output(states[part]).float()
        scores = phrases.scores(states[part]) if phrases else logits[:, :0]
        own = torch.tensor(ids[part], device=logits.device)
        texts.append(
            scored_text(
                found[part],
                logits.gather(1, own[:, None])[:, 0].cpu().numpy(),
                logits.double().logsumexp(-1).cpu().numpy(),
                scores.cpu().numpy(),
            )
        )
        # The first of equals, as in decoding: a token before a phrase.
        chosen += torch.cat([logits, scores + bias], dim=-1).argmax(-1).tolist()
    if not texts:
        return Likelihood(0.0, True)
    logprob = float(exact_likelihood(_joined(texts), [bias])[0])
    return Likelihood(logprob, _is_greedy(ids, found, chosen, lm.static_size))


def _joined(texts: Sequence[ScoredText]) -> ScoredText:
    return ScoredText(
        numpy.concatenate([text.own for text in texts]),
        numpy.concatenate([text.tokens for text in texts]),
        numpy.concatenate([text.phrases for text in texts]),
        [units for text in texts for units in text.units],
    )


def _is_greedy(
    ids: Sequence[int], found: Sequence[Sequence[Fit]], chosen: Sequence[int], size: int
) -> bool:
    """Follow the best units from the beginning, as long as they agree with the text."""
    place = 0
    while place < len(ids):
        unit = chosen[place]
        sizes = {size + fit.phrase: fit.size for fit in found[place]} | {ids[place]: 1}
        if unit not in sizes:
            return False
        place += sizes[unit]
    return True
