"""What a generation returns: text, the pieces it is made of, and what it cost."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from univerb.phrase import Phrase, Span

SCHEMA_VERSION = 1
"""Of `Generation.to_dict`; rises when a field changes its meaning or goes."""

FinishReason = Literal["length", "eos", "stop"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that could have been chosen."""

    text: str
    probability: float
    is_phrase: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of the output: one token, or a phrase with its sources. Pieces tile the text."""

    text: str
    ids: tuple[int, ...]
    logprob: float
    """In `atomic` the unit's, over V + P; otherwise the sum of the LM's own for its tokens."""
    phrase: Phrase | None = None
    """The phrase, cut to the part that was kept; None for a token."""
    candidates: tuple[Candidate, ...] = ()
    """The best choices at this point, if asked for."""

    @property
    def is_phrase(self) -> bool:
        """Whether this piece was written as a phrase."""
        return self.phrase is not None

    @property
    def sources(self) -> tuple[Span, ...]:
        """Where the phrase was found; empty for a token."""
        return self.phrase.sources if self.phrase else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the piece as JSON can hold it."""
        explained = {"candidates": [asdict(c) for c in self.candidates]} if self.candidates else {}
        return {
            "text": self.text,
            "ids": list(self.ids),
            "is_phrase": self.is_phrase,
            "sources": [asdict(span) for span in self.sources],
            "logprob": self.logprob,
            **explained,
        }

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Stats:
    """What a generation cost and how much of it came from phrases."""

    prompt_tokens: int = 0
    base_tokens: int = 0
    """Tokens of V in the output, the end token not counted."""
    units: int = 0
    """Pieces: a phrase counts once."""
    steps: int = 0
    """Passes of the backbone after the prefill; one over several rows counts once."""
    pass_ends: list[int] = field(default_factory=list)
    """For each of these passes the number of base tokens that were written when it ended."""
    pass_rows: list[int] = field(default_factory=list)
    """For each of these passes the number of positions computed."""
    phrases: int = 0
    """Number of phrases in the vocabulary at the end."""
    phrase_tokens: int = 0
    phrase_lengths: Counter[int] = field(default_factory=Counter)
    """Number of phrases written, by their length in tokens."""
    encode_seconds: float = 0.0
    growth_seconds: float = 0.0
    """The part of it that was spent after the first unit was chosen."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Positions computed in these passes."""
        return sum(self.pass_rows)

    @property
    def tokens_per_step(self) -> float:
        """Base tokens per backbone pass, the prefill's included: it decides the first unit."""
        return self.base_tokens / (self.steps + 1)

    @property
    def phrase_share(self) -> float:
        """The share of base tokens that were written as part of a phrase."""
        return self.phrase_tokens / self.base_tokens if self.base_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON can hold them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "base_tokens": self.base_tokens,
            "units": self.units,
            "steps": self.steps,
            "rows": self.rows,
            "tokens_per_step": self.tokens_per_step,
            "phrases": self.phrases,
            "phrase_share": self.phrase_share,
            "phrase_lengths": dict(sorted(self.phrase_lengths.items())),
            "seconds": {
                "encode": self.encode_seconds,
                "prefill": self.prefill_seconds,
                "decode": self.decode_seconds,
            },
        }

    def count(self, piece: Piece) -> None:
        """Add a piece of the output."""
        self.units += 1
        self.base_tokens += len(piece.ids)
        if piece.is_phrase:
            self.phrase_tokens += len(piece.ids)
            self.phrase_lengths[len(piece.ids)] += 1


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation; prints as its text."""

    text: str
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    stats: Stats
    missing_terms: tuple[str, ...] = ()
    """The texts of `prefer` and `require` that were not written."""

    @property
    def phrases(self) -> list[Phrase]:
        """The phrases in the output, in order."""
        return [piece.phrase for piece in self.pieces if piece.phrase]

    def to_dict(self) -> dict[str, Any]:
        """Return the generation as JSON can hold it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "text": self.text,
            "pieces": [piece.to_dict() for piece in self.pieces],
            "finish_reason": self.finish_reason,
            "stats": self.stats.to_dict(),
            "missing_terms": list(self.missing_terms),
        }

    def __str__(self) -> str:
        return self.text
