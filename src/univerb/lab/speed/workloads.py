"""What `univerb lab speed` has systems write: prompts, and where their phrases come from.

Nothing here imports torch before it is needed: worker processes read this module, and some of them
must stay as small as the system that they measure.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from univerb.documents.chunks import Chunk
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.lab.protocols.passages import PREFIX, detokenised, is_kept_out, law_lines
from univerb.locations import cache_directory
from univerb.phrase import Document

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.modeling.dynamic import DynamicLM

DATA = "UNIVERB_DATA"
PASSAGES = 3
MAX_PHRASES = 100_000
"""Of a corpus that is built here: minutes on a small machine."""

_WIKI = "wiki/train-00.jsonl.gz"
_LAW = ("law/jrc-acquis.en", "law/eurlex.jsonl.gz")
_WIKITEXT, _LAWMT, _ASQA = (
    "wikitext103/wiki.test.tokens",
    "law/lawmt.test.en",
    "asqa/asqa_200_with_docs.json.gz",
)
_TITLE = re.compile(r"^ = ([^=].*) = $")
_WARM_UP = "It was the first of its kind, and it was soon followed by others in the same country."
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, and what phrases are made of: the chunks that a corpus finds, or passages."""

    workload: str
    name: str
    ids: tuple[int, ...]
    query: str = ""
    """What the corpus is asked."""
    corpus: str = ""
    """The folder of the corpus, if there is one."""
    passages: tuple[Chunk, ...] = ()

    @property
    def key(self) -> str:
        """What the case is kept under: its name, and a hash of all that it has."""
        content = repr((self.ids, self.query, Path(self.corpus).name, self.passages))
        return f"{self.workload} {self.name} {hashlib.sha256(content.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of task."""

    about: str
    file: str
    """Where its prompts lie, below the data."""
    sources: tuple[str, ...] = ()
    """What its corpus is built of, below the data; none if phrases are those of the prompt."""


WORKLOADS = {
    "wikitext": Workload(
        f"the first {PREFIX} tokens of WikiText-103 test articles, as natural text; phrases of a "
        "Wikipedia corpus",
        _WIKITEXT,
        (_WIKI,),
    ),
    "law": Workload(
        f"the first {PREFIX} tokens of LawMT test lines; phrases of a corpus of EU law",
        _LAWMT,
        _LAW,
    ),
    "answers": Workload(
        f"ASQA questions with {PASSAGES} documents in the prompt; phrases are their n-grams", _ASQA
    ),
    "demo": Workload(
        f"the first {PREFIX} tokens of the demo documents; phrases are the document's own n-grams",
        "",
    ),
}


def find_data(given: Path | None = None) -> Path | None:
    """Return the folder with the benchmark's data.

    Args:
        given: Where it should be; by default `UNIVERB_DATA`, or ../shared/data if it is there.

    Returns:
        The folder, or None.

    Raises:
        DocumentError: If it was named, and is no folder.
    """
    named = given or (Path(own) if (own := os.environ.get(DATA)) else None)
    if named and not named.is_dir():
        raise DocumentError(
            f"there is no folder {str(named)!r}. Name the folder with the data (--data or {DATA}), "
            "or run `--workload demo`, which needs none."
        )
    beside = Path("..") / "shared" / "data"
    return named or (beside if beside.is_dir() else None)


def choose_workloads(names: Sequence[str], data: Path | None) -> list[str]:
    """Return the workloads to run.

    Args:
        names: Those asked for; none means all that the data allows, or else the demo.
        data: Where the data lies, if it does.

    Returns:
        Their names.

    Raises:
        OptionError: If one is unknown.
        DocumentError: If one lacks its data.
    """
    for name in names:
        if name not in WORKLOADS:
            raise OptionError(f"there is no workload {name!r}. {did_you_mean(name, WORKLOADS)}")
        if missing := _missing(name, data):
            raise DocumentError(
                f"workload {name!r} needs {missing!r} in the folder with the data. Name that "
                f"folder with --data or {DATA}, or run `--workload demo`, which needs none."
            )
    if names:
        return list(dict.fromkeys(names))
    there = [name for name in WORKLOADS if name != "demo" and not _missing(name, data)]
    return there or ["demo"]


def _missing(name: str, data: Path | None) -> str:
    file = WORKLOADS[name].file
    return file if file and (data is None or not (data / file).is_file()) else ""


def make_cases(
    lm: "DynamicLM",
    name: str,
    data: Path | None,
    corpus: "Corpus | None",
    limit: int = 8,
    max_tokens: int = 128,
) -> list[Case]:
    """Make the prompts of a workload.

    Args:
        lm: Its tokenizer makes the prompts.
        name: The workload.
        data: Where the data lies.
        corpus: Where phrases are retrieved, for a workload that has a corpus.
        limit: At most so many, spread over the whole file.
        max_tokens: What the context must have room for beside the prompt.

    Returns:
        The cases.

    Raises:
        DocumentError: If there is none.
    """
    if name == "demo":
        cases = _demo_cases(lm, limit)
    elif name == "answers":
        assert data is not None
        asked = _spread(list(_questions(data / _ASQA)), limit)
        cases = [_answer_case(lm, question, docs, max_tokens) for question, docs in asked]
    else:
        assert data is not None
        path = data / WORKLOADS[name].file
        texts = wikitext_articles(path) if name == "wikitext" else law_lines(path)
        cases = _prefix_cases(lm, name, texts, corpus, limit)
    if not cases:
        raise DocumentError(f"workload {name!r} has no text of {PREFIX} tokens. Give other data.")
    return cases


