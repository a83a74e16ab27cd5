"""The data that measurements read: the folder that holds it, and the corpora built from it.

Nothing here imports torch before it is needed: worker processes of `univerb lab speed` must stay
as small as the system that they measure.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from univerb.documents.read import read_documents
from univerb.documents.wikitext import article_text, wikitext_articles
from univerb.errors import DocumentError
from univerb.lab.protocols.passages import is_held_out, law_lines
from univerb.locations import cache_directory
from univerb.phrase import Document

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.modeling.dynamic import DynamicLM

DATA = "UNIVERB_DATA"
MAX_PHRASES = 100_000
"""Of a corpus that is built here: minutes on a small machine."""
TRAINING_TEXT = "wikitext103/wiki.train.tokens"
"""What the paper retrieves from."""
CORPORA = {
    "wiki": ("wiki/train-00.jsonl.gz",),
    "law": ("law/jrc-acquis.en", "law/eurlex.jsonl.gz"),
}
"""The files that each corpus is built from, below the data folder, without `TRAINING_TEXT`."""
_SPLITTERS = {"wiki": "rules", "law": "clauses"}


def find_data(folder: Path | None = None) -> Path | None:
    """Return the folder with the data.

    Args:
        folder: By default `UNIVERB_DATA`, or ../shared/data if it exists.

    Returns:
        The folder, or None.

    Raises:
        DocumentError: If a folder was named that does not exist.
    """
    variable = os.environ.get(DATA)
    named = folder or (Path(variable) if variable else None)
    if named and not named.is_dir():
        raise DocumentError(
            f"there is no folder {str(named)!r}. Name the folder with the data (--data or {DATA})."
        )
    sibling = Path("..") / "shared" / "data"
    return named or (sibling if sibling.is_dir() else None)


def open_or_build(
    lm: "DynamicLM",
    name: str,
    data: Path | None,
    folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> "Corpus":
    """Open a corpus, or build it in the user's cache once.

    `wiki` is built of `TRAINING_TEXT` if the data has it.

    Args:
        lm: Its encoder makes the vectors.
        name: One of `CORPORA`.
        data: The data folder that it is built from.
        folder: An existing corpus to open instead.
        progress: Called with stage, done and total while building.

    Returns:
        The corpus.

    Raises:
        DocumentError: If it must be built, but its data is missing.
        CorpusError: If another model made it.
    """
    from univerb.corpus import open_corpus

    is_whole = name == "wiki" and data is not None and (data / TRAINING_TEXT).is_file()
    sources = (TRAINING_TEXT,) if is_whole else CORPORA[name]
    made_of = hashlib.sha256(f"{sources} {_SPLITTERS[name]}".encode()).hexdigest()[:6]
    file = f"{name}-{made_of}-{lm.fingerprint()[:12]}.uv"
    path = folder or cache_directory() / "lab" / file
    if folder is None and not (path / "manifest.json").is_file():
        _build(path, lm, [_source(data, source) for source in sources], name, progress)
    corpus = open_corpus(path)
    corpus.check_tokenizer(lm.tokenizer)
    if corpus.has_vectors:
        corpus.check_encoder(lm.fingerprint())
    return corpus


def describe_corpus(corpus: "Corpus", is_own: bool) -> str:
    """Describe a corpus without naming its folder; `is_own` if `open_or_build` built it."""
    manifest = corpus.manifest
    vectors = f"stored as {manifest.settings.dtype}" if corpus.has_vectors else "encoded at request"
    built = f", built by this command (at most {MAX_PHRASES:,} phrases)" if is_own else ""
    first = next((document["name"] for shard in corpus.shards for document in shard.listed), "")
    origin = first.partition("#")[0]
    stands_in = any(origin == Path(source).name for source in CORPORA["wiki"])
    return (
        f"{manifest.documents:,} documents, {manifest.chunks:,} chunks, "
        f"{manifest.phrase_count:,} phrases, vectors {vectors}{built}"
        + f"; {origin} stands in for WikiText-103's training text"
        * stands_in
    )


def _source(data: Path | None, source: str) -> Path:
    if data is None or not (data / source).is_file():
        raise DocumentError(
            f"the corpus is built from {source!r}, which is not in the folder with the data: "
            "`univerb lab data` says where to get it. Or give a corpus that `univerb index` built, "
            "with --wiki-corpus or --law-corpus."
        )
    return data / source


def _build(
    path: Path,
    lm: "DynamicLM",
    sources: list[Path],
    name: str,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    from univerb.corpus.build import build_corpus
    from univerb.corpus.manifest import CorpusSettings
    from univerb.phrases.guards import PAPER_GUARDS

    documents = (document for source in sources for document in _documents(source))
    settings = CorpusSettings(
        max_phrases=MAX_PHRASES,
        splitter=_SPLITTERS[name],
        content=PAPER_GUARDS.content,
        whole_numbers=PAPER_GUARDS.whole_numbers,
        # As many n-grams as there are room for, as exact as can be: the method is what is measured.
        min_count=2,
        dtype="float16",
    )
    build_corpus(path, documents, lm, settings, progress=progress)


def _articles(path: Path) -> Iterator[Document]:
    """Yield the articles of a WikiText file in CoG's form, read line by line: it may be large."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, (title, paragraphs) in enumerate(wikitext_articles(lines), 1):
            if paragraphs:
                name = f"{path.name}#{number} {title}"
                yield Document(article_text(paragraphs, "cog"), name)


def _documents(path: Path) -> Iterable[Document]:
    if path.suffix == ".tokens":
        return _articles(path)
    if path.suffix == ".en":
        # Its lines are sentences of different acts, so each is a document.
        return [Document(text, f"{path.name}#{number}") for number, text in law_lines(path)]
    return [document for document in read_documents(path) if not is_held_out(document.name)]
