"""Options that several verbs share, from text to values."""

from typing import TYPE_CHECKING, Annotated

import typer

from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.sources.ngrams import PhraseSource

Sizes = Annotated[
    str, typer.Option(help="Shortest and longest n-gram: 2-8.", rich_help_panel="Phrases")
]


def parse_sizes(text: str) -> tuple[int, int]:
    """Read `2-8` as (2, 8).

    Args:
        text: What the user typed.

    Returns:
        Shortest and longest.

    Raises:
        OptionError: If it is not two numbers.
    """
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise OptionError(f"--sizes is {text!r}; give two numbers such as 2-8.") from None


def phrase_source(sizes: tuple[int, int], words: bool) -> "PhraseSource":
    """Make the n-gram source that the options ask for."""
    from univerb.sources.ngrams import ngrams, word_ngrams

    return word_ngrams(sizes) if words else ngrams(sizes)
