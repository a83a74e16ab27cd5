"""`univerb lab compare`: the paper's case study, one prompt written by several systems."""

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from univerb.cli.console import console, note_untrained, pieces_text, print_json, show_warnings
from univerb.cli.generate import selected_phrases
from univerb.cli.index import told_progress
from univerb.cli.loading import load_any
from univerb.cli.options import (
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
    Model,
    Offline,
    PhraseBias,
    Seed,
    Sizes,
    Source,
    SourceName,
    Temperature,
    Threads,
    TopP,
    phrase_source,
    refuse_overwriting,
)
from univerb.errors import OptionError, PromptError
from univerb.locations import DEFAULT_MODEL

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.lab.judging.case_study import CaseStudy
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.phrase import Document
    from univerb.vocabulary import DynamicVocabulary


class SystemName(StrEnum):
    """Ways to write: the LM without phrases, with the model's profile, or in a decode mode."""

    plain = "plain"
    default = "default"
    atomic = "atomic"
    unfold = "unfold"
    verify = "verify"


_MODES = {SystemName.atomic, SystemName.unfold, SystemName.verify}
# What goes with finished texts, and what does not go with phrases to write with.
_SHOWING = {"texts", "html", "as_json"}
_USELESS = {"docs": {"k"}, "corpus": {"source", "sizes", "min_count"}}


def compare(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file with one prompt per line, instead of PROMPT.")
    ] = None,
    system: Annotated[
        list[SystemName] | None,
        typer.Option(
            help="Who writes: the plain LM, the default profile, or a mode. Repeatable; plain and "
            "default if not given."
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Show finished texts: lines of JSON with prompt (or prefix), text and, for "
            "colours, pieces. Repeatable, one for each system."
        ),
    ] = None,
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="Documents to take phrases from: files or folders. Repeatable.",
            rich_help_panel=PHRASES,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A corpus that `univerb index` built.", rich_help_panel=PHRASES),
    ] = None,
    k: Annotated[
        int, typer.Option("-k", min=1, help="From how many chunks.", rich_help_panel=PHRASES)
    ] = 32,
    source: Source = SourceName.tokens,
    sizes: Sizes = None,
    min_count: MinCount = 5,
    max_tokens: MaxTokens = 128,
    phrase_bias: PhraseBias = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = False,
    engine: Engine = EngineName.torch,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with sources on hover.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Show what systems write for the same prompts, side by side, phrases in colour."""
    show_warnings()
    # Checked and read before the model is loaded: a wrong input should not cost the wait.
    _check(context, html)
    if texts:
        refuse_overwriting("--html", html, texts)
        _tell(_finished(texts), html, as_json)
        return
    options: dict[str, Any] = {
        **{"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed},
        "phrase_bias": phrase_bias,
    }
    from univerb.config import GenerationConfig

    GenerationConfig(**options)
    names = _names(system)
    asked = _lines(prompts) if prompts else [prompt or ""]
    if not all(asked):
        raise PromptError("the prompt is empty. Give at least one character to continue.")
    opened = _opened(corpus) if corpus else None
    documents = _documents(docs or [])
    find = phrase_source(source, sizes, min_count, documents)
    lm = load_any(
        model, engine, adapter=adapter, device=device, dtype=dtype, threads=threads, offline=offline
    )
    note_untrained(lm)
    own = lm.vocabulary(documents, source=find)
    writers = {name: _decoding(name, options, lm, opened) for name in names}
    phrases_of = partial(_selected, lm, opened, k) if opened else lambda _: own
    _tell(_written(lm, asked, writers, phrases_of), html, as_json)


def _check(context: typer.Context, html: Path | None) -> None:
    """Refuse what does not go together, or is for something else."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    origins = [name for name in ("texts", "docs", "corpus") if name in typed]
    if len(origins) != 1:
        given = " and ".join(f"--{name}" for name in origins) or "none"
        raise OptionError(f"{given} of --docs, --corpus and --texts given. Give one of them.")
    [origin] = origins
    useless = typed - _SHOWING if origin == "texts" else typed & _USELESS[origin]
    if useless:
        name = min(useless)
        flag = {"prompt": "PROMPT", "k": "-k"}.get(name, f"--{name.replace('_', '-')}")
        raise OptionError(f"{flag} is not for --{origin}. Drop one of them.")
    if origin != "texts" and ("prompt" in typed) == ("prompts" in typed):
        both = "both" if "prompt" in typed else "none"
        raise OptionError(f"{both} of PROMPT and --prompts given. Give one of them.")
    if html and (html.is_dir() or not html.parent.is_dir()):
        raise OptionError(f"--html {str(html)!r} cannot be written. Name a file in a folder.")


