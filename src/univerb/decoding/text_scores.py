"""How phrases score along a text that the LM has read: calibration and the lab measure by it.

Phrases are read as their tokens, so one pass over the text has the states of all positions. In the
flat form one product of matrices scores them; in the conditional form the phrase head of decoding
itself does so, position by position, for the first tokens that matter.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from univerb.config import GenerationConfig
from univerb.decoding.choice import log_ratio
from univerb.decoding.conditional_head import ConditionalPhraseHead, GroupScores
from univerb.decoding.phrase_head import Place
from univerb.engines.factory import engine_of
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.evidence import MAX_OVERLAP
from univerb.modeling.likelihood import (
    PhraseMatch,
    ScoredMatch,
    ScoredText,
    log_sums,
    match_phrases,
    scored_text,
)
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_ANY_LENGTH = 1 << 30

Floats = NDArray[numpy.floating[Any]]


class ReadText(NamedTuple):
    """A text and what the LM says along it; row t is the one that predicts token t."""

    before: Sequence[int]
    """The tokens that the LM had read before the text."""
    ids: Sequence[int]
    hidden: Tensor
    """(T, d)"""
    logits: Tensor
    """(T, V)"""


class TextScores(ABC):
    """The phrases of a vocabulary along a text.

    Args:
        ids: The text.
        logits: The LM's own along it (T, V).
        phrases: Those of the vocabulary, by index.
        matches: Which of them agree with the text; looked up if not given.
    """

    def __init__(
        self,
        ids: Sequence[int],
        logits: Floats,
        phrases: Sequence[Phrase],
        matches: Sequence[Sequence[PhraseMatch]] | None = None,
    ) -> None:
        self.ids, self.logits, self.phrases = list(ids), logits, phrases
        self.matches = matches or match_phrases(self.ids, [phrase.ids for phrase in phrases])
        """For each position the phrases that agree with the text."""
        self.best: list[int] = logits.argmax(-1).tolist()
        """The LM's greedy token at each position."""
        self.top: list[float] = logits.max(-1).tolist()
        """Its logit."""
        self._token_logits = logits[numpy.arange(len(self.ids)), self.ids].astype(numpy.float64)
        self._token_total = log_sums(logits)

    @property
    def bare_likelihood(self) -> float:
        """The log-probability of the text without phrases, in nats."""
        return float((self._token_logits - self._token_total).sum())

    @abstractmethod
    def scored(self, bias: float) -> ScoredText:
        """Return the text as its likelihood needs it, with a `phrase_bias`."""

    def token(self, position: int, tolerance: float) -> int:
        """Return the token that greedy decoding chooses at a position, or goes on from."""
        return self.best[position]

    @abstractmethod
    def phrase(
        self, position: int, tolerance: float, bias: float = 0.0, eagerness: float = 0.0
    ) -> int | None:
        """Return the phrase that greedy decoding chooses at a position, as an index, or None.

        By the rule of `decoding.choice`; tolerance 1 is also that of `atomic`.
        """


class FlatTextScores(TextScores):
    """The flat form: all phrases compete with all tokens."""

    def __init__(
        self,
        ids: Sequence[int],
        logits: Floats,
        phrases: Sequence[Phrase],
        scores: Floats,
        matches: Sequence[Sequence[PhraseMatch]] | None = None,
    ) -> None:
        """Take the phrases' logits along the text (T, P), too, without a bias of the decoding."""
        super().__init__(ids, logits, phrases, matches)
        self._scores = scores
        self._first_tokens = [phrase.ids[0] for phrase in phrases]
        self._text = scored_text(self.matches, self._token_logits, self._token_total, scores)
        self._likeliest = functools.cache(self._find_likeliest)

    def scored(self, bias: float) -> ScoredText:
        """Return the text as its likelihood needs it, with a `phrase_bias`."""
        return self._text.biased(bias)

    def phrase(
        self, position: int, tolerance: float, bias: float = 0.0, eagerness: float = 0.0
    ) -> int | None:
        """Return the best phrase whose first token the LM accepts, if it beats all tokens."""
        if not self.phrases:
            return None
        index, score = self._likeliest(position, tolerance)
        return index if score + bias + eagerness > self.top[position] else None

    def _find_likeliest(self, position: int, tolerance: float) -> tuple[int, float]:
        limit = self.top[position] + log_ratio(tolerance)
        is_accepted = self.logits[position, self._first_tokens] >= limit
        scores = numpy.where(is_accepted, self._scores[position], -numpy.inf)
        index = int(scores.argmax())
        return index, float(scores[index])


