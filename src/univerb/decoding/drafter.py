"""What a pass may try beyond a chosen token: how the documents go on, or how the text itself did.

A vocabulary of n-grams has, for each beginning of a phrase, the token that follows. Looked up again
and again, with as long a context as there is, they give drafts that are longer than any phrase.
Where the documents know nothing, the text may have said it before. A draft changes no text: what is
kept of it is what would have been chosen token by token.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from univerb.decoding.results import Candidate
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

MOST = 131_072
"""Of larger vocabularies only so many phrases are looked at, the first ones."""
_CONTEXT = 3
"""Tokens that must agree, at least, before the next one is believed."""
_SURE = 3
"""Where so many tokens agree with what the text said before, it is believed before a phrase."""
_OWN_CONTEXT = 5
"""Tokens of a text itself that are compared, at most; one that agrees is a reason to try."""
_LEAST_ROWS, _MOST_ROWS = 6, 32
"""Bounds of what a text may try from itself: few rows cost no more than one, many take long."""


class Draft(NamedTuple):
    """Tokens that are being read before it is known whether they stand."""

    ids: Sequence[int]
    unit: int | None
    """The phrase that was chosen; None if only the first token was, and the others are a guess."""
    candidates: tuple[Candidate, ...]
    is_recalled: bool = False
    """Whether the guess is how the text itself went on before."""
    names_phrases: bool = True
    """Whether what is kept of a guess may be phrases: not where none was likely."""


class Recalled(NamedTuple):
    """How a text went on before."""

    ids: list[int]
    context: int
    """So many tokens before them agreed."""


class History:
    """What followed, the last time, the tokens that a text ends with."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """How many a pass may take; follows what stood of the drafts before."""
        self._last: dict[tuple[int, ...], int] = {}
        self._known = 0

    def after(self, ids: Sequence[int], token: int, most: int) -> Recalled:
        """Return how a text goes on after one more token, at most so many tokens.

        Args:
            ids: What stands: it only grows between two calls.
            token: The token that was chosen after it.
            most: How many are wanted.

        Returns:
            The tokens; where they reach the text's end, they go round.
        """
        text = [*ids, token]
        for at in range(max(self._known, 1), len(text)):
            for size in range(1, min(_OWN_CONTEXT, at) + 1):
                self._last[tuple(text[at - size : at])] = at
        self._known = len(text)
        for size in range(min(_OWN_CONTEXT, len(text)), 0, -1):
            begin = self._last.get(tuple(text[-size:]))
            if begin is not None:
                for place in range(begin, begin + most):
                    text.append(text[place])
                return Recalled(text[len(ids) + 1 :], size)
        return Recalled([], 0)

    def stood(self, count: int) -> None:
        """Learn how many rows of a draft stood: the next one may take twice as many."""
        self.rows = min(max(2 * count, _LEAST_ROWS), _MOST_ROWS)


class Drafts:
    """The drafts that a sequence finds in its documents."""

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
        self._follow()
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


class Guesses:
    """What a sequence tries after a chosen token."""

    def __init__(self, vocabulary: DynamicVocabulary, rows: int, recalls: bool) -> None:
        self.documents = Drafts(vocabulary)
        self.history = History(rows)
        self._vocabulary = vocabulary
        self._rows = rows
        self._recalls = recalls

    def __bool__(self) -> bool:
        """Whether there is anything to guess for: without phrases the LM is left alone."""
        return self._rows > 1 and len(self._vocabulary) > 0

    def after(
        self, ids: Sequence[int], token: int, phrase: Phrase | None, longest: int, share: int
    ) -> tuple[list[int], bool]:
        """Return how a text may go on.

        Args:
            ids: What stands.
            token: The token that was chosen after it.
            phrase: The likeliest one that begins with the token, if any is likely.
            longest: Tokens that there is room for, the chosen one included.
            share: So many sequences share the rows of a pass.

        Returns:
            The tokens, and whether they are from the text itself.
        """
        recalled = Recalled([], 0)
        if self._recalls:
            most = min(longest, self.history.rows // share) - 1
            recalled = self.history.after(ids, token, most)
        if phrase is None or recalled.context >= _SURE:
            return recalled.ids, True
        most = min(longest, self._rows // share) - 1
        found = list(phrase.ids[1 : most + 1]) if most > 0 else []
        return found + self.documents.after([*ids, token, *found], most - len(found)), False
