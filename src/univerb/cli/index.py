"""`univerb index`: documents to a corpus on disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from univerb.cli.console import console, errors, escape, print_json, show_warnings
from univerb.cli.flags import with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags, parse_sizes
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.corpus.build import OnProgress
    from univerb.corpus.estimate import Estimate
    from univerb.corpus.manifest import CorpusSettings, Manifest
    from univerb.phrase import Document

CORPUS, WORK = "Corpus", "Work"


@with_flags
def index(
    context: typer.Context,
    model: TorchFlags,
    docs: Annotated[
        list[str] | None, typer.Argument(help="Documents, folders, or - for stdin.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The corpus.")] = Path("corpus.uv"),
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Take this document away. Repeatable.", rich_help_panel=CORPUS),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="bm25, dense:FOLDER, static:FOLDER, or hybrid:NAME+NAME.", rich_help_panel=CORPUS
        ),
    ] = "bm25",
    splitter: Annotated[
        str, typer.Option(help="rules, pysbd, spacy or clauses.", rich_help_panel=CORPUS)
    ] = "rules",
    max_words: Annotated[int, typer.Option(help="Per chunk.", rich_help_panel=CORPUS)] = 128,
    overlap: Annotated[
        int, typer.Option(help="Sentences that chunks share.", rich_help_panel=CORPUS)
    ] = 0,
    sizes: Annotated[
        str, typer.Option(help="Shortest and longest phrase, in tokens.", rich_help_panel=CORPUS)
    ] = "2-8",
    min_count: Annotated[
        int, typer.Option(help="How often a phrase must occur.", rich_help_panel=CORPUS)
    ] = 2,
    max_phrases: Annotated[
        int, typer.Option(help="Store at most so many.", rich_help_panel=CORPUS)
    ] = 2_000_000,
    vectors: Annotated[
        bool, typer.Option(help="Encode the phrases.", rich_help_panel=CORPUS)
    ] = True,
    vector_dtype: Annotated[
        str, typer.Option(help="float16 or float32.", rich_help_panel=CORPUS)
    ] = "float16",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Documents may take the place of others with their names."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate size and time, build nothing.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.", rich_help_panel=WORK)] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Work on Ray.", rich_help_panel=WORK)] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="A running Ray cluster.", rich_help_panel=WORK)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a corpus once: retrieval index, phrases and their vectors. Adds to an existing one."""
    from univerb.documents.read import read_documents
    from univerb.parallel import make_workers

    show_warnings()
    if not docs and not remove:
        raise OptionError("give documents to add, or --remove with the name of one to take away.")
    if output.exists() and not output.is_dir():
        raise OptionError(f"{str(output)!r} is a file; a corpus is a folder. Name another.")
    is_new = not (output / "manifest.json").is_file()
    if remove and is_new:
        raise OptionError(f"{str(output)!r} is no corpus yet, so nothing can be removed from it.")
    given = {
        "method": method,
        "splitter": splitter,
        "max_words": max_words,
        "overlap": overlap,
        "sizes": parse_sizes(sizes),
        "min_count": min_count,
        "max_phrases": max_phrases,
        "vectors": vectors,
        "dtype": vector_dtype,
    }
    typed = {name: value for name, value in given.items() if _is_typed(context, name)}
    settings = make_settings(given) if is_new else _own_settings(output, typed)
    documents = read_documents(*docs) if docs else []
    if not is_new and not replace:
        _check_names(output, documents)
    pool = make_workers(workers, ray or ray_address is not None, ray_address)
    lm = load_model(**dict(model))
    from univerb.corpus.build import CorpusBuilder

    if dry_run:
        from univerb.corpus.estimate import estimate

        _show_estimate(estimate(documents, lm, settings), as_json)
        return
    with told_progress() as tell:
        builder = CorpusBuilder(output, lm.tokenizer, settings, lm=lm, workers=pool, progress=tell)
        manifest = builder.remove(remove) if remove else None
        manifest = builder.add(documents) if documents else manifest
    assert manifest is not None
    _show(output, manifest, as_json)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source("vector_dtype" if name == "dtype" else name)
    return source is not None and source.name == "COMMANDLINE"


