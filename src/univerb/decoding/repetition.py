"""`no_repeat_ngram_size`: no n-gram of base tokens is written twice, as HF's `generate` has it.

Base tokens of prompt and output count alike, whatever units they were written in. A token that
would complete a known n-gram is masked. So is, where phrases are fed as one vector, a phrase that
would: inside it, or together with the tokens before it. Where a phrase is fed as its tokens, it is
cut before the token that would.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from univerb.vocabulary import DynamicVocabulary

NGram = tuple[int, ...]


def repeated_tokens(ids: list[int], size: int) -> set[int]:
    """Return the tokens that would complete an n-gram which the ids hold already."""
    if size == 1:
        return set(ids)
    if len(ids) < size:
        return set()
    context, last = ids[1 - size :], len(ids) - 1
    repeated = set()
    # The context's last token stands at the end, too, so a search always succeeds.
    index = ids.index(context[-1], size - 2)
    while index < last:
        if ids[index - size + 2 : index + 1] == context:
            repeated.add(ids[index + 1])
        index = ids.index(context[-1], index + 1)
    return repeated


class WrittenNGrams:
    """The n-grams of a text, kept up to date token by token."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.ids: list[int] = []
        self.known: set[NGram] = set()

    def update(self, ids: Sequence[int]) -> list[NGram]:
        """Follow a text, which only grows; returns the n-grams that have come."""
        begin = max(len(self.ids) + 1 - self._size, 0)
        self.ids.extend(ids[len(self.ids) :])
        new = _ngrams(self.ids[begin:], self._size)
        self.known.update(new)
        return new

    def count_new(self, tokens: Sequence[int]) -> int:
        """Return how many of some tokens may follow before one repeats an n-gram."""
        before = min(self._size - 1, len(self.ids))
        text = [*self.ids[len(self.ids) - before :], *tokens]
        seen: set[NGram] = set()
        for at, ngram in enumerate(_ngrams(text, self._size)):
            if ngram in self.known or ngram in seen:
                return at + self._size - 1 - before
            seen.add(ngram)
        return len(tokens)


class RepeatedPhrases:
    """The phrases of a vocabulary that would repeat an n-gram, kept up to date token by token."""

    def __init__(self, vocabulary: DynamicVocabulary, size: int) -> None:
        self._vocabulary = vocabulary
        self._size = size
        self._written = WrittenNGrams(size)
        self._holding: dict[NGram, list[int]] = defaultdict(list)
        """The phrases that hold an n-gram, by their index."""
        self._beginning: dict[NGram, list[int]] = defaultdict(list)
        """The phrases that begin with up to n - 1 tokens."""
        self._inside: set[int] = set()
        """The phrases that hold an n-gram which was written, or one of their own twice."""
        self._returning: dict[int, list[int]] = defaultdict(list)
        """The phrases in which a token comes before their first token once more."""
        self._known_phrases = 0

    def update(self, ids: Sequence[int]) -> set[int]:
        """Return the indices of the phrases that may not follow.

        Args:
            ids: Base tokens of prompt and output; they only grow between two calls.

        Returns:
            Indices into the vocabulary.
        """
        self._add_phrases()
        for ngram in self._written.update(ids):
            self._inside.update(self._holding.get(ngram, ()))
        repeated = set(self._inside)
        for completion in self._completions():
            repeated.update(self._beginning.get(completion, ()))
        repeated.update(i for i in self._returning.get(ids[-1], ()) if self._repeats_itself(i))
        return repeated

    def _completions(self) -> Iterator[NGram]:
        """Yield what completes an n-gram that was written, after the last tokens."""
        ids = self._written.ids
        last = len(ids) - 1
        index = ids.index(ids[last])
        while index < last:
            count = 0
            while (
                count < min(self._size - 1, index + 1) and ids[index - count] == ids[last - count]
            ):
                count += 1
                completion = tuple(ids[index + 1 : index + 1 + self._size - count])
                if len(completion) == self._size - count:
                    yield completion
            index = ids.index(ids[last], index + 1)

    def _repeats_itself(self, index: int) -> bool:
        """Whether a phrase repeats an n-gram that only its beginning completes."""
        phrase = self._vocabulary.phrase(self._vocabulary.static_size + index)
        ngrams = _ngrams([*self._written.ids[1 - self._size :], *phrase.ids], self._size)
        return len(set(ngrams)) < len(ngrams)

    def _add_phrases(self) -> None:
        phrases = self._vocabulary.snapshot(since=self._known_phrases).phrases
        for index, phrase in enumerate(phrases, self._known_phrases):
            ngrams = _ngrams(phrase.ids, self._size)
            if len(set(ngrams)) < len(ngrams) or not self._written.known.isdisjoint(ngrams):
                self._inside.add(index)
            for ngram in ngrams:
                self._holding[ngram].append(index)
            for count in range(1, min(self._size, len(phrase) + 1)):
                self._beginning[phrase.ids[:count]].append(index)
            for before, token in pairwise(phrase.ids) if self._size > 1 else ():
                if token == phrase.ids[0]:
                    self._returning[before].append(index)
        self._known_phrases += len(phrases)


def _ngrams(ids: Sequence[int], size: int) -> list[NGram]:
    return [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
