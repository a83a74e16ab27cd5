"""`univerb generate`: continue a prompt with the phrases of documents."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from rich.text import Text

from univerb.applications.context import DEFAULT_CONTEXT
from univerb.cli.console import (
    console,
    errors,
    note_missing_terms,
    note_untrained,
    piece_text,
    pieces_text,
    print_json,
    print_sources,
    print_text,
    show_warnings,
    side_by_side,
    stats_line,
    whole_characters,
)
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.loading import load_to_write
from univerb.cli.options import (
    DECODING,
    OUTPUT,
    PHRASES,
    DecodingFlags,
    ModelFlags,
    ModelOptions,
    SourceOptions,
)
from univerb.errors import OptionError, PhraseError, PromptError
from univerb.locations import DEFAULT_MODEL
from univerb.phrase import Document
from univerb.tokenizer import check_text

if TYPE_CHECKING:
    from univerb.applications.context import PromptInContext
    from univerb.config import GenerationConfig
    from univerb.corpus import Corpus
    from univerb.corpus.select import Selection
    from univerb.decoding.results import Generation
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.phrases.collection import PhraseItem
    from univerb.vocabulary import DynamicVocabulary

_OF_DOCUMENTS = {"source", "sizes", "content", "whole_numbers"}


class PhraseOptions(Options):
    """Where the phrases come from."""

    docs: list[str] = []
    """Documents to take phrases from: text, Markdown, HTML, JSONL, PDF, DOCX, a folder, or - for
    standard input. Repeatable."""
    corpus: Path | None = None
    """A corpus that `univerb index` built."""
    k: int = Field(default=32, ge=1)
    """Chunks of the corpus to take phrases from."""
    others: bool = False
    """Encode also the n-grams of the chunks that the corpus does not hold."""
    phrases: Path | None = None
    """A file with one phrase per line, optionally a tab and a weight."""
    phrase: list[str] = []
    """A phrase. Repeatable."""
    real_time: bool = False
    """Start with 70 % of the phrases, add 5 % every 10 tokens."""
    context: int = Field(default=DEFAULT_CONTEXT, ge=0)
    """Passages of the documents or the corpus to show the LM before the prompt."""

    def items(self) -> "list[PhraseItem]":
        """Read the documents and lists of phrases."""
        from univerb.documents.read import read_documents
        from univerb.phrases.lists import read_phrase_list

        if not all(phrase.strip() for phrase in self.phrase):
            raise PhraseError("a --phrase is empty. Drop it.")
        documents = read_documents(*self.docs) if self.docs else []
        listed = read_phrase_list(self.phrases) if self.phrases else []
        return [*documents, *listed, *self.phrase]

    def open_corpus(self) -> "Corpus | None":
        """Open the corpus, if there is one."""
        if not self.corpus:
            return None
        from univerb.corpus import open_corpus

        return open_corpus(self.corpus)


class OutputOptions(Options):
    """What is printed."""

    as_json: bool = Field(default=False, alias="json")
    """Print one JSON object."""
    stream: bool = False
    """Print pieces as they come."""
    compare: bool = False
    """Show the plain LM beside it."""
    sources: bool = False
    """List where the phrases come from."""


@with_flags
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    phrases: Annotated[PhraseOptions, Flags(PHRASES)],
    source: Annotated[SourceOptions, Flags(PHRASES)],
    decoding: DecodingFlags,
    model: ModelFlags,
    output: Annotated[OutputOptions, Flags(OUTPUT)],
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template.", rich_help_panel=DECODING)
    ] = False,
) -> None:
    """Continue a prompt, writing whole phrases of your documents as single steps."""
    show_warnings()
    # Read before the model is loaded: a wrong path should not cost the wait.
    text = _read_prompt(prompt, phrases.docs)
    corpus, items = phrases.open_corpus(), phrases.items()
    own, default = (o.model_dump(include=_OF_DOCUMENTS) for o in (source, SourceOptions()))
    if corpus and not phrases.docs and own != default:
        raise OptionError(
            "--source, --sizes, --content and --whole-numbers are for --docs; a corpus has its own "
            "phrases."
        )
    if phrases.real_time and not corpus and not items:
        raise OptionError("--real-time needs phrases to add: give --docs, --corpus or --phrases.")
    find = source.phrase_source([item for item in items if isinstance(item, Document)])
    lm = load_to_write(
        **dict(model),
        encoder=bool(corpus or items) or _asks_for_encoder(decoding, model),
    )
    note_untrained(lm)
    vocabulary = lm.vocabulary(items, source=find, max_phrases=source.max_phrases)
    selection = None
    if corpus:
        from univerb.applications.corpus_profile import calibrated

        selection = selected_phrases(
            lm, corpus, text, phrases.k, source.max_phrases, phrases.others
        )
        vocabulary.add(selection.vocabulary(lm))
        decoding = calibrated(decoding, corpus, lm)
    documents = corpus or [item for item in items if isinstance(item, Document)]
    shown = _in_context(lm, text, documents, phrases.context, decoding.max_tokens, chat)
    decoding = shown.configured(decoding)
    ids, growing = shown.ids, decoding
    if phrases.real_time:
        from univerb.decoding.growth import RealTime

        growing = decoding.replaced({"growth": RealTime(list(vocabulary), seed=decoding.seed)})
        vocabulary = lm.vocabulary()
    is_streamed = output.stream and not output.as_json
    result = _run(lm, ids, vocabulary if corpus or items else None, growing, echo=is_streamed)
    note_missing_terms(result)
    plain = _run(lm, ids, None, decoding) if output.compare else None
    if output.as_json:
        print_json(result.to_dict() | _beside(plain, selection))
        return
    _show(f"{text}\n\n" if chat else text, result, plain, is_streamed)
    _show_candidates(result)
    if output.sources:
        print_sources(result)


def _in_context(
    lm: "PhraseModel",
    text: str,
    documents: "list[Document] | Corpus",
    context: int,
    max_tokens: int,
    chat: bool,
) -> "PromptInContext":
    from univerb.applications.context import in_context, message_in_context
    from univerb.applications.passages import find_passages

    passages = find_passages(text, documents, context) if documents and context else ()
    if chat:
        return message_in_context(lm, text, passages, max_tokens=max_tokens)
    return in_context(lm, text, passages, max_tokens)


def _asks_for_encoder(decoding: "GenerationConfig", model: ModelOptions) -> bool:
    """Tell whether a generation without phrases needs the encoder: the packaged one seldom."""
    # Another may be damaged, which is to be said; llama.cpp reads the tokenizer beside it.
    is_packaged = model.name == DEFAULT_MODEL and model.engine != "llamacpp"
    has_terms = bool(decoding.prefer or decoding.require)
    return not is_packaged or has_terms or decoding.mode == "atomic" or model.adapter


def _read_prompt(prompt: str, docs: list[str]) -> str:
    if prompt == "-" and "-" in docs:
        raise OptionError("standard input can be the prompt or a document, not both.")
    if prompt == "-":
        try:
            # The line end is the terminal's, not the text's.
            prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise PromptError("the prompt on standard input is not UTF-8. Convert it.") from None
    if not prompt:
        raise PromptError("the prompt is empty. Give at least one character to continue.")
    check_text(prompt, "prompt")
    return prompt


def selected_phrases(
    lm: "PhraseModel",
    corpus: "Corpus",
    query: str,
    k: int,
    max_phrases: int | None = None,
    others: bool = False,
) -> "Selection":
    """Select the phrases of a corpus for a prompt; a note says so where there are none."""
    if corpus.has_vectors:
        lm.attach(corpus)
    selection = corpus.select(query, lm.tokenizer, k, max_phrases=max_phrases, others=others)
    if not selection.phrases:
        errors.print(
            "[yellow]note:[/] the corpus has nothing for this prompt; no phrases are used."
        )
    return selection


def _run(
    lm: "PhraseModel",
    prompt: str | list[int],
    vocabulary: "DynamicVocabulary | None",
    decoding: "GenerationConfig",
    echo: bool = False,
) -> "Generation":
    from univerb.decoding.loop import Decoder, Stream

    pieces = Stream(Decoder(lm, [prompt], vocabulary, decoding))
    number = 0
    for piece in pieces:
        if echo and console.is_terminal:
            console.print(piece_text(piece, number), end="")
            number += piece.is_phrase
        elif echo:
            print(whole_characters(piece.text), end="", flush=True)
    if echo:
        print()
    return pieces.result


def _beside(plain: "Generation | None", selection: "Selection | None") -> dict[str, Any]:
    """Return what JSON has besides the generation: the plain LM's, and what a corpus gave."""
    beside: dict[str, Any] = {"plain": plain.to_dict()} if plain else {}
    if selection:
        # Phrases that the corpus does not hold were encoded at once.
        encoded = len(selection.phrases) - selection.stored
        counts = {"chunks": len(selection.hits), "stored": selection.stored, "encoded": encoded}
        beside["retrieved"] = counts
    return beside


def _show(prompt: str, result: "Generation", plain: "Generation | None", is_streamed: bool) -> None:
    if plain:
        console.print(pieces_text((), prompt))
        console.print(side_by_side({"with phrases": result, "plain LM": plain}))
        return
    if not is_streamed:
        print_text(pieces_text(result.pieces, prompt), prompt + result.text)
    console.print(f"[dim]{stats_line(result.stats)}[/]")


def _show_candidates(result: "Generation") -> None:
    for piece in result.pieces:
        if piece.candidates:
            shown = "  ".join(f"{c.text!r} {c.probability:.2f}" for c in piece.candidates)
            console.print(Text(f"{piece.text!r:24} <- {shown}", style="dim"))