def _check_names(folder: Path, documents: "list[Document]") -> None:
    """Refuse documents that would take the place of others unasked."""
    from univerb.corpus import open_corpus
    from univerb.corpus.shards import digest

    known = {one["name"]: one["digest"] for one in open_corpus(folder).listed()}
    other = [d.name for d in documents if known.get(d.name, digest(d.text)) != digest(d.text)]
    if other:
        raise OptionError(
            f"{len(other)} documents have names that the corpus has for other texts, such as "
            f"{other[0]!r}. Give --replace if they are newer versions; if they are other "
            "documents, index their parent folder, so that names tell them apart."
        )


def _own_settings(folder: Path, typed: dict[str, object]) -> "CorpusSettings":
    """Return the settings of an existing corpus; ones that were typed must not differ."""
    from univerb.corpus import open_corpus

    own = open_corpus(folder).manifest.settings
    asked = make_settings(own.model_dump() | typed)
    if asked != own:
        changed = [name for name in typed if getattr(asked, name) != getattr(own, name)]
        raise OptionError(
            f"{str(folder)!r} was built with {changed[0]} = {getattr(own, changed[0])!r}. Leave "
            "that out to add to it, or build into another folder."
        )
    return own


def make_settings(given: dict[str, object]) -> "CorpusSettings":
    """Turn options into settings, with one clear error for a value that is out of range."""
    from pydantic import ValidationError

    from univerb.corpus.manifest import CorpusSettings
    from univerb.documents.sentences import splitter_named
    from univerb.phrases.ngrams import checked_sizes
    from univerb.retrieval.methods import method_named

    try:
        settings = CorpusSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"]))
        raise OptionError(f"{name} is {first['input']!r}: {first['msg']}.") from None
    splitter_named(settings.splitter)
    low, high = checked_sizes(settings.sizes)
    if low < 2:
        raise OptionError(f"--sizes begin at {low}; a stored phrase has at least 2 tokens.")
    # The name with its defaults and its path spelled out, so that it means the same elsewhere.
    return settings.model_copy(
        update={"method": method_named(settings.method).name, "sizes": (low, high)}
    )


@contextmanager
def told_progress() -> "Iterator[OnProgress]":
    """Show a bar for each stage of a build, where somebody watches."""
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=errors, disable=not errors.is_terminal
    ) as bars:
        stages: dict[str, object] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield tell


def size_text(size: float) -> str:
    """Say how large something is, as people do."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def _show(folder: Path, manifest: "Manifest", as_json: bool) -> None:
    size = sum(sum(entry.sizes.values()) for entry in manifest.entries())
    if as_json:
        names = {"documents", "chunks", "characters", "tokens", "phrase_count"}
        print_json({"corpus": str(folder), "bytes": size, **manifest.model_dump(include=names)})
        return
    console.print(
        f"[bold]{escape(str(folder))}[/]: {manifest.documents:,} documents, "
        f"{manifest.chunks:,} chunks, {manifest.phrase_count:,} phrases, {size_text(size)}"
    )


def _show_estimate(cost: "Estimate", as_json: bool) -> None:
    import dataclasses

    if as_json:
        print_json(dataclasses.asdict(cost))
        return
    capped = " (the most that the settings allow)" if cost.is_capped else ""
    console.print(
        f"{cost.documents:,} documents, {cost.characters:,} characters, about {cost.tokens:,} "
        f"tokens\nabout {cost.phrases:,} phrases{capped}, {size_text(cost.bytes)} on disk\n"
        f"about {cost.text_seconds:.0f} s for the text and {cost.encode_seconds:.0f} s for "
        "the vectors, on one core"
    )
