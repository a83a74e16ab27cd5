"""Groups of flags that several verbs share."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from univerb.cli.flags import Flags, Options
from univerb.config import GenerationConfig
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL

if TYPE_CHECKING:
    from univerb.phrase import Document
    from univerb.phrases.ngrams import PhraseSource

PHRASES, DECODING, MODEL, OUTPUT = "Phrases", "Decoding", "Model", "Output"
ADVANCED = "Advanced decoding"

DecodingFlags = Annotated[
    GenerationConfig,
    Flags(
        DECODING,
        without=("growth",),
        panels={"ban": PHRASES, "explain": OUTPUT}
        | dict.fromkeys(
            ("draft_bias", "positions", "dtype", "segment", "exact", "prefix_cache"), ADVANCED
        ),
        names={"dtype": "kernel_dtype"},
    ),
]
COMMON_DECODING = (
    *("max_tokens", "mode", "tolerance", "phrase_bias", "temperature", "top_p", "top_k"),
    *("repetition_penalty", "no_repeat_ngram_size", "seed", "stop", "ban"),
)
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]


class EngineName(StrEnum):
    """What computes."""

    torch = "torch"
    llamacpp = "llamacpp"


class ModelOptions(Options):
    """The model and where it runs: the keywords of `load_model`."""

    name: str = Field(default=DEFAULT_MODEL, alias="model")
    """A folder, a Hub id, or the default."""
    adapter: bool = False
    """Add the LoRA adapter beside the encoder, which is made for atomic."""
    engine: EngineName = EngineName.torch
    """llamacpp: the GGUF file, several times faster."""
    device: str = "cpu"
    """torch: cpu, cuda or mps."""
    dtype: str = "float32"
    """torch: float32, bfloat16 or float16."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default all cores."""
    offline: bool | None = None
    """Never contact the Hub."""


ModelFlags = Annotated[ModelOptions, Flags(MODEL)]
TorchFlags = Annotated[ModelOptions, Flags(MODEL, only=("name", "dtype", "offline"))]


class SourceName(StrEnum):
    """Ways to find the phrases of documents."""

    tokens = "tokens"
    words = "words"
    fmm = "fmm"
    parsed = "parsed"


_SIZES = {
    SourceName.tokens: "2-8",
    SourceName.words: "2-5",
    SourceName.fmm: "2-16",
    SourceName.parsed: "2-8",
}


class SourceOptions(Options):
    """Which phrases of documents to use."""

    source: SourceName = SourceName.tokens
    """All n-grams of tokens or of words, the longest frequent ones (fmm), or a parser's."""
    sizes: str | None = None
    """Shortest and longest phrase, such as 2-8: words for words and fmm, else tokens."""
    min_count: int = Field(default=5, ge=1)
    """fmm: how often a phrase must occur."""
    max_phrases: int | None = Field(default=None, ge=0)
    """Use at most this many phrases."""

    def phrase_source(self, documents: "Sequence[Document]") -> "PhraseSource":
        """Make the phrase source; `documents` is what `fmm` counts in."""
        from univerb.phrases.ngrams import ngrams, word_ngrams

        sizes = parse_sizes(self.sizes or _SIZES[self.source])
        if self.source is SourceName.parsed:
            from univerb.phrases.parsed import parsed_chunks

            return parsed_chunks(sizes=sizes)
        if self.source is SourceName.fmm:
            from univerb.phrases.fmm import fmm_of

            return fmm_of(documents, sizes, self.min_count)
        return word_ngrams(sizes) if self.source is SourceName.words else ngrams(sizes)


def parse_sizes(text: str) -> tuple[int, int]:
    """Read `2-8` as (2, 8), and `3` as (3, 3)."""
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise OptionError(f"--sizes is {text!r}; give two numbers such as 2-8.") from None


def typed_names(context: typer.Context) -> set[str]:
    """Return the names of the parameters that the user typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def make_folder(option: str, folder: Path) -> None:
    """Make a folder that an option names, or say that it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{option} {str(folder)!r} cannot be made: {error.strerror}. Name another folder."
        ) from error


