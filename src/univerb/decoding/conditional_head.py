"""The phrase head of encoders in the conditional form (`modeling.phrase_tree`).

Documents vote on the next token, and a phrase has a share of what its first token then has. So only
phrases that begin with likely tokens are looked at; greedily that is one token.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from univerb.decoding.phrase_head import PhraseHead, PhraseLogits, Place, TokenShare
from univerb.engines.base import Floats, Ints
from univerb.modeling.conditional_table import token_vectors
from univerb.modeling.phrase_tree import MAX_OVERLAP, Key, PhraseTree, TreeLogProbs
from univerb.modeling.scoring import Votes


class _Group:
    """The phrases that begin with one token and may be chosen."""

    def __init__(self, rows: Ints, indices: Ints, keys: list[Key]) -> None:
        self.rows = rows
        self.indices = indices
        self.keys = keys

    @cached_property
    def tree(self) -> PhraseTree:
        return PhraseTree(self.keys)

    @cached_property
    def sorted_keys(self) -> list[Key]:
        return sorted(self.keys)

    @cached_property
    def place(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def lengths(self) -> Ints:
        return numpy.array([len(key) for key in self.keys])


class GroupScores(NamedTuple):
    """The phrases that begin with one token, scored at one place."""

    tree: PhraseTree
    indices: Ints
    """(S,), the id of each is |V| + index."""
    scores: Floats
    """(S,)"""
    stops: Floats
    """(N,), of stopping at the nodes of the tree."""

    def log_probs(self, bias: float = 0.0) -> TreeLogProbs:
        """Return log-probabilities given the token, with a bias for going on."""
        return self.tree.log_probs(self.scores + numpy.float32(bias), self.stops)

    def greedy(self, bias: float = 0.0) -> int | None:
        """Return the phrase that greedy decoding goes on to, as an index; None if it stops."""
        best = self.tree.greedy(self.scores + numpy.float32(bias), self.stops)
        return None if best is None else int(self.indices[best])


class ConditionalPhraseHead(PhraseHead):
    """A vocabulary as one sequence scores it, given first tokens."""

    def __init__(self, *parts: Any) -> None:  # noqa: ANN401  (as `PhraseHead`)
        super().__init__(*parts)
        self._groups: dict[int, _Group] = {}
        self._first_tokens = numpy.empty(0, numpy.int64)
        self._token_vectors = numpy.empty((0, 0), numpy.float32)

    def update(self) -> None:
        """Follow the vocabulary: encode what is new, mask what is gone or banned."""
        before = self._view
        super().update()
        if self._view is not before:
            self._groups = {}
            self._first_tokens = self._active_first_tokens()

    def _active_first_tokens(self) -> Ints:
        """Encode the tokens that phrases begin with, each as a phrase of its own."""
        if self._view is None:
            return numpy.empty(0, numpy.int64)
        tokens = numpy.unique(self._view.first_tokens[self._bias > -numpy.inf])
        self._token_vectors = token_vectors(self._lm, tokens)
        return tokens

    def voted(self, place: Place) -> Floats:
        """Return the logits (V,) of the next token, with the documents' vote."""
        tokens = self._first_tokens
        if not len(tokens):
            return place.logits
        # Not `@`: its threads would wait for those of llama.cpp.
        scores = numpy.vecdot(self._token_vectors, self._lm.scoring.query(place.hidden))
        overlap = numpy.zeros(len(tokens), dtype=numpy.int64)
        for size, keys in self._longer(place.ids, ()):
            following = {key[size] for key in keys if len(key) > size}
            overlap[numpy.isin(tokens, list(following))] = size
        return self._lm.scoring.voted(place.hidden, place.logits, Votes(tokens, scores, overlap))

    def logits(self, place: Place) -> PhraseLogits | None:
        """Score the phrases that begin with the likeliest tokens; `exact` with any."""
        if self._view is None:
            return None
        _, count, _, max_gap = self._weights.short_list
        if self._exact:
            tokens = numpy.unique(self._view.first_tokens)
        else:
            tokens = self._likeliest(place.logits, count, max_gap)
        return self.logits_by_first_token(tokens, place)

    def logits_by_first_token(
        self, tokens: Ints, place: Place, per_token: int | None = None
    ) -> PhraseLogits | None:
        """Score the phrases that begin with one of some tokens."""
        parts = [part for token in tokens.tolist() if (part := self._scored(token, place))]
        if not parts:
            return None
        shares = {token: share for part in parts for token, share in part.shares.items()}
        scored = PhraseLogits(
            numpy.concatenate([part.indices for part in parts]),
            numpy.concatenate([part.first_tokens for part in parts]),
            numpy.concatenate([part.logits for part in parts]),
            shares,
        )
        return scored.where(scored.logits > -numpy.inf)

    def draft(self, token: int, place: Place, bias: float) -> int | None:
        """Return the phrase that is likeliest to go on from a token, with a bias for going on."""
        scores = self.scores(token, place)
        return scores and scores.greedy(bias)

    def scores(self, token: int, place: Place) -> GroupScores | None:
        """Score the phrases that begin with a token, before they share its probability."""
        group = self._group(token)
        if not group.keys:
            return None
        stops = self._lm.scoring.stops(group.tree, place.hidden)
        return GroupScores(group.tree, group.indices, self._scores(group, place), stops)

    def _scored(self, token: int, place: Place) -> PhraseLogits | None:
        scores = self.scores(token, place)
        if scores is None:
            return None
        probabilities = scores.log_probs()
        logits = (place.logits[token] + probabilities.phrases).astype(numpy.float32)
        share = TokenShare(float(probabilities.stops[0]), scores.greedy())
        first_tokens = numpy.full(len(logits), token)
        return PhraseLogits(scores.indices, first_tokens, logits, {token: share})

    def _scores(self, group: _Group, place: Place) -> Floats:
        scores = self._weights.logits(self._lm.scoring.query(place.hidden), [group.rows])
        scores += self._bias[group.rows] + self._lm.scoring.bonus(self._overlaps(group, place.ids))
        scores[group.lengths > place.max_length] = -numpy.inf
        if repeated := self._repeated_indices(place.ids):
            scores[numpy.isin(group.indices, list(repeated))] = -numpy.inf
        return scores

    def _overlaps(self, group: _Group, ids: Sequence[int]) -> Ints:
        """Count the last tokens of a text that are, together with a phrase, a phrase as well."""
        overlaps = numpy.zeros(len(group.keys), dtype=numpy.int64)
        token = group.keys[0][0]
        for size, keys in self._longer(ids, (token,)):
            for key in keys:
                if (place := group.place.get(key[size:])) is not None:
                    overlaps[place] = size
        return overlaps

    def _longer(self, ids: Sequence[int], following: Key) -> Iterator[tuple[int, list[Key]]]:
        """Yield, for the last one, two … tokens, the phrases that begin with them and others."""
        for size in range(1, min(MAX_OVERLAP, len(ids)) + 1):
            begin = (*ids[-size:], *following)
            keys = self._group(begin[0]).sorted_keys
            first = bisect_left(keys, begin)
            # Nothing is larger than what begins so, but for what comes after it.
            end = bisect_left(keys, (*begin[:-1], begin[-1] + 1))
            yield size, keys[first:end]

    def _group(self, token: int) -> _Group:
        if token not in self._groups:
            self._groups[token] = self._make_group(token)
        return self._groups[token]

    def _make_group(self, token: int) -> _Group:
        view = self._view
        spans = view.groups.find(numpy.array([token])) if view is not None else []
        if view is None or not spans:
            none = numpy.empty(0, numpy.int64)
            return _Group(none, none, [])
        rows = numpy.arange(len(view.phrase_indices))[spans[0]]
        rows = rows[self._bias[rows] > -numpy.inf]
        indices = view.phrase_indices[rows]
        size = self.vocabulary.static_size
        return _Group(
            rows, indices, [self.vocabulary.phrase(size + i).ids for i in indices.tolist()]
        )
