"""`univerb index`: documents to a corpus on disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from univerb.cli.batch import WorkerOptions
from univerb.cli.console import console, errors, escape, print_json, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags, parse_sizes
from univerb.cli.progress import format_size, progress_bars
from univerb.corpus import Corpus, open_corpus
from univerb.corpus.manifest import MANIFEST, CorpusSettings
from univerb.corpus.shards import digest
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.corpus.manifest import Manifest
    from univerb.phrase import Document


class ChangeOptions(Options):
    """How to change a corpus that exists."""

    remove: list[str] = []
    """Remove the document of this name. Repeatable."""
    replace: bool = False
    """Let documents replace others of the same name."""


@with_flags
def index(
    change: Annotated[ChangeOptions, Flags("Changes")],
    settings: Annotated[
        CorpusSettings, Flags("Corpus", without=("sizes",), names={"dtype": "vector_dtype"})
    ],
    work: Annotated[WorkerOptions, Flags("Workers", only=("workers", "ray_address"))],
    model: TorchFlags,
    docs: Annotated[
        list[str] | None, typer.Argument(help="Documents, folders, or - for stdin.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The corpus.")] = Path("corpus.uv"),
    sizes: Annotated[
        str | None,
        typer.Option(help="Shortest and longest phrase, in tokens; 2-8 by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a corpus once: retrieval index, phrases and their vectors. Adds to an existing one."""
    from univerb.documents.read import read_documents
    from univerb.parallel import make_workers

    show_warnings()
    if not docs and not change.remove:
        raise OptionError("give documents to add, or --remove with the name of one to remove.")
    if output.exists() and not output.is_dir():
        raise OptionError(f"{str(output)!r} is a file; a corpus is a folder. Name another.")
    corpus = open_corpus(output) if (output / MANIFEST).is_file() else None
    if change.remove and corpus is None:
        raise OptionError(f"{str(output)!r} is no corpus yet, so nothing can be removed from it.")
    settings = _settings(corpus, settings, sizes)
    documents = read_documents(*docs) if docs else []
    if corpus is not None:
        if not change.replace:
            _check_names(corpus, documents)
        corpus.close()
    workers = make_workers(work.workers, work.ray_address)
    lm = load_model(**dict(model))
    with _interruptible() as tell:
        from univerb.corpus.build import CorpusBuilder

        builder = CorpusBuilder(
            output, lm.tokenizer, settings, lm=lm, workers=workers, progress=tell
        )
        if change.remove:
            manifest = builder.remove(change.remove)
        if documents:
            manifest = builder.add(documents)
    _show(output, manifest, as_json)


@contextmanager
def _interruptible() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what shows the progress; an interrupt says how far it got, and how to go on."""
    done: dict[str, str] = {}
    try:
        with progress_bars() as show:

            def tell(stage: str, number: int, total: int) -> None:
                done[stage] = f"{stage} {number:,} of {total:,}"
                show(stage, number, total)

            yield tell
    except KeyboardInterrupt:
        kept = ", ".join(done.values()) or "nothing yet"
        errors.print(
            f"interrupted: what is finished is kept ({kept}). Run the same command again to "
            "continue."
        )
        raise typer.Exit(130) from None


def _settings(corpus: Corpus | None, typed: CorpusSettings, sizes: str | None) -> CorpusSettings:
    """Return the settings of an existing corpus, which typed ones must equal, or of a new one."""
    from univerb.documents.sentences import splitter_named
    from univerb.phrases.ngrams import checked_sizes
    from univerb.retrieval.methods import method_named

    existing = corpus.manifest.settings if corpus else typed
    changes = typed.model_dump(include=typed.model_fields_set)
    changes |= {"sizes": checked_sizes(parse_sizes(sizes))} if sizes else {}
    # The method's defaults and paths are spelled out, so that they mean the same elsewhere.
    changes |= {"method": method_named(typed.method).name} if "method" in changes else {}
    settings = existing.model_copy(update=changes)
    splitter_named(settings.splitter)
    if settings.sizes[0] < 2:
        raise OptionError(f"sizes are {sizes}; a stored phrase has at least 2 tokens.")
    for name in changes:
        if corpus and changes[name] != getattr(existing, name):
            raise OptionError(
                f"{str(corpus.folder)!r} was built with {name} = {getattr(existing, name)!r}. "
                "Leave that out to add to it, or build into another folder."
            )
    return settings


def _check_names(corpus: Corpus, documents: "list[Document]") -> None:
    """Refuse documents that would replace others unasked."""
    known = {listed["name"]: listed["digest"] for listed in corpus.listed()}
    changed = [d.name for d in documents if known.get(d.name, digest(d.text)) != digest(d.text)]
    if changed:
        raise OptionError(
            f"{len(changed)} documents have names that the corpus has for other texts, such as "
            f"{changed[0]!r}. Give --replace if they are newer versions; if they are other "
            "documents, index their parent folder, so that their names differ."
        )


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
