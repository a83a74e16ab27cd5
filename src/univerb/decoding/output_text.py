"""The text of one sequence as it grows: tokens, pieces that are certain, and its end."""

from collections.abc import Sequence

from univerb.config import GenerationConfig
from univerb.decoding.results import Candidate, FinishReason, Piece, Stats
from univerb.decoding.writer import Writer
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer


class OutputText:
    """Prompt and output of one sequence."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], config: GenerationConfig
    ) -> None:
        self.ids = list(prompt)
        """Base tokens of prompt and output."""
        self.prompt_size = len(prompt)
        self.stats = Stats(prompt_tokens=len(prompt))
        self.finish_reason: FinishReason | None = None
        self._max_tokens = config.max_tokens
        self._writer = Writer(tokenizer, config.stop)
        self._released: list[Piece] = []

    @property
    def produced(self) -> int:
        """Number of base tokens of the output."""
        return len(self.ids) - self.prompt_size

    @property
    def left(self) -> int:
        """Number of base tokens that the budget leaves."""
        return self._max_tokens - self.produced

    def show(
        self,
        ids: Sequence[int],
        logprob: float,
        phrase: Phrase | None,
        candidates: tuple[Candidate, ...],
    ) -> None:
        """Make a piece of tokens that were added already."""
        if self.finish_reason:
            return
        self._release(self._writer.write(ids, logprob, phrase, candidates))
        if self._writer.is_stopped:
            self.finish("stop")

    def finish(self, reason: FinishReason) -> None:
        """End the text."""
        self._release(self._writer.close())
        self.finish_reason = "stop" if self._writer.is_stopped else reason

    def release(self) -> list[Piece]:
        """Return the pieces that have become certain since the last call."""
        released, self._released = self._released, []
        return released

    def _release(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.stats.count(piece)
        self._released.extend(pieces)
