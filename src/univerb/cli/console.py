"""How results look in a terminal: phrases in colour, sources numbered, one line of figures."""

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape as escape  # for every verb
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from univerb.decoding.results import Generation, Piece, Stats
    from univerb.modeling.phrase_model import PhraseModel

# A text may hold codes that a terminal would obey, or that turn the direction of writing.
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {*range(32), *range(127, 160), *_DIRECTIONS} - {*map(ord, "\n\t")}
_HARMLESS = dict.fromkeys(_CONTROLS)
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS}
_PHRASE_STYLES = ("bold #10222b on #8fd3e8", "bold #2b2210 on #f4d35e")


class HarmlessConsole(Console):
    """Shows what a terminal would obey neither in texts nor in names: only rich's own codes."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object to segments, all of them harmless."""
        for segment in super().render(renderable, options):
            is_own = bool(segment.control)
            yield segment if is_own else segment._replace(text=segment.text.translate(_HARMLESS))


console = HarmlessConsole(highlight=False, soft_wrap=True)
errors = HarmlessConsole(stderr=True, highlight=False, soft_wrap=True)


def piece_text(piece: "Piece", number: int) -> Text:
    """Render a piece: a phrase in one of two colours by turns, so that neighbours stay apart."""
    shown = whole_characters(piece.text)
    if not piece.is_phrase:
        return Text(shown)
    space = len(shown) - len(shown.lstrip())
    text = Text(shown[:space])
    return text.append(shown[space:], style=_PHRASE_STYLES[number % 2])


def pieces_text(pieces: Iterable["Piece"], prompt: str = "") -> Text:
    """Render a whole generation, after its prompt, if any."""
    text, number = Text().append(prompt, style="dim"), 0
    for piece in pieces:
        text.append_text(piece_text(piece, number))
        number += piece.is_phrase
    return text


def whole_characters(text: str) -> str:
    """Return a text without the rest of a character that the budget has cut off at its end."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


def print_text(shown: Text, text: str) -> None:
    """Print a text in colour on a terminal, and as it is elsewhere: rich would replace tabs."""
    if console.is_terminal:
        console.print(shown)
    else:
        print(whole_characters(text))


def stats_line(stats: "Stats") -> str:
    """Say in one line what a generation cost."""
    passes = stats.steps + 1
    return (
        f"{stats.base_tokens} token{'s' * (stats.base_tokens != 1)} in "
        f"{passes} pass{'es' * (passes != 1)} ({stats.tokens_per_step:.2f} per pass), "
        f"{stats.phrase_share:.0%} in phrases, {stats.phrases} phrases to choose from; "
        f"{stats.encode_seconds:.1f} s encode, {stats.prefill_seconds:.1f} s prefill, "
        f"{stats.decode_seconds:.1f} s decode"
    )


def side_by_side(generations: "dict[str, Generation]") -> Table:
    """Show generations in columns under their names, each with what it cost."""
    grid = Table.grid(expand=True)
    for _ in generations:
        grid.add_column(ratio=1, overflow="fold")
    grid.add_row(
        *(
            Panel(Group(pieces_text(g.pieces), Text(stats_line(g.stats), style="dim")), title=name)
            for name, g in generations.items()
        )
    )
    return grid


def print_sources(generation: "Generation", limit: int = 3) -> None:
    """List the phrases of a generation with the places they come from."""
    table = Table("phrase", "found in", box=None, pad_edge=False, header_style="dim")
    for phrase in dict.fromkeys(generation.phrases):
        places = [f"{span.document}:{span.start}-{span.end}" for span in phrase.sources[:limit]]
        more = len(phrase.sources) - limit
        places += [f"and {more} more"] if more > 0 else []
        table.add_row(Text(phrase.text.strip()), Text(", ".join(places) or "your list"))
    if table.row_count:
        console.print(table)


def print_json(value: dict[str, Any] | Sequence[Any]) -> None:
    """Print one JSON value and nothing else on standard output."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not is_utf8, indent=2).translate(_JSON_ESCAPES))


def note_untrained(lm: "PhraseModel") -> None:
    """Say so when the phrase encoder has learned nothing yet."""
    if lm.has_encoder and not lm.is_trained:
        errors.print(
            f"[dim]note: the phrase encoder of {escape(lm.name)} is untrained: "
            "phrases are proposed by their first token and cut where the LM disagrees.[/]"
        )


def note_missing_terms(generation: "Generation") -> None:
    """Say which of the texts that were asked for are not in the output."""
    if generation.missing_terms:
        terms = ", ".join(map(repr, generation.missing_terms))
        errors.print(f"[yellow]note:[/] asked for, but not written: {escape(terms)}.")


def show_warnings() -> None:
    """Print our warnings as notes instead of Python's two-line form."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:  # noqa: ANN401
        errors.print(f"[yellow]note:[/] {escape(str(message))}")

    warnings.showwarning = show
