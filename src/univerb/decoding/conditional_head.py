"""The phrase head of encoders in the conditional form (`modeling.phrase_tree`).

Documents vote on the next token, and a phrase has a share of what its first token then has. So only
phrases that begin with likely tokens are looked at; greedily that is one token.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from univerb.decoding.phrase_head import PhraseHead, PhraseLogits, Place, TokenShare
from univerb.engines.base import Floats, Ints
from univerb.modeling.conditional_table import occurrences, token_vectors
from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.phrase_tree import Key, PhraseTree, TreeLogProbs
from univerb.modeling.scoring import Votes
from univerb.phrase import Phrase


class _Group:
    """The phrases that begin with one token and may be chosen."""

    def __init__(self, rows: Ints, indices: Ints, phrases: list[Phrase]) -> None:
        self.rows = rows
        self.indices = indices
        self.keys = [phrase.ids for phrase in phrases]
        self.counts = occurrences(phrases)

    @cached_property
    def tree(self) -> PhraseTree:
        return PhraseTree(self.keys, self.counts)

    @cached_property
    def order(self) -> list[int]:
        return sorted(range(len(self.keys)), key=self.keys.__getitem__)

    @cached_property
    def sorted_keys(self) -> list[Key]:
        return [self.keys[place] for place in self.order]

    @cached_property
    def columns(self) -> Ints:
        """The sorted keys' first tokens, -1 behind the end of one."""
        width = MAX_OVERLAP + 1
        rows = [[*key[:width], *[-1] * (width - len(key))] for key in self.sorted_keys]
        return numpy.array(rows, dtype=numpy.int64).reshape(-1, width)

    def beginning_with(self, begin: Key) -> slice:
        """Return where the keys that begin so are among the sorted ones."""
        first = bisect_left(self.sorted_keys, begin)
        # Nothing is larger than what begins so, but for what comes after it.
        return slice(first, bisect_left(self.sorted_keys, (*begin[:-1], begin[-1] + 1)))

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
        """Return log-probabilities given the token, with a bias for phrases."""
        return self.tree.log_probs(self.scores, self._biased_stops(bias))

    def greedy(self, bias: float = 0.0, eagerness: float = 0.0) -> int | None:
        """Return the phrase that greedy decoding goes on to, as an index; None if it stops."""
        # A longer phrase saves passes, too: eagerness is for going on, wherever that is.
        stops = self._biased_stops(bias) - numpy.float32(eagerness)
        best = self.tree.greedy(self.scores, stops)
        return None if best is None else int(self.indices[best])

    def _biased_stops(self, bias: float) -> Floats:
        # Where a phrase could go on to a longer one, both have the bias.
        return self.stops - numpy.where(self.tree.parent < 0, numpy.float32(bias), 0)


