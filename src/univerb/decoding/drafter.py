"""Drafts: tokens that a pass reads beyond a chosen token, before it is known whether they stand.

A vocabulary of n-grams has, for each beginning of a phrase, the token that follows. Looked up again
and again, with as long a context as there is, they give drafts that are longer than any phrase.
Where the documents know nothing, prompt and output may have said it before (prompt lookup). A draft
changes no text: what is kept of it is what would have been chosen token by token.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from univerb.decoding.results import Candidate
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

MAX_PHRASES = 131_072
"""Of larger vocabularies only the first phrases are looked up."""
_MIN_CONTEXT = 3
"""Tokens of context that must agree before a document's next token is drafted."""
_SURE_CONTEXT = 3
"""Where this many tokens agree with the text so far, prompt lookup goes before a phrase."""
_MAX_LOOKUP_CONTEXT = 5
"""Tokens that prompt lookup compares; one that agrees is a reason to try."""
_MIN_LOOKUP_ROWS, _MAX_LOOKUP_ROWS = 6, 32
"""Bounds of what prompt lookup drafts: few rows cost no more than one, many take long."""


class Draft(NamedTuple):
    """Tokens that are being read before it is known whether they stand."""

    ids: Sequence[int]
    unit: int | None
    """The phrase that was chosen; None if only the first token was, and the rest is a draft."""
    candidates: tuple[Candidate, ...]
    is_lookup: bool = False
    """Whether it came from prompt lookup."""
    names_phrases: bool = True
    """Whether what is kept of a draft may be phrases: not where none was likely."""
    term: Phrase | None = None
    """The text that was asked for, if it is one: it stands or falls as a whole."""


class PromptLookup:
    """What followed, the last time, the tokens that a text ends with."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Rows that a draft may take; follows how many of the last one were accepted."""
        self._next_index: dict[tuple[int, ...], int] = {}
        self._known = 0

    def find(self, ids: Sequence[int], token: int, count: int) -> tuple[list[int], int]:
        """Return how a text went on after its last tokens.

        Args:
            ids: The text so far: it only grows between two calls.
            token: The token that was chosen after it.
            count: Number of tokens wanted.

        Returns:
            The tokens, repeating where they reach the text's end, and the length of the context
            that agreed.
        """
        text = [*ids, token]
        for index in range(max(self._known, 1), len(text)):
            for size in range(1, min(_MAX_LOOKUP_CONTEXT, index) + 1):
                self._next_index[tuple(text[index - size : index])] = index
        self._known = len(text)
        for size in range(min(_MAX_LOOKUP_CONTEXT, len(text)), 0, -1):
            begin = self._next_index.get(tuple(text[-size:]))
            if begin is not None:
                for index in range(begin, begin + count):
                    text.append(text[index])
                return text[len(ids) + 1 :], size
        return [], 0

    def update(self, accepted: int) -> None:
        """Follow the number of rows that were accepted: the next draft may take twice as many."""
        self.rows = min(max(2 * accepted, _MIN_LOOKUP_ROWS), _MAX_LOOKUP_ROWS)


class DocumentLookup:
    """How a text goes on in the documents, as far as their n-grams tell."""

    def __init__(self, vocabulary: DynamicVocabulary) -> None:
        self._vocabulary = vocabulary
        self._version = -1
        self._known = 0
        self._next_token: dict[tuple[int, ...], int] = {}
        self._max_context = 1

    def find(self, ids: Sequence[int], count: int) -> list[int]:
        """Return how a text goes on in the documents, at most `count` tokens."""
        self._update()
        text, begin = list(ids[-self._max_context :]), min(len(ids), self._max_context)
        while len(text) - begin < count:
            sizes = range(min(self._max_context, len(text)), _MIN_CONTEXT - 1, -1)
            following = (self._next_token.get(tuple(text[-size:])) for size in sizes)
            token = next((token for token in following if token is not None), None)
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
        self._update()
        begin = 0
        while begin < len(ids):
            longest = min(self._max_context + 1, len(ids) - begin)
            keys = (tuple(ids[begin : begin + size]) for size in range(longest, 1, -1))
            matches = ((len(key), self._vocabulary.find(key)) for key in keys)
            size, unit = next((match for match in matches if match[1] is not None), (1, None))
            yield begin, begin + size, unit
            begin += size

    def _update(self) -> None:
        if self._version == self._vocabulary.version or self._known >= MAX_PHRASES:
            return
        state = self._vocabulary.snapshot(since=self._known)
        for phrase in state.phrases[: MAX_PHRASES - self._known]:
            self._next_token.setdefault(phrase.ids[:-1], phrase.ids[-1])
            self._max_context = max(self._max_context, len(phrase) - 1)
        self._known += len(state.phrases)
        self._version = state.version


class Drafter:
    """What a sequence drafts after a chosen token."""

    def __init__(self, vocabulary: DynamicVocabulary, rows: int, has_prompt_lookup: bool) -> None:
        self.documents = DocumentLookup(vocabulary)
        self.prompt_lookup = PromptLookup(rows)
        self._vocabulary = vocabulary
        self._rows = rows
        self._has_prompt_lookup = has_prompt_lookup

    @property
    def is_active(self) -> bool:
        """Whether there is anything to draft for: without phrases the LM is left alone."""
        return self._rows > 1 and len(self._vocabulary) > 0

    def draft(
        self, ids: Sequence[int], token: int, phrase: Phrase | None, room: int, batch_size: int
    ) -> tuple[list[int], bool]:
        """Return how a text may go on.

        Args:
            ids: The text so far.
            token: The token that was chosen after it.
            phrase: The likeliest one that begins with the token, if any is likely.
            room: Tokens that there is room for, the chosen one included.
            batch_size: Number of sequences that share the rows of a pass.

        Returns:
            The tokens, and whether they are from prompt lookup.
        """
        recalled, context = list[int](), 0
        if self._has_prompt_lookup:
            count = min(room, self.prompt_lookup.rows // batch_size) - 1
            recalled, context = self.prompt_lookup.find(ids, token, count)
        if phrase is None or context >= _SURE_CONTEXT:
            return recalled, True
        count = min(room, self._rows // batch_size) - 1
        rest = list(phrase.ids[1 : count + 1]) if count > 0 else []
        return rest + self.documents.find([*ids, token, *rest], count - len(rest)), False
