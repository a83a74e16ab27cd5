"""`univerb phrases`: the phrases of documents, as a vocabulary would have them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.loading import locate_prepared
from univerb.cli.options import PHRASES, AsJson, SourceOptions
from univerb.errors import ModelError, OptionError, first_line
from univerb.locations import DEFAULT_MODEL, is_gguf, without_hub
from univerb.tokenizer import Tokenizer


@with_flags
def phrases(
    docs: Annotated[list[str], typer.Argument(help="Documents, folders, or - for stdin.")],
    source: Annotated[SourceOptions, Flags(PHRASES)],
    limit: Annotated[int, typer.Option(help="Number of phrases to show; 0 for all.")] = 20,
    model: Annotated[str, typer.Option(help="The model whose tokens count.")] = DEFAULT_MODEL,
    as_json: AsJson = False,
) -> None:
    """List the phrases of documents, the most useful first."""
    from univerb.documents.read import read_documents
    from univerb.phrases.collection import collect_phrases

    show_warnings()
    if limit < 0:
        raise OptionError(f"limit is {limit}; give 0 for all, or the number of phrases to show.")
    documents = read_documents(*docs)
    tokenizer = _tokenizer(model)
    find = source.phrase_source(documents)
    every = collect_phrases(documents, tokenizer, find, source.max_phrases)
    shown = every[: limit or None]
    if as_json:
        names = ("document", "start", "end")
        rows = [
            {
                "text": phrase.text,
                "ids": list(phrase.ids),
                "sources": [{n: getattr(span, n) for n in names} for span in phrase.sources],
            }
            for phrase in shown
        ]
        print_json({"schema_version": 1, "total": len(every), "phrases": rows})
        return
    table = Table("phrase", "tokens", "found", "first in", box=None, header_style="dim")
    for phrase in shown:
        first = phrase.sources[0]
        span = Text(f"{first.document}:{first.start}-{first.end}", style="dim")
        table.add_row(Text(repr(phrase.text)), str(len(phrase)), str(len(phrase.sources)), span)
    console.print(table)
    console.print(f"[dim]{len(every)} phrases in {len(documents)} documents[/]")


def _tokenizer(model: str) -> Tokenizer:
    """Read a model's tokenizer, without torch if it is on this machine."""
    from univerb.modeling.card import CARD, backbone_of

    folder = locate_prepared(model)
    if is_gguf(model):
        from univerb.engines.llamacpp.gguf_file import GgufFile
        from univerb.engines.llamacpp.gguf_tokenizer import GgufTokenizer

        return GgufTokenizer(GgufFile(Path(folder)))
    if (Path(folder) / CARD).is_file():
        # The folder of an encoder, which names its backbone.
        folder = locate_prepared(backbone_of(Path(folder)))
    path = Path(folder) / "tokenizer.json"
    try:
        if path.is_file():
            return Tokenizer.from_file(path)
        from transformers import AutoTokenizer

        hf = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=without_hub()
        )
        return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)
    except Exception as error:  # the Rust reader raises bare Exceptions
        raise ModelError(
            f"the tokenizer of {model!r} cannot be read: {first_line(error)}. Give a model folder "
            "with a tokenizer.json, or a Hub id."
        ) from error