class ConditionalPhraseHead(PhraseHead):
    """A vocabulary as one sequence scores it, given first tokens."""

    def __init__(self, *parts: Any) -> None:  # noqa: ANN401  (as `PhraseHead`)
        super().__init__(*parts)
        self._groups: dict[int, _Group] = {}
        self._first_tokens = numpy.empty(0, numpy.int64)
        self._token_counts = numpy.empty(0, numpy.int64)
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
        is_active = self._bias > -numpy.inf
        tokens, place = numpy.unique(self._view.first_tokens[is_active], return_inverse=True)
        counts = occurrences(self.vocabulary.snapshot().phrases)
        counts = counts[self._view.phrase_indices[is_active]]
        self._token_counts = numpy.bincount(place, counts, len(tokens)).astype(numpy.int64)
        self._token_vectors = token_vectors(self._lm, tokens)
        return tokens

    def voted(self, place: Place) -> Floats:
        """Return the logits (V,) of the next token, with the documents' vote."""
        tokens = self._first_tokens
        if not len(tokens):
            return place.logits
        scoring = self._lm.scoring
        state = scoring.state(place.hidden)
        # Not `@`: its threads would wait for those of llama.cpp.
        scores = numpy.vecdot(self._token_vectors, scoring.scaled(state))
        votes = Votes(tokens, scores, self._token_evidence(place.ids))
        return scoring.voted(state, place.logits, votes)

    def _token_evidence(self, ids: Sequence[int]) -> Evidence:
        """Look up which first tokens documents have after a text, and how often."""
        tokens = self._first_tokens
        overlap, overlap_count = numpy.zeros_like(tokens), numpy.ones_like(tokens)
        for size in range(1, min(MAX_OVERLAP, len(ids)) + 1):
            group = self._group(ids[-size])
            some = group.beginning_with(tuple(ids[-size:]))
            following, counts = group.columns[some, size], group.counts[group.order][some]
            place = numpy.searchsorted(tokens, following).clip(max=len(tokens) - 1)
            is_known = tokens[place] == following
            found = numpy.bincount(place[is_known], counts[is_known], len(tokens))
            overlap[found > 0] = size
            overlap_count[found > 0] = found[found > 0]
        return Evidence(self._token_counts, overlap, overlap_count)

    def logits(self, place: Place, ranked: Floats | None = None) -> PhraseLogits | None:
        """Score the phrases that begin with the likeliest tokens; `exact` with any."""
        if self._view is None:
            return None
        _, count, _, max_gap = self._weights.short_list
        if self._exact:
            tokens = numpy.unique(self._view.first_tokens)
        else:
            tokens = self._likeliest(place.logits if ranked is None else ranked, count, max_gap)
        return self.logits_by_first_token(tokens, place)

    def logits_by_first_token(
        self, tokens: Ints, place: Place, per_token: int | None = None
    ) -> PhraseLogits | None:
        """Score the phrases that begin with one of some tokens."""
        state = self._lm.scoring.state(place.hidden)
        parts = [part for token in tokens.tolist() if (part := self._scored(token, place, state))]
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

    def scores(self, token: int, place: Place, state: Floats | None = None) -> GroupScores | None:
        """Score the phrases that begin with a token, before they share its probability.

        `state` is that of the place in the head's coordinates, if it is known.
        """
        group = self._group(token)
        if not group.keys:
            return None
        scoring = self._lm.scoring
        state = scoring.state(place.hidden) if state is None else state
        products = self._weights.logits(scoring.scaled(state), [group.rows])
        products += self._bias[group.rows]
        stops = scoring.stops(group.tree, state, products)
        scores = self._allowed_scores(products, group, place)
        return GroupScores(group.tree, group.indices, scores, stops)

    def _scored(self, token: int, place: Place, state: Floats) -> PhraseLogits | None:
        scores = self.scores(token, place, state)
        if scores is None:
            return None
        probabilities = scores.log_probs()
        logits = (place.logits[token] + probabilities.phrases).astype(numpy.float32)
        share = TokenShare(float(probabilities.stops[0]), scores.greedy(eagerness=self._eagerness))
        first_tokens = numpy.full(len(logits), token)
        return PhraseLogits(scores.indices, first_tokens, logits, {token: share})

    def _allowed_scores(self, products: Floats, group: _Group, place: Place) -> Floats:
        bonus = self._lm.scoring.bonus(self._evidence(group, place.ids))
        scores: Floats = products + bonus
        scores[group.lengths > place.max_length] = -numpy.inf
        if repeated := self._repeated_indices(place.ids):
            scores[numpy.isin(group.indices, list(repeated))] = -numpy.inf
        return scores

    def _evidence(self, group: _Group, ids: Sequence[int]) -> Evidence:
        """Look up which phrases of a group go on a longer one that the text is in the middle of."""
        overlap, overlap_count = numpy.zeros_like(group.counts), numpy.ones_like(group.counts)
        token = group.keys[0][0]
        for size in range(1, min(MAX_OVERLAP, len(ids)) + 1):
            longer = self._group(ids[-size])
            some = longer.beginning_with((*ids[-size:], token))
            for key, at in zip(longer.sorted_keys[some], longer.order[some], strict=True):
                if (place := group.place.get(key[size:])) is not None:
                    overlap[place] = size
                    overlap_count[place] = longer.counts[at]
        return Evidence(group.counts, overlap, overlap_count)

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
        phrases = [self.vocabulary.phrase(size + i) for i in indices.tolist()]
        return _Group(rows, indices, phrases)
