"""The conditional form for a whole table and many states at once: numpy, for any engine.

Decoding looks only at the phrases of likely first tokens (`decoding.conditional_head`). Here all
of them are scored: it is what `DynamicLM.forward` and HF `generate()` need.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy

from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.modeling.phrase_model import PhraseModel
from univerb.modeling.phrase_table import Floats, Ints, TableView
from univerb.modeling.phrase_tree import Key, PhraseTree
from univerb.modeling.scoring import Votes
from univerb.phrase import Phrase

Following = defaultdict[Key, Counter[int]]


def occurrences(phrases: Sequence[Phrase]) -> Ints:
    """Count how often phrases stand in the documents; one that a user lists counts as one."""
    return numpy.array([max(len(phrase.sources), 1) for phrase in phrases], dtype=numpy.int64)


def token_vectors(lm: PhraseModel, tokens: Ints) -> Floats:
    """Encode tokens (F,), each as a phrase of its own; returns what is scored (F, d)."""
    texts = lm.tokenizer.decode_all([[token] for token in tokens.tolist()])
    alone = [Phrase((t,), text) for t, text in zip(tokens.tolist(), texts, strict=True)]
    return lm.vectors(alone).outputs.astype(numpy.float32, copy=False)


class ConditionalTable:
    """The phrases of a table that may be chosen, as trees.

    Args:
        lm: The LM and its encoder.
        view: The table, in order.
        phrases: All its phrases, by index.
    """

    def __init__(self, lm: PhraseModel, view: TableView, phrases: Sequence[Phrase]) -> None:
        self._scoring = lm.scoring
        self._size = len(view.rows)
        self._indices = numpy.flatnonzero(view.bias > -numpy.inf)
        self._phrase_tokens = view.first_tokens[self._indices]
        self._outputs = view.outputs[self._indices].astype(numpy.float32)
        self._bias = view.bias[self._indices]
        active = [phrases[index] for index in self._indices.tolist()]
        self._counts = occurrences(active)
        self._tree = PhraseTree([phrase.ids for phrase in active], self._counts)
        tokens = self._tree.first_tokens
        self._token_vectors = token_vectors(lm, tokens) if active else None
        phrase_at = {phrase.ids: place for place, phrase in enumerate(active)}
        token_at = {token: place for place, token in enumerate(tokens.tolist())}
        self._token_counts = numpy.zeros(len(tokens), numpy.int64)
        # What may follow some tokens, and how often: phrases, and tokens that phrases begin with.
        self._next_phrases: Following = defaultdict(Counter)
        self._next_tokens: Following = defaultdict(Counter)
        for phrase, count in zip(active, self._counts.tolist(), strict=True):
            key = phrase.ids
            self._token_counts[token_at[key[0]]] += count
            for size in range(1, min(MAX_OVERLAP + 1, len(key))):
                if (place := phrase_at.get(key[size:])) is not None:
                    self._next_phrases[key[:size]][place] += count
                if (place := token_at.get(key[size])) is not None:
                    self._next_tokens[key[:size]][place] += count

    def unit_logits(
        self, logits: Floats, hidden: Floats, before: Sequence[Sequence[int]] | None
    ) -> Floats:
        """Turn logits over V into logits over V + P, with the same sum of exponentials.

        Args:
            logits: The LM's own (N, V).
            hidden: Its states (N, d).
            before: For each of them the base tokens that were read, of which the last few matter;
                None if they are not known: nothing then counts as the rest of a phrase.

        Returns:
            The logits (N, V + P); -inf for phrases that may not be chosen.
        """
        scoring, tree = self._scoring, self._tree
        units = numpy.full((len(logits), logits.shape[1] + self._size), -numpy.inf, numpy.float32)
        units[:, : logits.shape[1]] = logits
        if self._token_vectors is None:
            return units
        states, texts = scoring.state(hidden), before or [()] * len(hidden)
        scaled = scoring.scaled(states)
        products = scaled @ self._outputs.T + self._bias
        scores, votes = products.copy(), scaled @ self._token_vectors.T
        for row, text in enumerate(texts):
            evidence = _evidence(self._token_counts, self._next_tokens, text)
            vote = Votes(tree.first_tokens, votes[row], evidence)
            units[row, : logits.shape[1]] = scoring.voted(states[row], logits[row], vote)
            scores[row] += scoring.bonus(_evidence(self._counts, self._next_phrases, text))
        shares = tree.log_probs(scores, scoring.stops(tree, states, products))
        units[:, logits.shape[1] + self._indices] = units[:, self._phrase_tokens] + shares.phrases
        units[:, tree.first_tokens] += shares.stops
        return units


def _evidence(counts: Ints, following: Following, text: Sequence[int]) -> Evidence:
    """Return what documents say of phrases, or of first tokens, after a text."""
    overlap, overlap_count = numpy.zeros_like(counts), numpy.ones_like(counts)
    for size in range(1, min(MAX_OVERLAP, len(text)) + 1):
        found = following.get(tuple(text[-size:]), Counter[int]())
        overlap[list(found)] = size
        overlap_count[list(found)] = list(found.values())
    return Evidence(counts, overlap, overlap_count)
