"""`univerb generate`: continue a prompt with the phrases of documents."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from univerb.cli.console import (
    console,
    errors,
    note_untrained,
    piece_text,
    pieces_text,
    print_json,
    print_sources,
    show_warnings,
    stats_line,
)
from univerb.cli.loading import load_model
from univerb.cli.options import (
    DECODING,
    OUTPUT,
    PHRASES,
    Adapter,
    AsJson,
    Device,
    Dtype,
    Engine,
    EngineName,
    MaxTokens,
    MinCount,
    Mode,
    Model,
    NoRepeatNgramSize,
    Offline,
    PhraseBias,
    Seed,
    Sizes,
    Source,
    SourceName,
    Temperature,
    Threads,
    Tolerance,
    TopP,
    phrase_source,
)
from univerb.errors import OptionError, PhraseError, PromptError
from univerb.locations import DEFAULT_MODEL
from univerb.phrase import Document

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.corpus.select import Selection
    from univerb.decoding.results import Generation
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.phrases.collection import PhraseItem
    from univerb.vocabulary import DynamicVocabulary


class Overshoot(StrEnum):
    """What a last phrase may do."""

    allow = "allow"
    forbid = "forbid"


class Positions(StrEnum):
    """How positions are counted."""

    unit = "unit"
    token = "token"


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="Documents to take phrases from: text, Markdown, HTML, JSONL, PDF, DOCX, a "
            "folder, or - for standard input. Repeatable.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A corpus that `univerb index` built.", rich_help_panel=PHRASES),
    ] = None,
    k: Annotated[
        int,
        typer.Option("-k", min=1, help="From how many chunks.", rich_help_panel=PHRASES),
    ] = 32,
    others: Annotated[
        bool,
        typer.Option(
            "--others",
            help="Encode also the n-grams of the chunks that the corpus does not hold.",
            rich_help_panel=PHRASES,
        ),
    ] = False,
    phrases: Annotated[
        Path | None,
        typer.Option(
            help="A file with one phrase per line, optionally a tab and a weight.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    phrase: Annotated[
        list[str] | None, typer.Option(help="A phrase. Repeatable.", rich_help_panel=PHRASES)
    ] = None,
    source: Source = SourceName.tokens,
    sizes: Sizes = None,
    min_count: MinCount = 5,
    max_phrases: Annotated[
        int | None, typer.Option(help="Keep at most so many.", rich_help_panel=PHRASES)
    ] = None,
    ban: Annotated[
        list[str] | None,
        typer.Option(
            help="Never choose phrases with this text. Repeatable.", rich_help_panel=PHRASES
        ),
    ] = None,
    real_time: Annotated[
        bool,
        typer.Option(
            help="Start with 70 % of the phrases, add 5 % every 10 tokens.",
            rich_help_panel=PHRASES,
        ),
    ] = False,
    max_tokens: MaxTokens = 128,
    mode: Mode = None,
    tolerance: Tolerance = None,
    phrase_bias: PhraseBias = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.", rich_help_panel=DECODING)] = 0,
    repetition_penalty: Annotated[float, typer.Option(rich_help_panel=DECODING)] = 1.0,
    seed: Seed = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop here. Repeatable.", rich_help_panel=DECODING)
    ] = None,
    overshoot: Annotated[
        Overshoot,
        typer.Option(help="May a last phrase exceed the budget?", rich_help_panel=DECODING),
    ] = Overshoot.forbid,
    positions: Annotated[
        Positions | None,
        typer.Option(help="Where a phrase fed as one vector sits.", rich_help_panel=DECODING),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on to the budget.", rich_help_panel=DECODING)
    ] = False,
    chat: Annotated[
        bool, typer.Option(help="Apply the chat template.", rich_help_panel=DECODING)
    ] = False,
    truncate: Annotated[
        bool,
        typer.Option(help="Cut a prompt that is too long from the left.", rich_help_panel=DECODING),
    ] = False,
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = False,
    engine: Engine = EngineName.torch,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print pieces as they come.", rich_help_panel=OUTPUT)
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show the plain LM beside it.", rich_help_panel=OUTPUT)
    ] = False,
    sources: Annotated[
        bool,
        typer.Option("--sources", help="List where the phrases come from.", rich_help_panel=OUTPUT),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show the candidates of each step.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Continue a prompt, writing whole phrases of your documents as single steps."""
    show_warnings()
    if prompt == "-" and "-" in (docs or []):
        raise OptionError("standard input can be the prompt or a document, not both.")
    # Read before the model is loaded: a wrong path should not cost the wait.
    has_source = source is not SourceName.tokens or sizes is not None
    opened = _opened(corpus, has_unused=has_source and not docs) if corpus else None
    items = _phrase_items(docs, phrases, phrase)
    documents = [item for item in items if isinstance(item, Document)]
    find = phrase_source(source, sizes, min_count, documents)
    text = _piped() if prompt == "-" else prompt
    if not text:
        raise PromptError("the prompt is empty. Give at least one character to continue.")
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or (),
        "ban": ban or (),
        "overshoot": overshoot.value,
        "positions": positions.value if positions else None,
        "ignore_eos": ignore_eos,
        "truncate": "left" if truncate else None,
        "explain": explain,
    }
    special: dict[str, Any] = {
        "mode": mode and mode.value,
        "tolerance": tolerance,
        "phrase_bias": phrase_bias,
        "no_repeat_ngram_size": no_repeat_ngram_size,
    }
    from univerb.config import GenerationConfig

    # Checked before the model is loaded: a wrong option should not cost the wait either.
    GenerationConfig(**options | special)
    if max_phrases is not None and max_phrases < 0:
        raise OptionError(f"max_phrases is {max_phrases}; give 0 or more.")
    lm = load_model(
        model,
        engine=engine,
        adapter=adapter,
        device=device,
        dtype=dtype,
        threads=threads,
        offline=offline,
    )
    note_untrained(lm)
    vocabulary = lm.vocabulary(items, source=find, max_phrases=max_phrases) if items else None
    found = None
    if opened:
        found = selected_phrases(lm, opened, text, k, max_phrases, others)
        vocabulary = _together(vocabulary or lm.vocabulary(), found)
        special = opened.profile_options(lm.fingerprint(), special["mode"]) | {
            n: v for n, v in special.items() if v is not None
        }
    if real_time:
        if vocabulary is None:
            raise OptionError(
                "--real-time needs phrases to add: give --docs, --corpus or --phrases."
            )
        vocabulary, special["growth"] = _real_time(lm, vocabulary, seed)
    given = lm.chat_prompt(text) if chat else text
    result = _run(lm, given, vocabulary, options | special, echo=stream and not as_json)
    plain = _run(lm, given, None, options, echo=False) if compare else None
    if as_json:
        print_json(result.to_dict() | _beside(plain, found))
        return
    _show(f"{text}\n\n" if chat else text, result, plain, is_streamed=stream)
    if explain:
        _show_candidates(result)
    if sources:
        print_sources(result)


