"""`univerb phrases`: what would be in the vocabulary of some documents."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.loading import prepare_default
from univerb.cli.options import PHRASES, SourceOptions
from univerb.errors import ModelError, OptionError
from univerb.locations import DEFAULT_MODEL, is_converted, locate
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer


@with_flags
def phrases(
    docs: Annotated[list[str], typer.Argument(help="Documents, folders, or - for stdin.")],
    source: Annotated[SourceOptions, Flags(PHRASES)],
    limit: Annotated[int, typer.Option(help="Show so many; 0 shows all.")] = 20,
    model: Annotated[str, typer.Option(help="Whose tokens count.")] = DEFAULT_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the phrases of documents, the most useful first."""
    from univerb.documents.read import read_documents
    from univerb.phrases.collection import collect_phrases

    show_warnings()
    if limit < 0:
        raise OptionError(f"limit is {limit}; give 0 for all, or how many to show.")
    documents = read_documents(*docs)
    tokenizer = _tokenizer(model)
    find = source.phrase_source(documents)
    found = collect_phrases(documents, tokenizer, find, source.max_phrases)
    shown = found[: limit or None]
    if as_json:
        print_json({"schema_version": 1, "total": len(found), "phrases": [_row(p) for p in shown]})
        return
    table = Table("phrase", "tokens", "found", "first in", box=None, header_style="dim")
    for phrase in shown:
        first = phrase.sources[0]
        place = Text(f"{first.document}:{first.start}-{first.end}", style="dim")
        table.add_row(Text(repr(phrase.text)), str(len(phrase)), str(len(phrase.sources)), place)
    console.print(table)
    console.print(f"[dim]{len(found)} phrases in {len(documents)} documents[/]")


def _row(phrase: Phrase) -> dict[str, object]:
    places = [
        {"document": span.document, "start": span.start, "end": span.end} for span in phrase.sources
    ]
    return {"text": phrase.text, "ids": list(phrase.ids), "sources": places}


def _tokenizer(model: str) -> Tokenizer:
    """Read a model's tokenizer, without torch where it lies on this machine."""
    card = Path(model) / "univerb.json"
    if card.is_file():
        # An encoder's folder: its backbone's tokens count.
        model = str(json.loads(card.read_text(encoding="utf-8"))["backbone"]["name"])
    where = locate(model)
    if model == DEFAULT_MODEL and not is_converted():
        where = prepare_default()
    path = Path(where) / "tokenizer.json"
    try:
        if path.is_file():
            return Tokenizer.from_file(path)
        from transformers import AutoTokenizer

        hf = AutoTokenizer.from_pretrained(str(where), trust_remote_code=False)
        return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)
    except Exception as error:  # the Rust reader raises bare Exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise ModelError(
            f"the tokenizer of {model!r} cannot be read: {reason}. Give a model folder with a "
            "tokenizer.json, or a Hub id."
        ) from error
