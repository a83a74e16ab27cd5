"""`univerb lab phrases`: what an encoder's phrases are worth, measured on held-out text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field

from univerb.cli.console import note_untrained, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.reports import publish
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig, Profile
from univerb.errors import OptionError
from univerb.phrases.content import StopList

if TYPE_CHECKING:
    from univerb.lab.phrases.writing import Variants

VariantName = Literal["bare", "profile", "whole", "verify", "atomic", "segmented"]


class ProtocolOptions(Options):
    """The settings of the measurement: fields of `PhrasesProtocol`."""

    context: int = Field(default=512, ge=1)
    """Tokens of the first half."""
    truth: int = Field(default=256, ge=16)
    """Tokens of the second half."""
    k: int = Field(default=32, ge=1)
    """Chunks to retrieve."""
    content: StopList = "en"
    """Stop list of the guard of content words. none: phrases of any words."""
    max_tokens: int = Field(default=128, ge=1)
    """Base tokens to write."""
    seed: int = Field(default=0, ge=0)
    """Of what is sampled."""


class WritingOptions(Options):
    """The variants of decoding that are compared."""

    variant: tuple[VariantName, ...] = ("bare", "profile", "verify", "atomic")
    """bare, profile, verify, atomic, whole (tolerance 1) or segmented. Repeatable."""
    random_documents: bool = False
    """Control: also with the candidates of another document."""
    untrained: bool = False
    """Control: also with a fresh encoder."""
    limit_writing: int | None = Field(default=None, ge=0)
    """Write for this many of the documents only; a sweep for 12 by default."""
    sweep: bool = False
    """Only write, with every --sweep-tolerance and every --sweep-bias."""
    sweep_tolerance: tuple[Annotated[float, Field(ge=0, le=1)], ...] = (0.3, 0.5, 0.7, 0.9, 1.0)
    """Repeatable."""
    sweep_bias: tuple[Annotated[float, Field(ge=-100, le=100)], ...] = (-2.0, 0.0, 2.0, 4.0)
    """Of the eagerness. Repeatable."""


@with_flags
def phrases(
    docs: Annotated[list[str], typer.Option(help="Held-out text: files or folders. Repeatable.")],
    writing: Annotated[WritingOptions, Flags("Writing")],
    protocol: Annotated[ProtocolOptions, Flags("Protocol")],
    decoding: Annotated[
        GenerationConfig, Flags(DECODING, only=("mode", "tolerance", "phrase_bias", "eagerness"))
    ],
    model: TorchFlags,
    corpus: Annotated[
        Path | None, typer.Option(help="Where candidates are retrieved (`univerb index`).")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first documents.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Documents.")] = 300,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the report here, and resume there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure phrases on held-out documents, cut in the middle: what follows is the truth."""
    from univerb.corpus import open_corpus
    from univerb.documents.read import read_documents

    show_warnings()
    if writing.sweep and (writing.random_documents or writing.untrained):
        raise OptionError("--sweep has no rows for controls. Measure them without it.")
    if out:
        make_folder("--out", out)
    opened = open_corpus(corpus) if corpus else None
    documents = read_documents(*docs)
    lm = load_model(**dict(model))
    note_untrained(lm)
    lm.profile = lm.profile.model_copy(update=decoding.options())
    from univerb.lab.phrases.plot import plot_report
    from univerb.lab.phrases.run import PhrasesProtocol, evaluate_phrases

    bounds: dict[str, Any] = {"limit": limit, "limit_writing": writing.limit_writing}
    if writing.sweep:
        few = min(limit, 12) if writing.limit_writing is None else writing.limit_writing
        bounds = {"limit": max(few, 1), "only_write": True}
    with progress_bars() as tell:
        report = evaluate_phrases(
            lm,
            documents,
            opened,
            PhrasesProtocol(**protocol.model_dump()),
            variants=_variants(writing, lm.profile),
            controls=_controls(writing),
            skip=skip,
            folder=out,
            progress=lambda done, total: tell("documents", done, total),
            **bounds,
        )
    name = "sweep" if writing.sweep else "phrases"
    publish(report, name, out, as_json)
    if out:
        plot_report(out / f"{name}.png", report)


def _variants(writing: WritingOptions, profile: Profile) -> "Variants":
    from univerb.lab.phrases.writing import standard_variants, sweep_variants

    if writing.sweep:
        return sweep_variants(writing.sweep_tolerance, writing.sweep_bias)
    known = standard_variants(profile)
    return {name: known[name] for name in writing.variant}


def _controls(writing: WritingOptions) -> list[str]:
    from univerb.lab.phrases.writing import RANDOM_DOCUMENTS, UNTRAINED

    return [RANDOM_DOCUMENTS] * writing.random_documents + [UNTRAINED] * writing.untrained
