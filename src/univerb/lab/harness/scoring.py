"""Exact log-probabilities of continuations over V + P: summed over all segmentations.

Phrases are read as their tokens (`unfold` with tolerance 1), so the states are the bare LM's. The
continuations of one context share its pass, and then need one more pass for all of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from univerb.decoding.text_scores import PhraseScorer, ReadText
from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import PhraseMatch, ScoredText, exact_likelihood, match_phrases

_MAX_PASS = 512
"""Tokens of continuations in one pass, whose attention is over all of them."""
_MAX_LOGITS = 1 << 25
"""Logits in memory at once."""


class Likelihood(NamedTuple):
    """The harness's two figures of a continuation."""

    logprob: float
    """In nats, whatever comes after it."""
    is_greedy: bool
    """Whether greedy decoding writes it."""


@torch.inference_mode()
def likelihoods(
    lm: DynamicLM,
    context: Sequence[int],
    continuations: Sequence[Sequence[int]],
    phrases: PhraseScorer,
    phrase_bias: float,
) -> list[Likelihood]:
    """Score continuations of one context, which has at least one token.

    Without phrases the bare LM is scored. `phrase_bias` is added to the logit of every phrase,
    besides the encoder's own bias.
    """
    states = _states(lm, context, continuations)
    return [
        _likelihood(lm, hidden, context, ids, phrases, phrase_bias)
        for hidden, ids in zip(states, continuations, strict=True)
    ]


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
        read = text.read([Branch(len(context), embedded) for embedded in rows])
        for hidden in torch.split(read, [len(embedded) for embedded in rows]):
            yield torch.cat([text.hidden[-1:], hidden])


def _parts(continuations: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield continuations in order, as many as fit into one pass."""
    part: list[Sequence[int]] = []
    for ids in continuations:
        if part and sum(map(len, part)) + len(ids) > _MAX_PASS:
            yield part
            part = []
        part.append(ids)
    yield part


def _rows(lm: DynamicLM, ids: Sequence[int]) -> Tensor:
    tokens = torch.tensor(list(ids), dtype=torch.long, device=lm.model.device)
    rows: Tensor = lm.embeddings.input(tokens)
    return rows


def _likelihood(
    lm: DynamicLM,
    states: Tensor,
    context: Sequence[int],
    ids: Sequence[int],
    phrases: PhraseScorer,
    bias: float,
) -> Likelihood:
    matches = match_phrases(ids, [phrase.ids for phrase in phrases.phrases])
    step = max(_MAX_LOGITS // (lm.static_size + len(phrases.phrases)), 1)
    texts: list[ScoredText] = []
    best: list[int] = []
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        logits = lm.embeddings.output(states[part]).float()
        text = ReadText([*context, *ids[:begin]], ids[part], states[part], logits)
        scores = phrases.along(text, matches[part])
        texts.append(scores.scored(bias))
        for position in range(len(scores.ids)):
            index = scores.phrase(position, 1.0, bias)
            token = scores.token(position, 1.0)
            best.append(token if index is None else lm.static_size + index)
    if not texts:
        return Likelihood(0.0, True)
    logprob = exact_likelihood(_joined(texts))
    return Likelihood(logprob, _is_greedy(ids, matches, best, lm.static_size))


def _joined(texts: Sequence[ScoredText]) -> ScoredText:
    return ScoredText(
        numpy.concatenate([text.token_logits for text in texts]),
        numpy.concatenate([text.token_total for text in texts]),
        numpy.concatenate([text.phrase_total for text in texts]),
        [matches for text in texts for matches in text.matches],
    )


def _is_greedy(
    ids: Sequence[int],
    matches: Sequence[Sequence[PhraseMatch]],
    best: Sequence[int],
    static_size: int,
) -> bool:
    """Follow the best units from the beginning, as long as they agree with the text."""
    position = 0
    while position < len(ids):
        sizes = {static_size + match.phrase: match.size for match in matches[position]}
        sizes[ids[position]] = 1
        if best[position] not in sizes:
            return False
        position += sizes[best[position]]
    return True
