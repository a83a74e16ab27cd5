"""The paper's case study: what two systems wrote for one prompt, side by side, phrase by phrase."""

from collections.abc import Callable, Mapping, Sequence
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
"""Where a phrase without a document comes from."""


class _PieceRecord(BaseModel):
    """A piece as `Piece.to_dict` writes it, as far as it is shown."""

    text: str
    ids: tuple[int, ...]
    is_phrase: bool = False
    sources: tuple[Span, ...] = ()

    def piece(self) -> Piece:
        """Return the piece."""
        phrase = Phrase(self.ids, self.text, self.sources) if self.is_phrase else None
        return Piece(self.text, self.ids, 0.0, phrase)


_RECORDS = TypeAdapter(list[_PieceRecord])


class System(NamedTuple):
    """What one system wrote."""

    name: str
    pieces: tuple[Piece, ...]

    @classmethod
    def from_dict(cls, name: str, generation: Mapping[str, Any]) -> "System":
        """Take a generation as `univerb generate --json` writes it.

        Args:
            name: What to call the system.
            generation: The JSON object.

        Returns:
            The system.

        Raises:
            OptionError: If the object is no generation.
        """
        try:
            records = _RECORDS.validate_python(generation.get("pieces"))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, ("pieces", *first["loc"])))
            raise OptionError(
                f"what {name!r} wrote is no generation: {where}: {first['msg']}. Give the JSON of "
                "`univerb generate --json`."
            ) from None
        return cls(name, tuple(record.piece() for record in records))

    @property
    def caption(self) -> str:
        """One line of figures."""
        tokens = sum(len(piece.ids) for piece in self.pieces)
        in_phrases = sum(len(piece.ids) for piece in self.pieces if piece.is_phrase)
        share = in_phrases / max(tokens, 1)
        return f"{tokens} tokens in {len(self.pieces)} units, {share:.0%} in phrases"


class CaseStudy(NamedTuple):
    """A prompt, and what two systems made of it."""

    prompt: str
    ours: System
    theirs: System


def places(phrase: Phrase, limit: int = 3) -> list[str]:
    """Say where a phrase was found.

    Args:
        phrase: The phrase.
        limit: How many places to name.

    Returns:
        Document and characters of each, and how many more there are.
    """
    named = [f"{own.document}, characters {own.start}-{own.end}" for own in phrase.sources[:limit]]
    more = len(phrase.sources) - limit
    return named + ([f"and {more} more"] if more > 0 else []) or [NO_SOURCE]


def terminal_view(study: CaseStudy, pieces_text: Callable[[Sequence[Piece]], Text]) -> Group:
    """Show a case in a terminal: two columns, phrases coloured, their sources beneath.

    Args:
        study: The case.
        pieces_text: Colours pieces, as the command line does everywhere.

    Returns:
        What rich can print.
    """
    columns = Table.grid(expand=True)
    for _ in range(2):
        columns.add_column(ratio=1, overflow="fold")
    columns.add_row(*(_panel(own, pieces_text(own.pieces)) for own in (study.ours, study.theirs)))
    return Group(Text(study.prompt, style="dim"), columns)


def _panel(system: System, text: Text) -> Panel:
    found = Table("phrase", "found in", box=None, pad_edge=False, header_style="dim")
    for column in found.columns:
        column.overflow = "fold"
    for phrase in dict.fromkeys(piece.phrase for piece in system.pieces if piece.phrase):
        found.add_row(Text(phrase.text.strip()), Text("\n".join(places(phrase))))
    sources: list[RenderableType] = ["", found] if found.row_count else []
    return Panel(Group(text, Text(system.caption, style="dim"), *sources), title=Text(system.name))
