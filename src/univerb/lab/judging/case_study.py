"""The paper's case study: what systems wrote for one prompt, side by side, phrase by phrase."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from univerb.decoding.results import Piece
from univerb.errors import OptionError
from univerb.phrase import Phrase, Span

NO_SOURCE = "your list"
"""The source of a phrase without a document."""


class _PieceRecord(BaseModel):
    """The shown part of a piece in JSON."""

    text: str
    ids: tuple[int, ...]
    is_phrase: bool = False
    sources: tuple[Span, ...] = ()

    def piece(self) -> Piece:
        """Return the piece."""
        phrase = Phrase(self.ids, self.text, self.sources) if self.is_phrase else None
        return Piece(self.text, self.ids, 0.0, phrase)


_RECORDS = TypeAdapter(list[_PieceRecord])


class SystemOutput(NamedTuple):
    """What one system wrote."""

    name: str
    pieces: tuple[Piece, ...]

    @classmethod
    def from_dict(cls, name: str, written: Mapping[str, Any]) -> "SystemOutput":
        """Read a generation as `univerb generate --json` writes it, or only its `text`."""
        whole = [{"text": written.get("text"), "ids": ()}]
        try:
            records = _RECORDS.validate_python(written.get("pieces", whole))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, ("pieces", *first["loc"])))
            raise OptionError(
                f"what {name!r} wrote is no generation: {where}: {first['msg']}. Give the JSON of "
                "`univerb generate --json`."
            ) from None
        return cls(name, tuple(record.piece() for record in records))

    def to_dict(self) -> dict[str, Any]:
        """Return the system for JSON; `from_dict` reads it."""
        pieces = [piece.to_dict() for piece in self.pieces if piece.ids]
        return {"name": self.name, "text": self.text} | ({"pieces": pieces} if pieces else {})

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def caption(self) -> str:
        """One line of figures."""
        tokens = sum(len(piece.ids) for piece in self.pieces)
        if self.pieces and not tokens:
            return f"{len(self.text.split())} words"
        in_phrases = sum(len(piece.ids) for piece in self.pieces if piece.is_phrase)
        share = in_phrases / max(tokens, 1)
        return f"{tokens} tokens in {len(self.pieces)} units, {share:.0%} in phrases"


class CaseStudy(NamedTuple):
    """A prompt, and what systems made of it."""

    prompt: str
    systems: tuple[SystemOutput, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the case for JSON."""
        return {"prompt": self.prompt, "systems": [system.to_dict() for system in self.systems]}


def source_labels(phrase: Phrase, limit: int = 3) -> list[str]:
    """Name at most `limit` sources of a phrase, and the number of others."""
    named = [f"{span.document}, characters {span.start}-{span.end}" for span in phrase.sources]
    more = len(named) - limit
    return named[:limit] + ([f"and {more} more"] if more > 0 else []) or [NO_SOURCE]


def terminal_view(study: CaseStudy, pieces_text: Callable[..., Text]) -> Group:
    """Show a case in a terminal: a panel for each system, with the sources of its phrases.

    `pieces_text` colours pieces after a prompt, as the command line does everywhere.
    """
    panels = [_panel(system, pieces_text(system.pieces)) for system in study.systems]
    grid = Table.grid(expand=True)
    for _ in range(2):
        grid.add_column(ratio=1, overflow="fold")
    for first in range(0, len(panels), 2):
        grid.add_row(*panels[first : first + 2])
    return Group(pieces_text((), study.prompt), grid)


def _panel(system: SystemOutput, text: Text) -> Panel:
    sources = Table("phrase", "found in", box=None, pad_edge=False, header_style="dim")
    for column in sources.columns:
        column.overflow = "fold"
    for phrase in dict.fromkeys(piece.phrase for piece in system.pieces if piece.phrase):
        sources.add_row(Text(phrase.text.strip()), Text("\n".join(source_labels(phrase, 1))))
    below: list[RenderableType] = ["", sources] if sources.row_count else []
    return Panel(Group(text, Text(system.caption, style="dim"), *below), title=Text(system.name))
