"""V' = V + P: the names and ids of a vocabulary that changes while a model writes.

Ids are `static_size + index` and never move: removed phrases keep their id and can come back
under it, so ids that were generated earlier stay valid whatever happens later.
"""

import threading
from collections.abc import Iterable, Iterator

from univerb.errors import VocabularyError
from univerb.phrase import Phrase


class DynamicVocabulary:
    """The phrases that one or several sequences may use, append-only and safe across threads.

    Iterating yields the active phrases; `len` counts them; `size` counts all that have an id.

    Args:
        static_size: |V| of the LM.
        phrases: What it begins with.

    Example:
        >>> vocabulary = DynamicVocabulary(static_size=100)
        >>> vocabulary.add([Phrase((7, 8), " quiet enjoyment")])
        [100]
        >>> vocabulary.remove([100])
        >>> len(vocabulary), vocabulary.size
        (0, 1)
    """

    def __init__(self, static_size: int, phrases: Iterable[Phrase] = ()) -> None:
        if static_size < 1:
            raise VocabularyError(f"static_size is {static_size}; it is |V| of the LM, at least 1.")
        self.static_size = static_size
        self.version = 0
        """Rises whenever a phrase is added, removed, revived or re-weighted."""
        self._phrases: list[Phrase] = []
        self._index: dict[tuple[int, ...], int] = {}
        self._active: list[bool] = []
        self._last_used: list[int] = []
        self._clock = 0
        self._lock = threading.RLock()
        self.add(phrases)

    def add(self, phrases: Iterable[Phrase]) -> list[int]:
        """Add phrases, merging the sources of those that are there already.

        Args:
            phrases: What to add. A phrase that was removed becomes active again under its old id.

        Returns:
            The id of each phrase, in the order given.
        """
        with self._lock:
            ids = [self._add(phrase) for phrase in phrases]
            self.version += bool(ids)
        return ids

    def remove(self, ids: Iterable[int]) -> None:
        """Make phrases unavailable; their ids stay theirs.

        Args:
            ids: Phrase ids. Removing one twice is harmless.

        Raises:
            VocabularyError: If an id belongs to no phrase.
        """
        with self._lock:
            for index in [self._position(phrase_id) for phrase_id in ids]:
                self._active[index] = False
            self.version += 1

    def expire(self, idle: int) -> list[int]:
        """Remove the phrases that were neither added nor used in the last `idle` ticks.

        Args:
            idle: How many ticks (decode steps) a phrase may go unused.

        Returns:
            The ids that were removed.
        """
        with self._lock:
            limit = self._clock - idle
            old = [
                self.static_size + index
                for index, (active, used) in enumerate(
                    zip(self._active, self._last_used, strict=True)
                )
                if active and used < limit
            ]
            if old:
                self.remove(old)
        return old

    def tick(self, used: Iterable[int] = ()) -> None:
        """Let one decode step pass, in which the phrases with these ids were used."""
        with self._lock:
            self._clock += 1
            for phrase_id in used:
                self._last_used[self._position(phrase_id)] = self._clock

    def phrase(self, phrase_id: int) -> Phrase:
        """Return the phrase that has an id, active or not."""
        return self._phrases[self._position(phrase_id)]

    def id_of(self, phrase: Phrase) -> int | None:
        """Return the id of a phrase, or None if it never had one."""
        index = self._index.get(phrase.ids)
        return None if index is None else self.static_size + index

    def is_active(self, phrase_id: int) -> bool:
        """Tell whether the phrase with this id can be chosen."""
        return self._active[self._position(phrase_id)]

    @property
    def size(self) -> int:
        """How many phrases have an id, removed ones included."""
        return len(self._phrases)

    def snapshot(self, since: int = 0) -> tuple[int, list[Phrase], list[bool]]:
        """Return version, the phrases from index `since` on, and which of all are active."""
        with self._lock:
            return self.version, self._phrases[since:], list(self._active)

    def weights(self) -> list[float]:
        """Return the weight of every phrase that has an id."""
        with self._lock:
            return [phrase.weight for phrase in self._phrases]

    def __len__(self) -> int:
        return sum(self._active)

    def __iter__(self) -> Iterator[Phrase]:
        _, phrases, active = self.snapshot()
        return (phrase for phrase, is_active in zip(phrases, active, strict=True) if is_active)

    def __contains__(self, phrase: Phrase) -> bool:
        index = self._index.get(phrase.ids)
        return index is not None and self._active[index]

    def _add(self, phrase: Phrase) -> int:
        if max(phrase.ids) >= self.static_size or min(phrase.ids) < 0:
            raise VocabularyError(
                f"phrase {phrase.text!r} has ids {phrase.ids}, but |V| is {self.static_size}. "
                "It was made with another model's tokenizer; make it with this model's."
            )
        index = self._index.setdefault(phrase.ids, len(self._phrases))
        if index == len(self._phrases):
            self._phrases.append(phrase)
            self._active.append(True)
            self._last_used.append(self._clock)
        else:
            self._phrases[index] = self._phrases[index].merged(phrase)
            self._active[index] = True
            self._last_used[index] = self._clock
        return self.static_size + index

    def _position(self, phrase_id: int) -> int:
        index = phrase_id - self.static_size
        if not 0 <= index < len(self._phrases):
            raise VocabularyError(
                f"{phrase_id} is no phrase id. Phrase ids run from {self.static_size} "
                f"to {self.static_size + len(self._phrases) - 1}; ids below are the LM's tokens."
            )
        return index