# Flags of verbs that do not take the groups above yet.

DATA = "Data"


class ModeName(StrEnum):
    """The decode modes."""

    atomic = "atomic"
    unfold = "unfold"
    verify = "verify"


Sizes = Annotated[
    str | None,
    typer.Option(
        help="Shortest and longest phrase, such as 2-8: words for words and fmm, else tokens.",
        rich_help_panel=PHRASES,
    ),
]
Source = Annotated[
    SourceName,
    typer.Option(
        help="All n-grams of tokens or of words, the longest frequent ones (fmm), or a parser's.",
        rich_help_panel=PHRASES,
    ),
]
MinCount = Annotated[
    int,
    typer.Option(min=1, help="fmm: how often a phrase must occur.", rich_help_panel=PHRASES),
]

MaxTokens = Annotated[int, typer.Option(help="Budget in base tokens.", rich_help_panel=DECODING)]
Mode = Annotated[
    ModeName | None,
    typer.Option(help="By default as the model's profile says.", rich_help_panel=DECODING),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="unfold: how far below the LM's best a phrase's token may be, 0 to 1.",
        rich_help_panel=DECODING,
    ),
]
PhraseBias = Annotated[
    float | None,
    typer.Option(help="Added to every phrase's logit.", rich_help_panel=DECODING),
]
NoRepeatNgramSize = Annotated[
    int | None,
    typer.Option(
        help="Write no n-gram of this many tokens twice; 0: off.", rich_help_panel=DECODING
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=DECODING)]
TopP = Annotated[float, typer.Option(rich_help_panel=DECODING)]
Seed = Annotated[int, typer.Option(rich_help_panel=DECODING)]
Model = Annotated[
    str, typer.Option(help="A folder, a Hub id, or the default.", rich_help_panel=MODEL)
]
Adapter = Annotated[
    bool,
    typer.Option(
        "--adapter",
        help="Add the LoRA adapter beside the encoder, which is made for atomic.",
        rich_help_panel=MODEL,
    ),
]


Engine = Annotated[
    EngineName,
    typer.Option(help="llamacpp: the GGUF file, several times faster.", rich_help_panel=MODEL),
]
Device = Annotated[str, typer.Option(rich_help_panel=MODEL)]
Dtype = Annotated[str, typer.Option(rich_help_panel=MODEL)]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        help="The folder with wikitext103, law, asqa and wiki; by default UNIVERB_DATA.",
        rich_help_panel=DATA,
    ),
]
WikiCorpus = Annotated[
    Path | None,
    typer.Option(
        help="A Wikipedia corpus (`univerb index`), instead of a small one that is built once.",
        rich_help_panel=DATA,
    ),
]
LawCorpus = Annotated[Path | None, typer.Option(help="The same for law.", rich_help_panel=DATA)]
Threads = Annotated[int | None, typer.Option(min=1, rich_help_panel=MODEL)]
Offline = Annotated[bool | None, typer.Option(help="Never contact the Hub.", rich_help_panel=MODEL)]


def write_pages(folder: Path, pages: dict[str, str]) -> None:
    """Write a report's pages by name, or say that one cannot be written."""
    for page, content in pages.items():
        try:
            (folder / page).write_text(content, encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"{str(folder / page)!r} cannot be written: {error.strerror}. Name another --out."
            ) from error


def refuse_overwriting(option: str, out: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read."""
    if out is None or not out.exists():
        return
    for path in inputs:
        if path.exists() and out.samefile(path):
            raise OptionError(f"{option} names {str(path)!r}, which is read. Name another file.")


def phrase_source(
    name: SourceName, sizes: str | None, min_count: int, documents: "Sequence[Document]"
) -> "PhraseSource":
    """Make the phrase source that the options ask for."""
    options = SourceOptions(source=name, sizes=sizes, min_count=min_count)
    return options.phrase_source(documents)
