"""The last prompts and what an engine keeps of them: one that begins alike is not read again."""

from collections.abc import Sequence
from os.path import commonprefix
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

Kept = TypeVar("Kept")

MIN_TOKENS = 64
"""Shorter prefixes are read again: it takes no time, and the bits stay those of one pass."""
MAX_BYTES = 512 << 20
"""Of all entries together."""


class _Entry(NamedTuple, Generic[Kept]):
    ids: tuple[int, ...]
    kept: Kept
    nbytes: int


class PrefixStore(Generic[Kept]):
    """Prompts that were read, the last used one last. What is kept of them never changes."""

    def __init__(self) -> None:
        self._entries: list[_Entry[Kept]] = []
        self._lock = Lock()

    def find(self, prompt: Sequence[int]) -> tuple[int, Kept | None]:
        """Return the number of prompt tokens that an entry begins with, and what is kept of it.

        The last token does not count: its output is what the caller wants.
        """
        wanted = tuple(prompt[:-1])
        with self._lock:
            shared = [(len(commonprefix([entry.ids, wanted])), entry) for entry in self._entries]
            count, entry = max(shared, key=lambda pair: pair[0], default=(0, None))
            if entry is None or count < MIN_TOKENS:
                return 0, None
            self._entries = [*(other for other in self._entries if other is not entry), entry]
            return count, entry.kept

    def add(self, prompt: Sequence[int], kept: Kept, nbytes: int) -> None:
        """Add a prompt of more than `MIN_TOKENS` tokens, and drop the oldest entries."""
        if len(prompt) <= MIN_TOKENS or nbytes > MAX_BYTES:
            return
        new = _Entry(tuple(prompt), kept, nbytes)
        with self._lock:
            # What a longer prompt begins with is found there.
            others = [e for e in self._entries if commonprefix([e.ids, new.ids]) != e.ids]
            self._entries = [*others, new]
            while sum(entry.nbytes for entry in self._entries) > MAX_BYTES:
                self._entries.pop(0)
