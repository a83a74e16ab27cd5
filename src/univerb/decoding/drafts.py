"""How the documents go on, read off their phrases: what a pass may try beyond a chosen token.

A vocabulary of n-grams has, for each beginning of a phrase, the token that follows. Looked up again
and again, with as long a context as there is, they give drafts that are longer than any phrase.
A draft changes no text: what is kept of it is what would have been chosen token by token.
"""

from collections.abc import Iterator, Sequence

from univerb.vocabulary import DynamicVocabulary

MOST = 131_072
"""Of larger vocabularies only so many phrases are looked at, the first ones."""
_CONTEXT = 3
"""Tokens that must agree, at least, before the next one is believed."""


class Drafts:
    """The drafts of one sequence."""

    def __init__(self, vocabulary: DynamicVocabulary) -> None:
        self._vocabulary = vocabulary
        self._version = -1
        self._known = 0
        self._next: dict[tuple[int, ...], int] = {}
        self._longest = 1

    def after(self, ids: Sequence[int], most: int) -> list[int]:
        """Return how a text goes on in the documents, at most so many tokens."""
        self._follow()
        text, begin = list(ids[-self._longest :]), min(len(ids), self._longest)
        while len(text) - begin < most:
            sizes = range(min(self._longest, len(text)), _CONTEXT - 1, -1)
            following = (self._next.get(tuple(text[-size:])) for size in sizes)
            token = next((one for one in following if one is not None), None)
            if token is None:
                break
            text.append(token)
        return text[begin:]

    def units(self, ids: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
        """Cut tokens into the longest phrases that they hold, from left to right.

        Args:
            ids: Tokens that were written.

        Yields:
            Begin, end, and the id of the phrase there, or None for a single token.
        """
        begin = 0
        while begin < len(ids):
            longest = min(self._longest + 1, len(ids) - begin)
            keys = (tuple(ids[begin : begin + size]) for size in range(longest, 1, -1))
            found = ((len(key), self._vocabulary.find(key)) for key in keys)
            size, unit = next((one for one in found if one[1] is not None), (1, None))
            yield begin, begin + size, unit
            begin += size

    def _follow(self) -> None:
        if self._version == self._vocabulary.version or self._known >= MOST:
            return
        state = self._vocabulary.snapshot(since=self._known)
        for phrase in state.phrases[: MOST - self._known]:
            self._next.setdefault(phrase.ids[:-1], phrase.ids[-1])
            self._longest = max(self._longest, len(phrase) - 1)
        self._known += len(state.phrases)
        self._version = state.version
