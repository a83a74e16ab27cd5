"""Phrases without vectors: one is scored by its first token, which the LM has chosen.

What is needed where there is no encoder, or no use for it. Of the phrases that begin with a token,
the documents choose: the one that goes on as they do where the text's last tokens stand. Phrases of
no document were listed by somebody who wants them: their first token is enough. Whether one is kept
is the LM's to say, token by token.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from univerb.config import GenerationConfig
from univerb.decoding.drafter import Documents
from univerb.decoding.suffixes import DEPTH
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_MIN_MATCH = 2
"""Tokens that must stand in a document before a phrase is proposed, its first one included."""


def scores_phrases(lm: PhraseModel, config: GenerationConfig) -> bool:
    """Tell whether phrases are scored by their vectors: not where the LM's own text is written."""
    return lm.has_encoder and (config.mode == "atomic" or config.tolerance > 0.0)


class FirstTokenHead:
    """A vocabulary as one sequence may use it."""

    def __init__(
        self,
        vocabulary: DynamicVocabulary,
        documents: Documents,
        config: GenerationConfig,
        eos_ids: frozenset[int],
    ) -> None:
        self.vocabulary = vocabulary
        self._documents = documents
        self._ban = config.ban
        self._eos_ids = eos_ids
        self._max_phrase = 0
        self._listed: dict[int, list[tuple[int, int]]] = {}
        """By first token, the phrases that are of no document, the longest first: -length, id."""
        self._seen = 0

    def update(self) -> None:
        """Follow the vocabulary."""
        if self._seen < self.vocabulary.size:
            new = self.vocabulary.snapshot(since=self._seen).phrases
            self._max_phrase = max(self._max_phrase, *map(len, new))
            for unit, phrase in enumerate(new, self.vocabulary.static_size + self._seen):
                if not phrase.sources:
                    self._add_listed(phrase, unit)
            self._seen += len(new)

    def is_masked(self, index: int) -> bool:
        """Whether a phrase may not be chosen."""
        phrase = self.vocabulary.phrase(self.vocabulary.static_size + index)
        return (
            self.vocabulary.find(phrase.ids) is None
            # A text ends at its end token, so a phrase that goes on after one cannot be written.
            or not self._eos_ids.isdisjoint(phrase.ids)
            or any(text in phrase.text for text in self._ban)
        )

    def proposal(self, ids: Sequence[int], token: int, max_length: int) -> int | None:
        """Return the longest phrase that goes on from a token, as its id.

        As the documents do where the text stands in them; otherwise one of no document.

        Args:
            ids: Base tokens of prompt and output.
            token: The LM's own choice after them.
            max_length: Leave out phrases with more tokens than this.

        Returns:
            The phrase's id, None if there is none.
        """
        longest = min(max_length, self._max_phrase)
        match = self._documents.find([*ids[-DEPTH:], token], longest - 1)
        tokens = (token, *match.ids) if match.length >= _MIN_MATCH else ()
        found = [self.vocabulary.find(tokens[:size]) for size in range(len(tokens), 1, -1)]
        size = self.vocabulary.static_size
        allowed = (u for u in found if u is not None and not self.is_masked(u - size))
        return next(allowed, None) or self._listed_phrase(token, longest)

    def _listed_phrase(self, token: int, longest: int) -> int | None:
        """Return the longest phrase of no document that begins with a token, as its id."""
        size, listed = self.vocabulary.static_size, self._listed.get(token, [])
        fitting = listed[bisect_left(listed, -longest, key=lambda entry: entry[0]) :]
        return next((unit for _, unit in fitting if not self.is_masked(unit - size)), None)

    def _add_listed(self, phrase: Phrase, unit: int) -> None:
        if len(phrase) > 1:
            insort(self._listed.setdefault(phrase.ids[0], []), (-len(phrase), unit))