def warm_up_cases(lm: "DynamicLM", cases: Sequence[Case]) -> list[Case]:
    """Return one case for each place that phrases come from, none of which is measured."""
    ids = tuple(lm.tokenizer.encode_prompt(_WARM_UP))
    passages = (Chunk("warm-up", 0, _WARM_UP),)
    folders = dict.fromkeys(case.corpus for case in cases)
    return [
        Case("warm-up", folder, ids, _WARM_UP, folder, () if folder else passages)
        for folder in folders
    ]


def open_or_build(
    lm: "DynamicLM",
    name: str,
    data: Path | None,
    folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> "Corpus | None":
    """Open the corpus of a workload, or build it in the user's cache once.

    Args:
        lm: Its encoder makes the vectors.
        name: The workload.
        data: What to build it of.
        folder: One that exists already.
        progress: Is told how far the build is.

    Returns:
        The corpus; None if the workload needs none.

    Raises:
        DocumentError: If it must be built, but there is no data for it.
        CorpusError: If another model made it.
    """
    from univerb.corpus import open_corpus

    sources = WORKLOADS[name].sources
    if not sources:
        return None
    place = folder or cache_directory() / "bench" / f"{name}-{lm.fingerprint()[:12]}.uv"
    if folder is None and not (place / "manifest.json").is_file():
        _build(place, lm, [_source(data, source) for source in sources], progress)
    corpus = open_corpus(place)
    corpus.check_tokenizer(lm.tokenizer)
    if corpus.has_vectors:
        corpus.check_encoder(lm.fingerprint())
    return corpus


def describe_corpus(corpus: "Corpus", is_own: bool) -> str:
    """Say what a corpus is made of, without where it lies."""
    own = corpus.manifest
    vectors = f"stored as {own.settings.dtype}" if corpus.has_vectors else "encoded at request"
    built = f", a small one that bench built (at most {MAX_PHRASES:,} phrases)" if is_own else ""
    return (
        f"{own.documents:,} documents, {own.chunks:,} chunks, {own.phrase_count:,} phrases, "
        f"vectors {vectors}{built}"
    )


def _source(data: Path | None, source: str) -> Path:
    if data is None or not (data / source).is_file():
        raise DocumentError(
            f"the corpus is built of {source!r}, which is not in the folder with the data. Give a "
            "corpus that `univerb index` built, with --wiki-corpus or --law-corpus."
        )
    return data / source


def _build(
    place: Path,
    lm: "DynamicLM",
    paths: Sequence[Path],
    progress: Callable[[str, int, int], None] | None,
) -> None:
    from univerb.corpus.build import build_corpus
    from univerb.corpus.manifest import CorpusSettings

    documents = [document for path in paths for document in _documents(path)]
    settings = CorpusSettings(max_phrases=MAX_PHRASES)
    build_corpus(place, documents, lm, settings, progress=progress)


def _documents(path: Path) -> list[Document]:
    if path.suffix == ".en":
        # Its lines are sentences of different acts, so each is a document.
        return [Document(text, f"{path.name}#{number}") for number, text in law_lines(path)]
    return [document for document in read_documents(path) if not is_kept_out(document.name)]


def wikitext_articles(path: Path) -> Iterator[tuple[str, str]]:
    """Read WikiText's token files.

    Args:
        path: Such as `wiki.test.tokens`.

    Yields:
        The title and the first paragraph of each article, as natural text. Articles with a word
        that WikiText removed there are passed over.
    """
    title = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := _TITLE.match(line):
            title = detokenised(found[1])
        elif title and line.strip() and not line.startswith(" ="):
            if "<unk>" not in line:
                yield title, detokenised(line)
            title = ""


def _prefix_cases(
    lm: "DynamicLM",
    name: str,
    texts: Iterator[tuple[str, str]],
    corpus: "Corpus | None",
    limit: int,
) -> list[Case]:
    assert corpus is not None
    encoded = ((title, lm.tokenizer.encode_prompt(text)) for title, text in texts)
    long = [(title, tuple(ids[:PREFIX])) for title, ids in encoded if len(ids) >= PREFIX]
    folder = str(corpus.folder.resolve())
    return [
        Case(name, title, ids, query=lm.tokenizer.decode(ids), corpus=folder)
        for title, ids in _spread(long, limit)
    ]


def _demo_cases(lm: "DynamicLM", limit: int) -> list[Case]:
    with as_file(files("univerb") / "assets" / "demo") as folder:
        documents = [own for own in read_documents(folder) if not own.name.startswith("README")]
    encoded = [(own, lm.tokenizer.encode_prompt(own.text)) for own in documents]
    long = [(own, tuple(ids[:PREFIX])) for own, ids in encoded if len(ids) >= PREFIX]
    return [
        Case("demo", own.name, ids, passages=(Chunk(own.name, 0, own.text),))
        for own, ids in _spread(long, limit)
    ]


def _questions(path: Path) -> Iterator[tuple[str, list[Document]]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        items = json.load(file)
    for item in items:
        docs = enumerate(item["docs"][:PASSAGES], 1)
        yield (
            item["question"],
            [Document(doc["text"], f"{number} {doc['title']}") for number, doc in docs],
        )


def _answer_case(
    lm: "DynamicLM", question: str, documents: Sequence[Document], max_tokens: int
) -> Case:
    """Make the very prompt that `univerb.answer` makes."""
    from univerb.applications.answer import find_passages, has_chat, passages_prompt

    found = find_passages(question, documents, PASSAGES)
    room = lm.context_size - max_tokens
    ids, passages = passages_prompt(lm, question, found, room, is_chat=has_chat(lm))
    return Case("answers", question, tuple(ids), passages=passages)


def _spread(items: Sequence[T], limit: int) -> list[T]:
    return list(items[:: max(len(items) // limit, 1)][:limit])
