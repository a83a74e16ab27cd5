"""`univerb index`: documents to a corpus on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from univerb.cli.batch import WorkerOptions
from univerb.cli.console import console, escape, print_json, show_warnings
from univerb.cli.flags import Flags, with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags, parse_sizes
from univerb.cli.progress import format_size, progress_bars
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.corpus.estimate import Estimate
    from univerb.corpus.manifest import Manifest
    from univerb.phrase import Document

CORPUS = "Corpus"


@with_flags
def index(
    settings: Annotated[
        CorpusSettings, Flags(CORPUS, without=("sizes",), names={"dtype": "vector_dtype"})
    ],
    work: Annotated[WorkerOptions, Flags("Workers", only=("workers", "ray", "ray_address"))],
    model: TorchFlags,
    docs: Annotated[
        list[str] | None, typer.Argument(help="Documents, folders, or - for stdin.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The corpus.")] = Path("corpus.uv"),
    remove: Annotated[
        list[str] | None, typer.Option(help="Remove the document of this name. Repeatable.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let documents replace others of the same name.")
    ] = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Shortest and longest phrase, in tokens; 2-8 by default.", rich_help_panel=CORPUS
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate size and time, build nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a corpus once: retrieval index, phrases and their vectors. Adds to an existing one."""
    from univerb.documents.read import read_documents
    from univerb.parallel import make_workers

    show_warnings()
    if not docs and not remove:
        raise OptionError("give documents to add, or --remove with the name of one to remove.")
    if output.exists() and not output.is_dir():
        raise OptionError(f"{str(output)!r} is a file; a corpus is a folder. Name another.")
    typed = settings.model_dump(include=settings.model_fields_set)
    typed |= {"sizes": parse_sizes(sizes)} if sizes else {}
    documents = read_documents(*docs) if docs else []
    if (output / "manifest.json").is_file():
        settings = _existing_settings(output, typed)
        if not replace:
            _check_names(output, documents)
    elif remove:
        raise OptionError(f"{str(output)!r} is no corpus yet, so nothing can be removed from it.")
    else:
        settings = check_settings(CorpusSettings(**typed))
    workers = make_workers(work.workers, work.ray, work.ray_address)
    lm = load_model(**dict(model))
    from univerb.corpus.build import CorpusBuilder

    if dry_run:
        from univerb.corpus.estimate import estimate

        _show_estimate(estimate(documents, lm, settings), as_json)
        return
    with progress_bars() as show:
        builder = CorpusBuilder(
            output, lm.tokenizer, settings, lm=lm, workers=workers, progress=show
        )
        if remove:
            manifest = builder.remove(remove)
        if documents:
            manifest = builder.add(documents)
    _show(output, manifest, as_json)


def _check_names(folder: Path, documents: "list[Document]") -> None:
    """Refuse documents that would replace others unasked."""
    from univerb.corpus import open_corpus
    from univerb.corpus.shards import digest

    known = {listed["name"]: listed["digest"] for listed in open_corpus(folder).listed()}
    changed = [d.name for d in documents if known.get(d.name, digest(d.text)) != digest(d.text)]
    if changed:
        raise OptionError(
            f"{len(changed)} documents have names that the corpus has for other texts, such as "
            f"{changed[0]!r}. Give --replace if they are newer versions; if they are other "
            "documents, index their parent folder, so that their names differ."
        )


def _existing_settings(folder: Path, typed: dict[str, object]) -> CorpusSettings:
    """Return the settings of an existing corpus; typed ones must not differ."""
    from univerb.corpus import open_corpus

    existing = open_corpus(folder).manifest.settings
    requested = check_settings(CorpusSettings(**existing.model_dump() | typed))
    for name in typed:
        if getattr(requested, name) != getattr(existing, name):
            raise OptionError(
                f"{str(folder)!r} was built with {name} = {getattr(existing, name)!r}. Leave that "
                "out to add to it, or build into another folder."
            )
    return existing


def check_settings(settings: CorpusSettings) -> CorpusSettings:
    """Check the names in settings, and spell out the retrieval method's defaults and paths."""
    from univerb.documents.sentences import splitter_named
    from univerb.phrases.ngrams import checked_sizes
    from univerb.retrieval.methods import method_named

    splitter_named(settings.splitter)
    low, _ = checked_sizes(settings.sizes)
    if low < 2:
        raise OptionError(f"sizes begin at {low}; a stored phrase has at least 2 tokens.")
    return settings.model_copy(update={"method": method_named(settings.method).name})


def _show(folder: Path, manifest: "Manifest", as_json: bool) -> None:
    size = sum(sum(entry.sizes.values()) for entry in manifest.entries())
    if as_json:
        names = {"documents", "chunks", "characters", "tokens", "phrase_count"}
        print_json({"corpus": str(folder), "bytes": size, **manifest.model_dump(include=names)})
        return
    console.print(
        f"[bold]{escape(str(folder))}[/]: {manifest.documents:,} documents, "
        f"{manifest.chunks:,} chunks, {manifest.phrase_count:,} phrases, {format_size(size)}"
    )


def _show_estimate(cost: "Estimate", as_json: bool) -> None:
    import dataclasses

    if as_json:
        print_json(dataclasses.asdict(cost))
        return
    capped = " (the maximum of the settings)" if cost.is_capped else ""
    console.print(
        f"{cost.documents:,} documents, {cost.characters:,} characters, about {cost.tokens:,} "
        f"tokens\nabout {cost.phrases:,} phrases{capped}, {format_size(cost.bytes)} on disk\n"
        f"about {cost.text_seconds:.0f} s for the text and {cost.encode_seconds:.0f} s for "
        "the vectors, on one core"
    )
