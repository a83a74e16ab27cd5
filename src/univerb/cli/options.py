"""Groups of flags that several verbs share."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from univerb.cli.flags import Flags, Options
from univerb.config import EXPERT_OPTIONS, MAX_PHRASES, GenerationConfig
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL
from univerb.phrases.content import StopList

if TYPE_CHECKING:
    from univerb.phrase import Document
    from univerb.phrases.guards import Guards
    from univerb.phrases.ngrams import PhraseSource

PHRASES, DECODING, MODEL, OUTPUT = "Phrases", "Decoding", "Model", "Output"
ADVANCED = "Advanced decoding"

DecodingFlags = Annotated[
    GenerationConfig,
    Flags(
        DECODING,
        without=("growth", "repeat_from"),
        panels=dict.fromkeys(EXPERT_OPTIONS, ADVANCED)
        | dict.fromkeys(("ban", "prefer", "require"), PHRASES)
        | {"explain": OUTPUT},
        names={"dtype": "kernel_dtype"},
    ),
]
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
    """A folder, a Hub id, a GGUF file, or the default."""
    adapter: bool = False
    """Add the LoRA adapter beside the encoder, which is made for atomic."""
    engine: EngineName | None = None
    """What computes: torch, or llamacpp for GGUF files, on a CPU. By default what the model is
    for."""
    gguf: str | None = None
    """llamacpp: the model's GGUF file; the default model's is found by itself."""
    device: str = "cpu"
    """torch: cpu, cuda or mps."""
    dtype: str = "float32"
    """torch: float32, bfloat16 or float16."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default all cores."""
    offline: bool | None = None
    """Never contact the Hub."""


ModelFlags = Annotated[ModelOptions, Flags(MODEL)]
TorchFlags = Annotated[ModelOptions, Flags(MODEL, without=("engine", "gguf"))]


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
    content: StopList = "en"
    """Language of the stop list; a phrase has a word that is not on it. none: any words."""
    whole_numbers: bool = True
    """No phrase begins or ends inside a number such as 1,500 or § 12(3)."""
    max_phrases: int = Field(default=MAX_PHRASES, ge=0)
    """Use at most this many phrases, those that save the most tokens."""

    @property
    def guards(self) -> "Guards":
        """The rules for phrases."""
        from univerb.phrases.guards import Guards

        return Guards(content=self.content, whole_numbers=self.whole_numbers)

    def phrase_source(self, documents: "Sequence[Document]") -> "PhraseSource":
        """Make the phrase source; `documents` is what `fmm` counts in."""
        from univerb.phrases.ngrams import ngrams, word_ngrams

        sizes = parse_sizes(self.sizes or _SIZES[self.source])
        if self.source is SourceName.parsed:
            from univerb.phrases.parsed import parsed_chunks

            return parsed_chunks(sizes=sizes, guards=self.guards)
        if self.source is SourceName.fmm:
            from univerb.phrases.fmm import fmm_of

            return fmm_of(documents, sizes, self.min_count, self.guards)
        find = word_ngrams if self.source is SourceName.words else ngrams
        return find(sizes, self.guards)


def parse_sizes(text: str) -> tuple[int, int]:
    """Read `2-8` as (2, 8), and `3` as (3, 3)."""
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise OptionError(f"--sizes is {text!r}; give two numbers such as 2-8.") from None


def make_folder(option: str, folder: Path) -> None:
    """Make a folder that an option names, or say that it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{option} {str(folder)!r} cannot be made: {error.strerror}. Name another folder."
        ) from error
