"""`univerb lab compare`: the paper's case study, one prompt written by several systems."""

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from univerb.cli.console import console, note_untrained, pieces_text, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.generate import selected_phrases
from univerb.cli.lab.options import chosen_way, refuse_overwriting
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, OUTPUT, PHRASES, AsJson, TorchFlags
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig
from univerb.errors import OptionError, PromptError

if TYPE_CHECKING:
    from univerb.lab.judging.case_study import CaseStudy
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.vocabulary import DynamicVocabulary


class SystemName(StrEnum):
    """The LM without phrases, with the model's profile, or in a decode mode."""

    plain = "plain"
    default = "default"
    atomic = "atomic"
    unfold = "unfold"
    verify = "verify"


_phrases = partial(typer.Option, rich_help_panel=PHRASES)
_CHUNKS = 32
"""Chunks of a corpus that give phrases."""


@with_flags
def compare(
    context: typer.Context,
    decoding: Annotated[
        GenerationConfig, Flags(DECODING, only=("max_tokens", "phrase_bias", "eagerness"))
    ],
    model: TorchFlags,
    prompt: Annotated[str, typer.Argument(help="The text to continue.")] = "",
    system: Annotated[
        list[SystemName],
        typer.Option(help="The plain LM, the default profile, or a mode. Repeatable."),
    ] = [SystemName.plain, SystemName.default],  # noqa: B006  (typer copies it)
    texts: Annotated[
        list[Path] | None,
        typer.Option(help="Show finished texts: JSON lines of prompt, text, pieces. Repeatable."),
    ] = None,
    docs: Annotated[
        list[str] | None, _phrases(help="Take phrases of files or folders. Repeatable.")
    ] = None,
    corpus: Annotated[Path | None, _phrases(help="A corpus that `univerb index` built.")] = None,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.", rich_help_panel=OUTPUT)] = None,
) -> None:
    """Show what systems write for the same prompts, side by side, phrases in colour."""
    show_warnings()
    # Checked and read before the model is loaded: a wrong input should not cost the wait.
    chosen_way(context, {"docs": None, "corpus": None, "texts": {"html"}})
    if len(set(system)) < 2:
        raise OptionError(f"{system[0].value} alone is no comparison. Give another --system.")
    if html and (html.is_dir() or not html.parent.is_dir()):
        raise OptionError(f"--html {str(html)!r} cannot be written. Name a file in a folder.")
    if texts:
        refuse_overwriting("--html", html, texts)
        _show(_finished(texts), html, as_json)
        return
    from univerb.applications.corpus_profile import calibrated
    from univerb.corpus import open_corpus
    from univerb.documents.read import read_documents

    if not prompt:
        raise PromptError("the prompt is empty. Give at least one character to continue.")
    opened = open_corpus(corpus) if corpus else None
    documents = read_documents(*docs) if docs else []
    lm = load_model(**dict(model))
    note_untrained(lm)
    vocabulary = lm.vocabulary(documents)
    if opened:
        vocabulary.add(selected_phrases(lm, opened, prompt, _CHUNKS).vocabulary(lm))
    writers = {}
    for name in system:
        mode = None if name in (SystemName.plain, SystemName.default) else name.value
        config = decoding.replaced({"mode": mode})
        config = calibrated(config, opened, lm) if opened else config
        writers[name] = config.options()
    _show([_written(lm, prompt, writers, vocabulary)], html, as_json)


def _written(
    lm: "PhraseModel",
    prompt: str,
    writers: dict[SystemName, dict[str, Any]],
    vocabulary: "DynamicVocabulary",
) -> "CaseStudy":
    from univerb.decoding.loop import generate
    from univerb.lab.judging.case_study import CaseStudy, SystemOutput

    systems = []
    with progress_bars() as tell:
        for number, (name, options) in enumerate(writers.items(), 1):
            phrases = None if name is SystemName.plain else vocabulary
            pieces = generate(lm, prompt, phrases, **options).pieces
            systems.append(SystemOutput(name.value, pieces))
            tell("texts", number, len(writers))
    return CaseStudy(prompt, tuple(systems))


def _finished(files: list[Path]) -> "list[CaseStudy]":
    from univerb.lab.judging.case_study import CaseStudy, SystemOutput
    from univerb.lab.judging.system_texts import read_texts, system_names

    names, texts = system_names(files), read_texts(files)
    if len(files) < 2 or not texts:
        raise OptionError(f"{str(files[0])!r} has nothing to compare. Give --texts twice or more.")
    # JSON may hold halves of characters, which no page and no terminal can.
    whole = json.dumps(texts, ensure_ascii=False).encode(errors="replace")
    return [
        CaseStudy(prompt, tuple(map(SystemOutput.from_dict, names, written)))
        for prompt, written in json.loads(whole)
    ]


def _show(studies: "list[CaseStudy]", html: Path | None, as_json: bool) -> None:
    if html:
        from univerb.lab.disk_errors import writing
        from univerb.lab.judging.case_study_html import case_study_html

        with writing(html):
            html.write_text(case_study_html(studies), encoding="utf-8")
    if as_json:
        print_json({"cases": [study.to_dict() for study in studies]})
        return
    from univerb.lab.judging.case_study import terminal_view

    for study in studies:
        console.print(terminal_view(study, pieces_text))
