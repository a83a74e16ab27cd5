"""The phrase head of encoders in the conditional form (`modeling.phrase_tree`).

Documents vote on the next token, and a phrase has a share of what its first token then has. So only
phrases that begin with likely tokens are looked at; greedily that is one token. A request looks at
some fifteen of its hundred and fifty first tokens, so `unfold` encodes phrases when their first
token is first looked at. `atomic` feeds vectors and may take any phrase: it has a table of all.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from univerb.config import GenerationConfig
from univerb.decoding.phrase_head import PhraseHead, PhraseLogits, Place, TokenShare
from univerb.engines.base import Floats, Ints
from univerb.modeling.conditional_table import occurrences, token_vectors
from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.phrase_table import FirstTokenGroups
from univerb.modeling.phrase_tree import Key, PhraseTree, TreeLogProbs
from univerb.modeling.scoring import Votes
from univerb.phrase import Phrase


class _Group:
    """The phrases that begin with one token and may be chosen."""

    def __init__(self, indices: Ints, phrases: list[Phrase], bias: Floats) -> None:
        self.indices = indices
        self.phrases = phrases
        self.bias = bias
        """(P,), added to their products."""
        self.vectors = numpy.empty((0, 0), numpy.float32)
        """(P, d), what is scored; empty until they are encoded, or if a table has them."""
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
        config: GenerationConfig = parts[3]
        # What a count correction takes from a phrase, only a table of all of them knows.
        is_counted = self._lm.encoder_config.count_correction
        self._has_table = config.mode != "unfold" or is_counted
        self._known: object = None
        """What the following were made of."""
        self._groups: dict[int, _Group] = {}
        self._scoring = self._lm.scoring
        self._phrase_biases = numpy.empty(0, numpy.float32)
        """(P,), by index; -inf for phrases that may not be chosen."""
        self._open = numpy.empty(0, numpy.int64)
        """The indices of the others."""
        self._groups_of_open = FirstTokenGroups(self._open)
        self._first_tokens = numpy.empty(0, numpy.int64)
        self._token_counts = numpy.empty(0, numpy.int64)
        self._token_vectors: Floats | None = None

    def update(self) -> None:
        """Follow the vocabulary: mask what is gone or banned; where there is a table, encode."""
        self._has_table = self._has_table or self._lm.has_table(self.vocabulary)
        if self._has_table:
            super().update()
        state = (self.vocabulary.version, self._lm.parameter_version(), self._view)
        if state != self._known:
            self._known = state
            self._groups, self._token_vectors = {}, None
            self._scoring = self._lm.scoring
            self._follow()

    def _follow(self) -> None:
        """Look up which phrases may be chosen, and the tokens that they begin with."""
        state, view = self.vocabulary.snapshot(), self._view
        if view is not None:
            biases = numpy.full(len(view.rows), -numpy.inf, numpy.float32)
            biases[view.phrase_indices] = self._bias
        else:
            weights = numpy.frombuffer(state.weights) + self._lm.head_bias()
            is_closed = self._banned()[: len(weights)] | ~numpy.frombuffer(state.active, dtype=bool)
            biases = weights.astype(numpy.float32) + self._phrase_bias
            # A table that is not there yet had no phrases when it was asked for.
            biases[is_closed | self._has_table] = -numpy.inf
        self._phrase_biases = biases
        self._open = numpy.flatnonzero(biases > -numpy.inf)
        phrases = [state.phrases[index] for index in self._open.tolist()]
        first_tokens = numpy.array([phrase.ids[0] for phrase in phrases], dtype=numpy.int64)
        self._groups_of_open = FirstTokenGroups(first_tokens)
        self._first_tokens, place = numpy.unique(first_tokens, return_inverse=True)
        counts = numpy.bincount(place, occurrences(phrases), len(self._first_tokens))
        self._token_counts = counts.astype(numpy.int64)

    def is_masked(self, index: int) -> bool:
        """Whether a phrase may not be chosen any more."""
        # Others may have added it since this sequence looked.
        if index >= len(self._phrase_biases):
            return True
        return bool(self._phrase_biases[index] == -numpy.inf)

    def voted(self, place: Place) -> Floats:
        """Return the logits (V,) of the next token, with the documents' vote."""
        tokens = self._first_tokens
        if not len(tokens):
            return place.logits
        if self._token_vectors is None:
            began = time.perf_counter()
            self._token_vectors = token_vectors(self._lm, tokens)
            self.encode_seconds += time.perf_counter() - began
        scoring = self._scoring
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
        _, count, _, max_gap = self._weights.short_list
        if self._exact:
            tokens = self._first_tokens
        else:
            tokens = self._likeliest(place.logits if ranked is None else ranked, count, max_gap)
        return self.logits_by_first_token(tokens, place)

    def logits_by_first_token(
        self, tokens: Ints, place: Place, per_token: int | None = None
    ) -> PhraseLogits | None:
        """Score the phrases that begin with one of some tokens."""
        if not self._has_table:
            self._encode([self._group(token) for token in tokens.tolist()])
        state = self._scoring.state(place.hidden)
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
        scoring = self._scoring
        state = scoring.state(place.hidden) if state is None else state
        products = self._products(group, scoring.scaled(state)) + group.bias
        stops = scoring.stops(group.tree, state, products)
        scores = self._allowed_scores(products, group, place)
        return GroupScores(group.tree, group.indices, scores, stops)

    def _products(self, group: _Group, state: Floats) -> Floats:
        if self._view is not None:
            return self._weights.logits(state, [self._view.rows[group.indices]])
        self._encode([group])
        products: Floats = numpy.vecdot(group.vectors, state)
        return products

    def _encode(self, groups: Sequence[_Group]) -> None:
        """Encode the phrases of groups that have no vectors yet."""
        groups = [group for group in groups if len(group.vectors) < len(group.keys)]
        if not groups:
            return
        began = time.perf_counter()
        vectors = self._lm.vectors([phrase for group in groups for phrase in group.phrases])
        outputs = vectors.outputs.astype(numpy.float32, copy=False)
        ends = numpy.cumsum([len(group.keys) for group in groups])
        for group, rows in zip(groups, numpy.split(outputs, ends[:-1]), strict=True):
            group.vectors = rows
        self.encode_seconds += time.perf_counter() - began

    def greedy(self, token: int, place: Place) -> int | None:
        """Return the phrase that greedy decoding goes on to from a token, as an index, or None."""
        scores = self.scores(token, place)
        return None if scores is None else scores.greedy(eagerness=self._eagerness)

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
        bonus = self._scoring.bonus(self._evidence(group, place.ids))
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
        spans = self._groups_of_open.find(numpy.array([token])) if self._open.size else []
        indices = self._open[spans[0]] if spans else self._open[:0]
        size = self.vocabulary.static_size
        phrases = [self.vocabulary.phrase(size + i) for i in indices.tolist()]
        return _Group(indices, phrases, self._phrase_biases[indices])
