"""`univerb answer`: answer a question from documents, with citations."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from univerb.cli.console import (
    console,
    errors,
    note_untrained,
    print_json,
    show_warnings,
    stats_line,
)
from univerb.cli.loading import load_model
from univerb.cli.options import (
    DECODING,
    OUTPUT,
    AsJson,
    Device,
    Dtype,
    Engine,
    EngineName,
    MaxTokens,
    Mode,
    Model,
    NoRepeatNgramSize,
    Offline,
    PhraseBias,
    Seed,
    Temperature,
    Threads,
    Tolerance,
    TopP,
)
from univerb.errors import OptionError, PromptError
from univerb.locations import DEFAULT_MODEL

if TYPE_CHECKING:
    from univerb.applications.answer import Answer


class PhraseKind(StrEnum):
    """Which phrases of the passages the LM may write."""

    ngrams = "ngrams"
    parsed = "parsed"
    none = "none"


class StyleName(StrEnum):
    """Where markers are shown."""

    inline = "inline"
    sentence = "sentence"
    none = "none"


class CiteName(StrEnum):
    """Which of the passages that have a phrase are cited."""

    best = "best"
    all = "all"


PASSAGES, CITATIONS = "Passages", "Citations"
_COLOURS = ("#8fd3e8", "#f4d35e", "#9fd8a4", "#e0a9d8", "#f2a48f", "#b8b3f0")


def answer(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="Documents to answer from: text, Markdown, HTML, JSONL, PDF, DOCX, a folder, or "
            "- for standard input. Repeatable.",
            rich_help_panel=PASSAGES,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A corpus to answer from, instead of --docs.", rich_help_panel=PASSAGES),
    ] = None,
    k: Annotated[
        int, typer.Option("-k", min=1, help="Passages to show the LM.", rich_help_panel=PASSAGES)
    ] = 3,
    phrases: Annotated[
        PhraseKind,
        typer.Option(help="Which phrases of the passages to use.", rich_help_panel=PASSAGES),
    ] = PhraseKind.ngrams,
    style: Annotated[
        StyleName,
        typer.Option(
            help="Markers after each phrase, per sentence, or none.", rich_help_panel=CITATIONS
        ),
    ] = StyleName.sentence,
    cite: Annotated[
        CiteName,
        typer.Option(
            help="Cite the best passage that has a phrase, or all.", rich_help_panel=CITATIONS
        ),
    ] = CiteName.best,
    encode_marker: Annotated[
        bool,
        typer.Option(
            "--encode-marker", help="Make markers a part of the phrases.", rich_help_panel=CITATIONS
        ),
    ] = False,
    shots: Annotated[
        int,
        typer.Option(min=0, max=1, help="1 shows a solved example.", rich_help_panel=DECODING),
    ] = 0,
    chat: Annotated[
        bool | None,
        typer.Option(
            help="Use the chat template; by default if there is one.", rich_help_panel=DECODING
        ),
    ] = None,
    max_tokens: MaxTokens = 300,
    mode: Mode = None,
    tolerance: Tolerance = None,
    phrase_bias: PhraseBias = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    model: Model = DEFAULT_MODEL,
    engine: Engine = EngineName.torch,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to this file.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Answer a question from documents; what is copied from them is cited."""
    show_warnings()
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "mode": mode and mode.value,
        "tolerance": tolerance,
        "phrase_bias": phrase_bias,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    # Checked and read before the model is loaded: a wrong input should not cost the wait.
    _check(question, html, options)
    documents = _documents(docs, corpus)
    options["source"] = _parser() if phrases is PhraseKind.parsed else None
    lm = load_model(
        model, engine=engine, device=device, dtype=dtype, threads=threads, offline=offline
    )
    note_untrained(lm)
    if corpus:
        own = documents.profile_options(lm.fingerprint(), options["mode"])
        options = own | {n: v for n, v in options.items() if v is not None}
        if documents.has_vectors:
            lm.attach(documents)
    from univerb.applications.answer import answer as answer_from

    result = answer_from(
        lm,
        question,
        documents,
        k=k,
        phrases=phrases.value,
        style=style.value,
        cite=cite.value,
        encode_marker=encode_marker,
        shots=shots,
        chat=chat,
        **options,
    )
    if html:
        _write_page(html, result)
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)


def _check(question: str, html: Path | None, options: dict[str, Any]) -> None:
    from univerb.config import GenerationConfig

    GenerationConfig(**options)
    if not question.strip():
        raise PromptError("the question is empty. Ask something.")
    if html and (html.is_dir() or not html.parent.is_dir()):
        raise OptionError(f"--html {str(html)!r} cannot be written. Name a file in a folder.")


def _documents(docs: list[str] | None, corpus: Path | None) -> Any:  # noqa: ANN401  (either kind)
    if bool(docs) == bool(corpus):
        raise OptionError(
            f"{'both' if docs else 'neither'} of --docs and --corpus given. Give one of them."
        )
    if corpus:
        from univerb.corpus import open_corpus

        return open_corpus(corpus)
    from univerb.documents.read import read_documents

    return read_documents(*(docs or []))


def _parser() -> Any:  # noqa: ANN401  (a phrase source; its module is loaded only when used)
    from univerb.phrases.parsed import parsed_chunks

    return parsed_chunks()


def _write_page(path: Path, result: "Answer") -> None:
    from univerb.applications.answer_html import answer_html

    try:
        path.write_text(answer_html(result), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"--html {str(path)!r} cannot be written: {error.strerror}. Name another file."
        ) from error


def _show(result: "Answer") -> None:
    if result.truncated:
        errors.print("[yellow]note:[/] passages were shortened to fit the context.")
    text = Text()
    for run in result.cited.runs():
        number = run.citations[0].marker if run.citations else run.marker
        style = f"bold {_colour(run.marker)}" if run.marker else ""
        if run.citations and number:
            style = f"bold #10222b on {_colour(number)}"
        text.append(run.text, style=style)
    if console.is_terminal:
        console.print(text)
    else:
        # Piped on as it is: a terminal's rendering would turn tabs into spaces.
        print(text.plain)
    console.print()
    sources = {
        (citation.marker, citation.start, citation.end): citation for citation in result.citations
    }
    for _, citation in sorted(sources.items()):
        place = f"{citation.document}:{citation.start}-{citation.end}"
        line = Text().append(f"[{citation.marker}] ", style=f"bold {_colour(citation.marker)}")
        line.append(f"{place} ", style="dim")
        console.print(line.append(f"“{' '.join(citation.text.split())}”"))
    console.print(f"[dim]{stats_line(result.generation.stats)}[/]")


def _colour(number: int) -> str:
    return _COLOURS[(number - 1) % len(_COLOURS)]