def _piped() -> str:
    try:
        # The line end is the terminal's, not the text's.
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise PromptError("the prompt on standard input is not UTF-8. Convert it.") from None


def _phrase_items(
    docs: list[str] | None, listed: Path | None, own: list[str] | None
) -> "list[PhraseItem]":
    from univerb.documents.read import read_documents
    from univerb.phrases.lists import read_phrase_list

    if any(not one.strip() for one in own or []):
        raise PhraseError("a --phrase is empty. Drop it.")
    items: list[PhraseItem] = list(read_documents(*docs)) if docs else []
    return items + (read_phrase_list(listed) if listed else []) + (own or [])


def _opened(folder: Path, has_unused: bool) -> "Corpus":
    from univerb.corpus import open_corpus

    if has_unused:
        raise OptionError("--source and --sizes are for --docs; a corpus has its own phrases.")
    return open_corpus(folder)


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
    found = corpus.select(query, lm.tokenizer, k, max_phrases=max_phrases, others=others)
    if not found.phrases:
        errors.print(
            "[yellow]note:[/] the corpus has nothing for this prompt; no phrases are used."
        )
    return found


def _together(vocabulary: "DynamicVocabulary", found: "Selection") -> "DynamicVocabulary":
    vocabulary.add(found.phrases)
    return vocabulary


def _beside(plain: "Generation | None", found: "Selection | None") -> dict[str, Any]:
    """Return what JSON has besides the generation: the plain LM's, and what a corpus gave."""
    beside: dict[str, Any] = {"plain": plain.to_dict()} if plain else {}
    if found:
        # Phrases that the corpus does not hold were encoded at once.
        encoded = len(found.phrases) - found.stored
        counts = {"chunks": len(found.hits), "stored": found.stored, "encoded": encoded}
        beside["retrieved"] = counts
    return beside


def _real_time(
    lm: "PhraseModel", vocabulary: "DynamicVocabulary", seed: int
) -> tuple["DynamicVocabulary", Any]:
    from univerb.decoding.growth import RealTime

    return lm.vocabulary(), RealTime(list(vocabulary), seed=seed)


def _run(
    lm: "PhraseModel",
    prompt: str | list[int],
    vocabulary: "DynamicVocabulary | None",
    options: dict[str, Any],
    echo: bool,
) -> "Generation":
    from univerb.decoding.loop import stream

    pieces = stream(lm, prompt, vocabulary, **options)
    number = 0
    for piece in pieces:
        if echo and console.is_terminal:
            console.print(piece_text(piece, number), end="")
            number += piece.is_phrase
        elif echo:
            print(piece.text, end="", flush=True)
    if echo:
        print()
    return pieces.result


def _show(prompt: str, result: "Generation", plain: "Generation | None", is_streamed: bool) -> None:
    if plain is None:
        if not is_streamed and console.is_terminal:
            console.print(pieces_text(result.pieces, prompt))
        elif not is_streamed:
            # Piped on as it is: a terminal's rendering would turn tabs into spaces.
            print(prompt + result.text)
        console.print(f"[dim]{stats_line(result.stats)}[/]")
        return
    from univerb.lab.judging.case_study import CaseStudy, System, terminal_view

    systems = tuple(
        System(name, one.pieces, stats_line(one.stats))
        for name, one in (("with phrases", result), ("plain LM", plain))
    )
    console.print(terminal_view(CaseStudy(prompt, systems), pieces_text, with_sources=False))


def _show_candidates(result: "Generation") -> None:
    for piece in result.pieces:
        if piece.candidates:
            shown = "  ".join(f"{c.text!r} {c.probability:.2f}" for c in piece.candidates)
            console.print(Text(f"{piece.text!r:24} <- {shown}", style="dim"))
