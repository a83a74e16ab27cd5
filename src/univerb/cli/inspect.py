"""`univerb inspect`: what is in a corpus, and whether every byte of it is right."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from univerb.cli.console import console, print_json
from univerb.cli.options import AsJson
from univerb.cli.progress import format_size
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.corpus import Corpus


def inspect(
    corpus: Annotated[Path, typer.Argument(help="The corpus.")],
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte.")] = False,
    limit: Annotated[int, typer.Option(help="Number of documents to list; 0 for all.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Explain what a corpus holds."""
    from univerb.applications.corpus_profile import read_profile
    from univerb.corpus import open_corpus

    if limit < 0:
        raise OptionError(f"limit is {limit}; give 0 for all, or the number of documents to list.")
    began = time.perf_counter()
    opened = open_corpus(corpus)
    facts = _facts(opened) | {"open_seconds": time.perf_counter() - began}
    facts |= _leftovers(opened, verify)
    if verify:
        read_profile(opened)
        facts["verified_bytes"] = opened.verify()
    documents = opened.listed()
    if as_json:
        print_json(facts | {"documents_listed": documents[: limit or None]})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(_format(name, value)))
    console.print(table)
    listing = Table("document", "characters", box=None, header_style="dim", pad_edge=False)
    for document in documents[: limit or None]:
        listing.add_row(Text(document["name"]), f"{document['characters']:,}")
    console.print(listing)
    if limit and len(documents) > limit:
        console.print(f"[dim]and {len(documents) - limit:,} more[/]")


def _facts(corpus: "Corpus") -> dict[str, Any]:
    from collections import Counter

    import numpy

    manifest = corpus.manifest
    parts = {
        "text and tokens": manifest.shards,
        "retrieval index": (manifest.index,),
        "phrases": (manifest.phrases,),
        "vectors": manifest.vectors,
    }
    sizes = {n: sum(sum(e.sizes.values()) for e in entries if e) for n, entries in parts.items()}
    stored = corpus.phrases
    lengths = Counter(numpy.diff(stored.ends, prepend=0)[stored.numbers].tolist())
    names = {"documents", "chunks", "characters", "tokens", "model", "encoder", "tokenizer"}
    return {
        **manifest.model_dump(include=names),
        "phrases": manifest.phrase_count,
        "phrases_by_length": dict(sorted(lengths.items())),
        "vectors": len(stored) if corpus.has_vectors else 0,
        "settings": manifest.settings.model_dump(),
        "created_by": manifest.created_by,
        "format": manifest.format,
        "bytes": sizes | {"all": sum(sizes.values())},
    }


def _leftovers(corpus: "Corpus", verify: bool) -> dict[str, Any]:
    """Say what lies in the folder beside the present version, if anything does."""
    from univerb.applications.corpus_profile import PROFILE
    from univerb.corpus.versions import find_leftovers, is_being_written

    found = find_leftovers(corpus.folder, corpus.manifest)
    facts: dict[str, Any] = {}
    if found.earlier:
        facts["earlier_versions"] = "still being read; deleted by the first command after that"
    if is_being_written(corpus.folder):
        facts["change"] = "under way: this is the version before it"
    elif found.unfinished:
        facts["change"] = (
            "interrupted: run the same `univerb index` command again to continue; any other change "
            "drops what it left"
        )
    if verify:
        names = [path.relative_to(corpus.folder).as_posix() for path in found.unknown]
        facts["unknown_files"] = [name for name in names if name != PROFILE]
    return facts


def _format(name: str, value: Any) -> str:  # noqa: ANN401
    if name == "bytes":
        return ", ".join(f"{part} {format_size(size)}" for part, size in value.items())
    if name == "verified_bytes":
        return f"{format_size(value)}: all as they were written"
    if name == "open_seconds":
        return f"{1000 * value:.1f} ms"
    if name == "unknown_files":
        return ", ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"
