"""The conditional form for a whole table and many states at once: numpy, for any engine.

Decoding looks only at the phrases of likely first tokens (`decoding.conditional_head`). Here all
of them are scored: it is what `DynamicLM.forward` and HF `generate()` need.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy

from univerb.modeling.phrase_model import PhraseModel
from univerb.modeling.phrase_table import Floats, Ints, TableView
from univerb.modeling.phrase_tree import MAX_OVERLAP, Key, PhraseTree
from univerb.modeling.scoring import Votes
from univerb.phrase import Phrase


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
        keys: The tokens of all its phrases, by index.
    """

    def __init__(self, lm: PhraseModel, view: TableView, keys: Sequence[Key]) -> None:
        self._scoring = lm.scoring
        self._size = len(view.rows)
        self._indices = numpy.flatnonzero(view.bias > -numpy.inf)
        self._phrase_tokens = view.first_tokens[self._indices]
        self._outputs = view.outputs[self._indices].astype(numpy.float32)
        self._bias = view.bias[self._indices]
        active = [keys[index] for index in self._indices.tolist()]
        self._tree = PhraseTree(active)
        tokens = self._tree.first_tokens
        self._token_vectors = token_vectors(lm, tokens) if active else None
        phrase_at = {key: place for place, key in enumerate(active)}
        token_at = {token: place for place, token in enumerate(tokens.tolist())}
        # What may follow some tokens: phrases, and tokens that phrases begin with.
        self._next_phrases: dict[Key, list[int]] = defaultdict(list)
        self._next_tokens: dict[Key, list[int]] = defaultdict(list)
        for key in active:
            for size in range(1, min(MAX_OVERLAP + 1, len(key))):
                if (place := phrase_at.get(key[size:])) is not None:
                    self._next_phrases[key[:size]].append(place)
                if (place := token_at.get(key[size])) is not None:
                    self._next_tokens[key[:size]].append(place)

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
        query, texts = scoring.query(hidden), before or [()] * len(hidden)
        scores = query @ self._outputs.T + self._bias
        votes = query @ self._token_vectors.T
        for row, text in enumerate(texts):
            overlap = _overlaps(self._next_tokens, text, votes.shape[1])
            vote = Votes(tree.first_tokens, votes[row], overlap)
            units[row, : logits.shape[1]] = scoring.voted(hidden[row], logits[row], vote)
            scores[row] += scoring.bonus(_overlaps(self._next_phrases, text, scores.shape[1]))
        shares = tree.log_probs(scores, scoring.stops(tree, hidden))
        units[:, logits.shape[1] + self._indices] = units[:, self._phrase_tokens] + shares.phrases
        units[:, tree.first_tokens] += shares.stops
        return units


def _overlaps(following: Mapping[Key, list[int]], text: Sequence[int], count: int) -> Ints:
    """Count the last tokens of a text that lead to each of some phrases or tokens."""
    overlaps = numpy.zeros(count, numpy.int64)
    for size in range(1, min(MAX_OVERLAP, len(text)) + 1):
        overlaps[following.get(tuple(text[-size:]), [])] = size
    return overlaps
