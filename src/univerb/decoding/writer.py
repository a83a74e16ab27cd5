"""From units to pieces of text: never half a character, never a part of a stop string."""

from collections.abc import Sequence
from dataclasses import replace
from os.path import commonprefix

from univerb.decoding.results import Candidate, Piece
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer


class Writer:
    """Takes units, gives the pieces whose text is certain; holds back the rest.

    A piece waits while it ends in an incomplete character or in what may become a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream()
        self._stop = tuple(stop)
        self._held: list[Piece] = []
        self._incomplete = False
        self.is_stopped = False
        """Whether a stop string has been written."""

    def write(
        self,
        ids: Sequence[int],
        logprob: float,
        phrase: Phrase | None = None,
        candidates: tuple[Candidate, ...] = (),
    ) -> list[Piece]:
        """Add a unit.

        Args:
            ids: Its base tokens.
            logprob: Its log-probability.
            phrase: The phrase that it begins, or None for tokens without a source.
            candidates: What else could have been chosen.

        Returns:
            The pieces that have become certain.
        """
        text = ""
        for token in ids:
            part = self._stream.push([token])
            self._incomplete = not part
            text += part
        if phrase is not None:
            # A part that ends inside a character is sourced up to the last whole one.
            part = commonprefix([phrase.text, self._tokenizer.decode(ids)])
            phrase = phrase.cut(part, tuple(ids))
        self._held.append(Piece(text, tuple(ids), logprob, phrase, candidates))
        return self._release()

    def close(self) -> list[Piece]:
        """Return what is held back, at the end of the generation."""
        if self._held and not self.is_stopped:
            last = self._held[-1]
            self._held[-1] = replace(last, text=last.text + self._stream.flush())
            self._cut_at_stop()
        released, self._held = self._held, []
        return released

    def _release(self) -> list[Piece]:
        if self._cut_at_stop():
            released, self._held = self._held, []
            return released
        if self._incomplete:
            return []
        text = "".join(piece.text for piece in self._held)
        safe = len(text) - self._possible_stop(text)
        released = []
        while self._held and len(self._held[0].text) <= safe:
            safe -= len(self._held[0].text)
            released.append(self._held.pop(0))
        return released

    def _possible_stop(self, text: str) -> int:
        """Return the length of the longest end of a text that may become a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0

    def _cut_at_stop(self) -> bool:
        text = "".join(piece.text for piece in self._held)
        starts = [start for stop in self._stop if (start := text.find(stop)) >= 0]
        if not starts:
            return False
        self.is_stopped = True
        left, before_stop = min(starts), []
        for piece in self._held:
            if left <= 0:
                break
            before_stop.append(piece if len(piece.text) <= left else self._cut(piece, left))
            left -= len(piece.text)
        self._held = before_stop
        return True

    def _cut(self, piece: Piece, length: int) -> Piece:
        """Cut a piece's text, and its ids to the tokens that begin before the cut."""
        ids, text = piece.ids, piece.text[:length]
        decoded = piece.phrase.text if piece.phrase else self._tokenizer.decode(ids)
        # What an earlier piece left incomplete shows at the beginning of this one.
        carried = max(len(piece.text) - len(decoded), 0)
        while len(ids) > 1 and len(self._tokenizer.decode(ids[:-1])) >= length - carried:
            ids = ids[:-1]
        # One token alone is no phrase.
        phrase = piece.phrase.cut(text[carried:], ids) if piece.phrase and len(ids) > 1 else None
        return replace(piece, text=text, ids=ids, phrase=phrase)
