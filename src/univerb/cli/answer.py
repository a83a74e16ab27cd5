"""`univerb answer`: answer a question from documents, with citations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field
from rich.text import Text

from univerb.cli.console import (
    console,
    errors,
    note_missing_terms,
    note_untrained,
    print_json,
    print_text,
    show_warnings,
    stats_line,
    whole_characters,
)
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.loading import load_to_write
from univerb.cli.options import DECODING, OUTPUT, AsJson, ModelFlags
from univerb.config import REQUEST_OPTIONS, GenerationConfig
from univerb.errors import OptionError, PromptError
from univerb.tokenizer import check_text

if TYPE_CHECKING:
    from univerb.applications.answer import Answer
    from univerb.decoding.results import Piece
    from univerb.modeling.phrase_model import PhraseModel

_COLOURS = ("#8fd3e8", "#f4d35e", "#9fd8a4", "#e0a9d8", "#f2a48f", "#b8b3f0")


class PassageOptions(Options):
    """Where passages come from; `docs` or `corpus`."""

    docs: list[str] = []
    """Documents to answer from: text, Markdown, HTML, JSONL, PDF, DOCX, a folder, or - for
    standard input. Repeatable."""
    corpus: Path | None = None
    """A corpus to answer from, instead of --docs."""

    def read(self) -> Any:  # noqa: ANN401  (documents or a corpus)
        """Read the documents, or open the corpus."""
        if bool(self.docs) == bool(self.corpus):
            named = "both" if self.docs else "neither"
            raise OptionError(f"{named} of --docs and --corpus given. Give one of them.")
        if self.corpus:
            from univerb.corpus import open_corpus

            return open_corpus(self.corpus)
        from univerb.documents.read import read_documents

        return read_documents(*self.docs)


class AnswerOptions(Options):
    """The keywords of `univerb.answer`."""

    quote: bool | None = None
    """Answer with sentences of the documents, or let the LM write; by default small LMs quote."""
    strict: bool = False
    """Leave out what the documents do not support."""
    style: Literal["inline", "sentence", "none"] = "sentence"
    """Markers after each copied stretch, per sentence, or none."""
    cite: Literal["best", "all"] = "best"
    """Cite one passage for what was copied, or each that has it."""
    k: int = Field(default=3, ge=1)
    """Sentences to show an LM that writes."""
    phrases: Literal["ngrams", "parsed", "none"] = "ngrams"
    """Which phrases of them it may write."""


@with_flags
def answer(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    passages: Annotated[PassageOptions, Flags("Passages")],
    options: Annotated[AnswerOptions, Flags("Citations")],
    decoding: Annotated[
        GenerationConfig, Flags(DECODING, only=REQUEST_OPTIONS, defaults={"max_tokens": 128})
    ],
    model: ModelFlags,
    as_json: AsJson = False,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print the LM's words as they come.", rich_help_panel=OUTPUT),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to this file.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Answer a question from documents; what is copied from them is cited."""
    show_warnings()
    # Checked and read before the model is loaded: a wrong input should not cost the wait.
    check_text(question, "question")
    if not question.strip():
        raise PromptError("the question is empty. Ask something.")
    if html and (html.is_dir() or not html.parent.is_dir()):
        raise OptionError(f"--html {str(html)!r} cannot be written. Name a file in a folder.")
    if stream and options.strict:
        raise OptionError("--stream shows what --strict may leave out. Leave one of them out.")
    documents = passages.read()
    lm = load_to_write(**dict(model))
    note_untrained(lm)
    _note_idle(lm, options, decoding, stream)
    if passages.corpus:
        from univerb.applications.corpus_profile import calibrated

        decoding = calibrated(decoding, documents, lm)
        if documents.has_vectors:
            lm.attach(documents)
    from univerb.applications.answer import answer as answer_from

    echo = _echo if stream and not as_json else None
    result = answer_from(
        lm, question, documents, on_piece=echo, **dict(options), **decoding.options()
    )
    if echo and result.generation:
        console.print("\n")
    if result.generation:
        note_missing_terms(result.generation)
    if html:
        _write_page(html, result)
    if as_json:
        print_json(result.to_dict())
    else:
        show_answer(result)


def _note_idle(
    lm: "PhraseModel", options: AnswerOptions, decoding: GenerationConfig, stream: bool
) -> None:
    """Say which of the options that were given do nothing because the answer is a quote."""
    from univerb.applications.answer import is_quoted

    given = decoding.options()
    idle = [name for name in GenerationConfig.model_fields if name in given.keys() - {"max_tokens"}]
    idle += [name for name in ("phrases", "cite") if name in options.model_fields_set]
    idle += ["stream"] * stream
    if idle and is_quoted(lm, options.quote, decoding):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        errors.print(f"[yellow]note:[/] no effect on a quote: {flags}. --no-quote writes.")


def _write_page(path: Path, result: "Answer") -> None:
    from univerb.applications.answer_html import answer_html

    try:
        path.write_text(answer_html(result), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"--html {str(path)!r} cannot be written: {error.strerror}. Name another file."
        ) from error


def _echo(piece: "Piece") -> None:
    text = whole_characters(piece.text)
    if console.is_terminal:
        console.print(Text(text), end="")
    else:
        print(text, end="", flush=True)


def show_answer(result: "Answer") -> None:
    """Print an answer with its markers in colour, and what they cite."""
    if result.truncated:
        errors.print("[yellow]note:[/] passages were shortened to fit the context.")
    if result.generation and not result.is_found:
        errors.print("[yellow]note:[/] nothing in the documents supports this answer.")
    text = Text()
    for run in result.cited.runs():
        number = run.citations[0].marker if run.citations else run.marker
        style = f"bold {_colour(run.marker)}" if run.marker else ""
        if run.citations and number:
            style = f"bold #10222b on {_colour(number)}"
        text.append(run.text, style=style)
    print_text(text, result.rendered)
    console.print()
    for marker, source, start, end, said in _sources(result):
        line = Text().append(f"[{marker}] ", style=f"bold {_colour(marker)}")
        line.append(f"{source}:{start}-{end} ", style="dim")
        console.print(line.append(f"“{' '.join(said.split())}”"))
    if result.generation:
        console.print(f"[dim]{stats_line(result.generation.stats)}[/]")


def _sources(result: "Answer") -> list[tuple[int, str, int, int, str]]:
    """Return what each marker that is shown stands for: copied text, or else its passage."""
    cited = result.cited
    copied = [c for c in cited.citations if cited.is_shown(c)]
    sources = {(c.marker, c.document, c.start, c.end, c.text) for c in copied}
    shown = {marker for mark in cited.marks for marker in mark.markers}
    for marker in shown.difference(c.marker for c in copied):
        passage = result.passages[marker - 1]
        sources.add((marker, passage.document, passage.start, passage.end, passage.text))
    return sorted(sources)


def _colour(number: int) -> str:
    return _COLOURS[(number - 1) % len(_COLOURS)]