class ConditionalTextScores(TextScores):
    """The conditional form: documents vote on the token, and phrases go on from it."""

    def __init__(
        self,
        text: ReadText,
        phrases: Sequence[Phrase],
        head: ConditionalPhraseHead,
        matches: Sequence[Sequence[PhraseMatch]] | None = None,
    ) -> None:
        """Take the head that scores the phrases, without a bias of the decoding."""
        super().__init__(text.ids, _array(text.logits), phrases, matches)
        self._head = head
        self._hidden = text.hidden.detach().float().cpu().numpy()
        self._before = list(text.before)
        self._voted = numpy.array([head.voted(self._place(at)) for at in range(len(self.ids))])
        self._group_scores = functools.cache(self._score_group)
        self._greedy = functools.cache(self._go_on)

    def scored(self, bias: float) -> ScoredText:
        """Return the text with probabilities: each position's add up to one already."""
        voted = self._voted.reshape(self.logits.shape)[numpy.arange(len(self.ids)), self.ids]
        logprobs = voted - self._token_total
        matches: list[list[ScoredMatch]] = []
        for position, token in enumerate(self.ids):
            before = float(logprobs[position])
            scores = self._group_scores(position, token)
            shares: dict[int, float] = {}
            if scores is not None:
                chosen = scores.log_probs(bias)
                logprobs[position] += chosen.stops[0]
                shares = dict(zip(scores.indices.tolist(), chosen.phrases.tolist(), strict=True))
            matches.append(
                [
                    ScoredMatch(match.size, before + shares[match.phrase])
                    for match in self.matches[position]
                    if match.phrase in shares
                ]
            )
        nothing = numpy.full(len(logprobs), -numpy.inf)
        return ScoredText(logprobs, numpy.zeros(len(logprobs)), nothing, matches)

    def token(self, position: int, tolerance: float) -> int:
        """Return the token that the LM and the documents choose among those that it accepts."""
        # At tolerance 0 the text is the LM's own.
        if tolerance == 0.0:
            return self.best[position]
        limit = self.top[position] + log_ratio(tolerance)
        is_accepted = self.logits[position] >= limit
        return int(numpy.where(is_accepted, self._voted[position], -numpy.inf).argmax())

    def phrase(
        self, position: int, tolerance: float, bias: float = 0.0, eagerness: float = 0.0
    ) -> int | None:
        """Return the phrase that goes on from the token that is chosen."""
        return self._greedy(position, self.token(position, tolerance), bias, eagerness)

    def _go_on(self, position: int, token: int, bias: float, eagerness: float) -> int | None:
        scores = self._group_scores(position, token)
        return scores and scores.greedy(bias, eagerness)

    def _score_group(self, position: int, token: int) -> GroupScores | None:
        return self._head.scores(token, self._place(position))

    def _place(self, position: int) -> Place:
        text = [*self._before[-MAX_OVERLAP:], *self.ids[:position]][-MAX_OVERLAP:]
        logits = self.logits[position].astype(numpy.float32, copy=False)
        return Place(self._hidden[position], logits, text, _ANY_LENGTH)


class PhraseScorer:
    """Scores the phrases of a vocabulary along texts.

    Args:
        lm: The LM and its encoder.
        vocabulary: The phrases, which stay as they are.
    """

    def __init__(self, lm: DynamicLM, vocabulary: DynamicVocabulary) -> None:
        self.vocabulary = vocabulary
        self.phrases: Sequence[Phrase] = vocabulary.snapshot().phrases
        self._lm = lm
        self._head: ConditionalPhraseHead | None = None
        if lm.scoring.is_conditional:
            weights, config = engine_of(lm).phrase_weights(), GenerationConfig(phrase_bias=0.0)
            self._head = ConditionalPhraseHead(lm, weights, vocabulary, config, lm.eos_ids)
            self._head.update()

    def along(
        self, text: ReadText, matches: Sequence[Sequence[PhraseMatch]] | None = None
    ) -> TextScores:
        """Score the phrases along a text; `matches` are looked up if not given."""
        if self._head is not None:
            return ConditionalTextScores(text, self.phrases, self._head, matches)
        no_tokens, table = text.logits[:, :0], self._lm.tensors(self.vocabulary)
        logits = no_tokens if table is None else table.unit_logits(no_tokens, text.hidden)
        scores = _array(logits)
        # A text ends at its end token, so decoding masks phrases that go on after one.
        ends = [not self._lm.eos_ids.isdisjoint(phrase.ids) for phrase in self.phrases]
        scores = numpy.where(numpy.array(ends, bool), -numpy.inf, scores)
        return FlatTextScores(text.ids, _array(text.logits), self.phrases, scores, matches)


def _array(tensor: Tensor) -> Floats:
    """Return a tensor for numpy, which has no bfloat16."""
    array: Floats = (
        tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).cpu().numpy()
    )
    return array
