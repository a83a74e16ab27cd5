"""Options that several verbs share, from text to values."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.phrase import Document
    from univerb.sources.ngrams import PhraseSource


class SourceName(StrEnum):
    """Ways to find the phrases of documents."""

    tokens = "tokens"
    words = "words"
    fmm = "fmm"
    parsed = "parsed"


_OWN_SIZES = {
    SourceName.tokens: "2-8",
    SourceName.words: "2-5",
    SourceName.fmm: "2-16",
    SourceName.parsed: "2-8",
}
Sizes = Annotated[
    str | None,
    typer.Option(
        help="Shortest and longest phrase, such as 2-8: words for words and fmm, else tokens.",
        rich_help_panel="Phrases",
    ),
]
Source = Annotated[
    SourceName,
    typer.Option(
        help="All n-grams of tokens or of words, the longest frequent ones (fmm), or a parser's.",
        rich_help_panel="Phrases",
    ),
]
MinCount = Annotated[
    int,
    typer.Option(min=1, help="fmm: how often a phrase must occur.", rich_help_panel="Phrases"),
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


def phrase_source(
    name: SourceName, sizes: str | None, min_count: int, documents: "Sequence[Document]"
) -> "PhraseSource":
    """Make the phrase source that the options ask for.

    Args:
        name: Which.
        sizes: Shortest and longest phrase, as typed; None for the source's own.
        min_count: How often a phrase of `fmm` must occur.
        documents: What `fmm` counts in.

    Returns:
        The source.
    """
    from univerb.sources.ngrams import ngrams, word_ngrams

    low, high = parse_sizes(sizes or _OWN_SIZES[name])
    if name is SourceName.parsed:
        from univerb.sources.parsed import parsed_chunks

        return parsed_chunks(sizes=(low, high))
    if name is SourceName.fmm:
        from univerb.sources.fmm import fmm_of

        return fmm_of(documents, (low, high), min_count)
    return word_ngrams((low, high)) if name is SourceName.words else ngrams((low, high))
