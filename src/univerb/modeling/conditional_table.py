"""The conditional form for a whole table and many states at once: numpy, for any engine.

Decoding looks only at the phrases of likely first tokens (`decoding.conditional_head`). Here all
of them are scored: it is what `DynamicLM.forward` and HF `generate()` need.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy

from univerb.modeling.phrase_table import Floats, Ints, TableView
from univerb.modeling.phrase_tree import MAX_OVERLAP, Key, PhraseTree, TreeLogProbs
from univerb.modeling.scoring import Scoring


class ConditionalTable:
    """The phrases of a table that may be chosen, as trees.

    Args:
        scoring: The encoder's.
        view: The table, in order.
        keys: The tokens of all its phrases, by index.
    """

    def __init__(self, scoring: Scoring, view: TableView, keys: Sequence[Key]) -> None:
        self._scoring = scoring
        self.indices: Ints = numpy.flatnonzero(view.bias > -numpy.inf)
        """(A,), the phrases that may be chosen."""
        self.phrase_tokens: Ints = view.first_tokens[self.indices]
        """(A,), the first token of each."""
        self._outputs = view.outputs[self.indices].astype(numpy.float32)
        self._bias = view.bias[self.indices]
        active = [keys[index] for index in self.indices.tolist()]
        self._tree = PhraseTree(active)
        places = {key: place for place, key in enumerate(active)}
        self._led_to: dict[Key, list[int]] = defaultdict(list)
        for key in active:
            for size in range(1, min(MAX_OVERLAP + 1, len(key))):
                if (place := places.get(key[size:])) is not None:
                    self._led_to[key[:size]].append(place)

    @property
    def first_tokens(self) -> Ints:
        """(F,), the first tokens, each once."""
        return self._tree.first_tokens

    def log_probs(self, hidden: Floats, before: Sequence[Sequence[int]] | None) -> TreeLogProbs:
        """Return what phrases (N, A) and their first tokens (N, F) have of a first token's share.

        Args:
            hidden: The LM's states (N, d).
            before: For each of them the base tokens that were read, of which the last few matter;
                None if they are not known: no phrase then counts as the rest of a longer one.

        Returns:
            The log-probabilities, given the first tokens.
        """
        scoring = self._scoring
        scores = scoring.query(hidden) @ self._outputs.T + self._bias
        if before is not None:
            overlaps = numpy.zeros(scores.shape, numpy.int64)
            for row, text in zip(overlaps, before, strict=True):
                for size in range(1, min(MAX_OVERLAP, len(text)) + 1):
                    row[self._led_to.get(tuple(text[-size:]), [])] = size
            scores += scoring.bonus(overlaps)
        return self._tree.log_probs(scores, scoring.stops(self._tree, hidden))