def _names(system: list[SystemName] | None) -> list[SystemName]:
    names = list(dict.fromkeys(system or [SystemName.plain, SystemName.default]))
    if len(names) < 2:
        raise OptionError(f"{names[0].value} alone is no comparison. Give another --system.")
    return names


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"--prompts {str(path)!r} cannot be read: {error}. Name a file in UTF-8."
        ) from error
    found = [line for line in text.splitlines() if line.strip()]
    if not found:
        raise PromptError(f"--prompts {str(path)!r} is empty. Give a prompt on each line.")
    return found


def _opened(folder: Path) -> "Corpus":
    from univerb.corpus import open_corpus

    return open_corpus(folder)


def _documents(docs: list[str]) -> "list[Document]":
    from univerb.documents.read import read_documents

    return read_documents(*docs) if docs else []


def _decoding(
    name: SystemName, typed: dict[str, Any], lm: "PhraseModel", corpus: "Corpus | None"
) -> dict[str, Any]:
    mode = name.value if name in _MODES else None
    own = corpus.profile_options(lm.fingerprint(), mode) if corpus else {}
    return own | {"mode": mode} | {n: value for n, value in typed.items() if value is not None}


def _selected(lm: "PhraseModel", corpus: "Corpus", k: int, prompt: str) -> "DynamicVocabulary":
    vocabulary = lm.vocabulary()
    vocabulary.add(selected_phrases(lm, corpus, prompt, k).phrases)
    return vocabulary


def _written(
    lm: "PhraseModel",
    prompts: Sequence[str],
    writers: dict[SystemName, dict[str, Any]],
    phrases_of: "Callable[[str], DynamicVocabulary]",
) -> "list[CaseStudy]":
    from univerb.decoding.loop import generate
    from univerb.lab.judging.case_study import CaseStudy, System

    studies: list[CaseStudy] = []
    with told_progress() as tell:
        for prompt in prompts:
            phrases, systems = phrases_of(prompt), []
            for name, options in writers.items():
                given = None if name is SystemName.plain else phrases
                made = generate(lm, prompt, given, **options)
                systems.append(System(name.value, made.pieces))
                done = len(studies) * len(writers) + len(systems)
                tell("texts", done, len(prompts) * len(writers))
            studies.append(CaseStudy(prompt, tuple(systems)))
    return studies


def _finished(files: list[Path]) -> "list[CaseStudy]":
    from univerb.lab.judging.case_study import CaseStudy, System
    from univerb.lab.judging.judge import read_texts, system_names

    if len(files) < 2:
        raise OptionError(f"{str(files[0])!r} alone is no comparison. Give another --texts.")
    names, read = system_names(files), read_texts(files)
    if not read:
        raise OptionError(f"{str(files[0])!r} has no texts. Give a line for each prompt.")
    # JSON may hold halves of characters, which no page and no terminal can.
    whole = json.dumps(read, ensure_ascii=False).encode(errors="replace")
    return [
        CaseStudy(prompt, tuple(map(System.from_dict, names, written)))
        for prompt, written in json.loads(whole)
    ]


def _tell(studies: "list[CaseStudy]", html: Path | None, as_json: bool) -> None:
    if html:
        _write_page(html, studies)
    if as_json:
        print_json({"cases": [study.to_dict() for study in studies]})
        return
    from univerb.lab.judging.case_study import terminal_view

    for study in studies:
        console.print(terminal_view(study, pieces_text))


def _write_page(path: Path, studies: "list[CaseStudy]") -> None:
    from univerb.lab.judging.case_study_html import case_study_html

    try:
        path.write_text(case_study_html(studies), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"--html {str(path)!r} cannot be written: {error.strerror}. Name another file."
        ) from error
