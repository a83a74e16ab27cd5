"""V' = V + P: a vocabulary that changes while a model writes.

Ids are `static_size + index` and never move: removed phrases keep their id and can return under
it, so ids that were generated earlier stay valid.
"""

import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import NamedTuple

import numpy

from univerb.errors import VocabularyError, shown
from univerb.phrase import Phrase


class VocabularyState(NamedTuple):
    """A vocabulary at one moment."""

    version: int
    phrases: list[Phrase]
    """Those from the requested index on."""
    active: bytearray
    """For every phrase, 1 if it can be chosen."""
    weights: "array[float]"
    """For every phrase, the number that is added to its logit."""


class DynamicVocabulary:
    """The phrases that one or several sequences may use, append-only and safe across threads.

    Iterating yields the active phrases; `len` counts them; `size` counts all that have an id.

    Args:
        static_size: |V| of the LM.
        phrases: The initial phrases.
        texts: Token ids of the documents that they are from: what drafts go on with.

    Example:
        >>> vocabulary = DynamicVocabulary(static_size=100)
        >>> vocabulary.add([Phrase((7, 8), " quiet enjoyment")])
        [100]
        >>> vocabulary.remove([100])
        >>> len(vocabulary), vocabulary.size
        (0, 1)
    """

    def __init__(
        self,
        static_size: int,
        phrases: Iterable[Phrase] = (),
        texts: Iterable[Sequence[int]] = (),
    ) -> None:
        if static_size < 1:
            raise VocabularyError(f"static_size is {static_size}; it is |V| of the LM, at least 1.")
        self.static_size = static_size
        self._texts: dict[tuple[int, ...], None] = {}
        """Each once, in the order in which they came."""
        self.version = 0
        """Rises whenever a phrase is added, removed, revived, re-weighted or found once more."""
        self._phrases: list[Phrase] = []
        self._index: dict[tuple[int, ...], int] = {}
        # Plain buffers, so that the tensors that follow a large vocabulary are made at once.
        self._active = bytearray()
        self._weights = array("d")
        self._last_used = array("q")
        self._clock = 0
        self._changes = 0
        self._lock = threading.RLock()
        self._add_all(phrases, tuple(texts))

    def add(self, phrases: Iterable[Phrase]) -> list[int]:
        """Add phrases, merging the sources of those that are there already.

        Args:
            phrases: Phrases, or a vocabulary that has them; one that was removed becomes active
                again under its old id.

        Returns:
            The id of each phrase, in order.
        """
        texts = phrases.texts if isinstance(phrases, DynamicVocabulary) else ()
        return self._add_all(phrases, texts)

    def _add_all(self, phrases: Iterable[Phrase], texts: Sequence[Sequence[int]]) -> list[int]:
        """Add phrases, and the texts that they stand in if they stand in any."""
        added = list(phrases) if isinstance(phrases, Iterable) else [phrases]
        for phrase in added:
            self._check(phrase)
        with self._lock:
            before, size = self._changes, len(self._phrases)
            index = {phrase.ids: i for i, phrase in enumerate(added)}
            is_plain = not self._phrases and len(index) == len(added)
            ids = self._fill(added, index) if is_plain else [self._add(p) for p in added]
            new = texts or [phrase.ids for phrase in self._phrases[size:]]
            self._texts |= dict.fromkeys(map(tuple, new))
            self.version += self._changes > before
        return ids

    def remove(self, ids: Iterable[int]) -> None:
        """Make phrases unavailable; they keep their ids.

        Args:
            ids: Phrase ids. Removing one twice is harmless.

        Raises:
            VocabularyError: If an id belongs to no phrase.
        """
        with self._lock:
            each = ids if isinstance(ids, Iterable) else [ids]
            indices = [self._position(phrase_id) for phrase_id in each]
            self.version += any(self._active[index] for index in indices)
            for index in indices:
                self._active[index] = False

    def expire(self, idle: int) -> list[int]:
        """Remove the phrases that have been neither added nor used for more than `idle` ticks.

        Args:
            idle: Number of ticks (decode steps) that a phrase may stay unused.

        Returns:
            The removed ids.
        """
        with self._lock:
            used = numpy.frombuffer(self._last_used, dtype=numpy.int64)
            active = numpy.frombuffer(self._active, dtype=bool)
            idle_now = numpy.flatnonzero(active & (used < self._clock - idle))
            # A buffer cannot grow while views of it exist.
            del used, active
            expired = [self.static_size + int(index) for index in idle_now]
            if expired:
                self.remove(expired)
        return expired

    def tick(self, used: Iterable[int] = ()) -> None:
        """Advance the clock by a decode step in which the phrases with these ids were used."""
        with self._lock:
            self._clock += 1
            for phrase_id in used:
                self._last_used[self._position(phrase_id)] = self._clock

    def phrase(self, phrase_id: int) -> Phrase:
        """Return the phrase with an id, active or not."""
        return self._phrases[self._position(phrase_id)]

    def id_of(self, phrase: Phrase) -> int | None:
        """Return the id of a phrase, or None if it never had one."""
        index = self._index.get(phrase.ids)
        return None if index is None else self.static_size + index

    def find(self, ids: tuple[int, ...]) -> int | None:
        """Return the id of the active phrase that has these tokens, or None."""
        index = self._index.get(ids)
        return self.static_size + index if index is not None and self._active[index] else None

    @property
    def size(self) -> int:
        """Number of phrases that have an id, removed ones included."""
        return len(self._phrases)

    @property
    def texts(self) -> tuple[tuple[int, ...], ...]:
        """Token ids that drafts go on with: of documents, and of phrases that came without any."""
        with self._lock:
            return tuple(self._texts)

    @property
    def text_count(self) -> int:
        """The number of texts, which only grows."""
        return len(self._texts)

    def snapshot(self, since: int = 0) -> VocabularyState:
        """Return the present state, with the phrases from index `since` on."""
        with self._lock:
            active, weights = bytearray(self._active), array("d", self._weights)
            return VocabularyState(self.version, self._phrases[since:], active, weights)

    def __len__(self) -> int:
        return sum(self._active)

    def __iter__(self) -> Iterator[Phrase]:
        state = self.snapshot()
        pairs = zip(state.phrases, state.active, strict=True)
        return (phrase for phrase, is_active in pairs if is_active)

    def __contains__(self, phrase: Phrase) -> bool:
        return self.find(phrase.ids) is not None

    def _check(self, phrase: object) -> None:
        if not isinstance(phrase, Phrase):
            raise VocabularyError(
                f"{shown(phrase)} is no phrase. Make phrases with lm.vocabulary([...])."
            )
        if max(phrase.ids) >= self.static_size or min(phrase.ids) < 0:
            raise VocabularyError(
                f"phrase {phrase.text!r} has ids {phrase.ids}, but |V| is {self.static_size}. "
                "It was made with another model's tokenizer; make it with this model's."
            )

    def _fill(self, phrases: list[Phrase], index: dict[tuple[int, ...], int]) -> list[int]:
        """Add the first phrases, all distinct, at once: a request brings thousands."""
        self._active.extend(b"\1" * len(phrases))
        self._weights.extend(phrase.weight for phrase in phrases)
        self._last_used.extend([self._clock] * len(phrases))
        self._phrases.extend(phrases)
        self._index = index
        self._changes += len(phrases)
        return list(range(self.static_size, self.static_size + len(phrases)))

    def _add(self, phrase: Phrase) -> int:
        index = self._index.get(phrase.ids, len(self._phrases))
        if index == len(self._phrases):
            self._active.append(True)
            self._weights.append(phrase.weight)
            self._last_used.append(self._clock)
            # Last: a reader in another thread never sees an id without its phrase.
            self._phrases.append(phrase)
            self._index[phrase.ids] = index
            self._changes += 1
        else:
            known = self._phrases[index]
            merged = known.merged(phrase)
            # What stands in more documents scores higher, in the conditional form.
            is_changed = merged.weight != known.weight or len(merged.sources) > len(known.sources)
            self._changes += is_changed or not self._active[index]
            self._phrases[index] = merged
            self._active[index] = True
            self._weights[index] = merged.weight
            self._last_used[index] = self._clock
        return self.static_size + index

    def _position(self, phrase_id: int) -> int:
        index = phrase_id - self.static_size if isinstance(phrase_id, Integral) else -1
        if not 0 <= index < len(self._phrases):
            raise VocabularyError(
                f"{shown(phrase_id)} is no phrase id. Phrase ids run from {self.static_size} "
                f"to {self.static_size + len(self._phrases) - 1}; ids below are the LM's tokens."
            )
        return index
