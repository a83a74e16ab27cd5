"""Building a corpus, adding documents to it and taking some away.

A corpus is a function of its documents and settings: whatever is done to it, it answers like one
that was built of its present documents at once. What has been computed before is not computed
again, and a build that was interrupted goes on where it was.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy

from univerb.corpus.corpus import Corpus, open_corpus
from univerb.corpus.manifest import (
    MANIFEST,
    OBJECTS,
    CorpusSettings,
    Manifest,
    index_key,
    phrases_key,
    write_manifest,
)
from univerb.corpus.mine import MinedPhrases, mine_phrases
from univerb.corpus.objects import ObjectEntry, StoredObject, write_object
from univerb.corpus.phrase_index import NO_ROW, write_phrases
from univerb.corpus.shards import Shard, ShardTask, digest, grouped, make_shard, totals
from univerb.errors import CorpusError, DocumentError, OptionError
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import Workers, local_workers
from univerb.phrase import Document
from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import TokenArrays
from univerb.retrieval.methods import method_named
from univerb.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Told the stage, how many parts of it are done, and how many there are."""

_LOCK = "lock"
_OBJECT = re.compile(r"\.?(shard|index|phrases|vectors)-[0-9a-f]{32}(\.|$)")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
T = TypeVar("T")
R = TypeVar("R")


class CorpusBuilder:
    """Writes one corpus, one change at a time; other writers are kept out meanwhile.

    Args:
        folder: The corpus; made if it does not exist.
        tokenizer: The LM's.
        settings: How to build. An existing corpus keeps its own; None takes them.
        lm: Encodes the phrases; needed if the settings ask for vectors.
        workers: Who does the work.
        progress: Is told how far it is.
    """

    def __init__(
        self,
        folder: str | Path,
        tokenizer: Tokenizer,
        settings: CorpusSettings | None = None,
        *,
        lm: DynamicLM | None = None,
        workers: Workers | None = None,
        progress: Progress | None = None,
    ) -> None:
        # Absolute: workers may stand in other folders.
        self.folder = Path(folder).expanduser().resolve()
        self._tokenizer = tokenizer
        self._lm = lm
        self._workers = workers or local_workers()
        self._tell = progress or (lambda stage, done, total: None)
        self._root = self.folder / OBJECTS
        self._old = self._opened()
        self.settings = self._settled(settings)
        if self.settings.vectors and lm is None:
            raise OptionError("a corpus with vectors needs a model that encodes its phrases.")

    def _opened(self) -> Corpus | None:
        if (self.folder / MANIFEST).is_file():
            return open_corpus(self.folder)
        # A build that was interrupted left its lock; anything else is somebody's own.
        is_used = self.folder.is_dir() and any(self.folder.iterdir())
        if is_used and not (self.folder / _LOCK).is_file():
            raise CorpusError(f"{str(self.folder)!r} is not empty and no corpus. Name another one.")
        return None

    def _settled(self, given: CorpusSettings | None) -> CorpusSettings:
        if self._old is None:
            return given or CorpusSettings()
        own = self._old.manifest
        if given is not None and given != own.settings:
            raise CorpusError(
                f"{str(self.folder)!r} was built with other settings: {own.settings}. Leave them "
                "out, or build into another folder."
            )
        self._old.check_tokenizer(self._tokenizer)
        if own.encoder and self._lm is not None:
            self._old.check_encoder(self._lm.fingerprint())
        return own.settings

    def add(self, documents: Iterable[Document]) -> Manifest:
        """Add documents; one that has the name of an old one takes its place.

        Args:
            documents: Those that are there already, with the same text, cost nothing.

        Returns:
            What the corpus is now.

        Raises:
            DocumentError: If there is none, or two have one name.
        """
        given = _checked(documents)
        with self._locked():
            known = {d["name"]: d["digest"] for d in self._old.listed()} if self._old else {}
            new = [d for d in given if known.get(d.name) != digest(d.text)]
            replaced = {d.name for d in new} & known.keys()
            return self._commit([*self._kept(replaced), *map(self._task, grouped(new))])

    def remove(self, names: Iterable[str]) -> Manifest:
        """Take documents away, their text and the phrases that only they have.

        Args:
            names: The documents' names.

        Returns:
            What the corpus is now.

        Raises:
            CorpusError: If there is no corpus.
            DocumentError: If there is no such document, or none would be left.
        """
        gone = set(names)
        old = open_corpus(self.folder)
        with self._locked():
            old = self._old or old
            # What an interrupted removal left lying.
            self._sweep(old.manifest)
            known = {d["name"] for d in old.listed()}
            if unknown := sorted(gone - known):
                raise DocumentError(
                    f"the corpus has no document {unknown[0]!r}. `univerb inspect` lists them."
                )
            if gone == known:
                raise DocumentError("no document would be left. Delete the folder instead.")
            return self._commit(list(self._kept(gone)), keeps_old=False)

    def _kept(self, gone: set[str]) -> Iterator[ShardTask | ObjectEntry]:
        """Yield the old shards, those with documents that go made anew without them."""
        for entry in self._old.manifest.shards if self._old else ():
            shard = Shard(StoredObject(self._root, entry))
            if gone.isdisjoint(d["name"] for d in shard.listed):
                yield entry
            elif left := tuple(d for d in shard.documents() if d.name not in gone):
                yield self._task(left)

    def _task(self, documents: Sequence[Document]) -> ShardTask:
        special = tuple(sorted(self._tokenizer.special_ids))
        return ShardTask(
            self._root, tuple(documents), self.settings, self._tokenizer.to_json(), special
        )

    def _commit(self, parts: Sequence[ShardTask | ObjectEntry], keeps_old: bool = True) -> Manifest:
        """Make a new version the present one.

        Args:
            parts: Its shards, or what they are to be made of.
            keeps_old: Leave the version before on disk, for those who have it open, until the
                next change.

        Returns:
            The new version.
        """
        tasks = [part for part in parts if isinstance(part, ShardTask)]
        made = iter(self._run("documents", make_shard, tasks))
        entries = [next(made) if isinstance(part, ShardTask) else part for part in parts]
        manifest = self._derived(entries)
        write_manifest(self.folder, manifest)
        before = self._old.manifest.entries() if self._old and keeps_old else []
        self._sweep(manifest, *before)
        self._old = open_corpus(self.folder)
        return manifest

    def _derived(self, entries: Sequence[ObjectEntry]) -> Manifest:
        """Make what depends on all documents: the retrieval index, the phrases, their vectors."""
        shards = [Shard(StoredObject(self._root, entry)) for entry in entries]
        self._tell("retrieval index", 0, 1)
        method = method_named(self.settings.method)
        index = write_object(
            self._root,
            "index",
            index_key(entries),
            lambda folder: method.index([shard.features() for shard in shards]).save(folder),
        )
        self._tell("retrieval index", 1, 1)
        self._tell("phrases", 0, 1)
        phrases = mine_phrases(
            TokenArrays.concatenate(shard.arrays() for shard in shards), self.settings
        )
        self._tell("phrases", 1, 1)
        vectors, rows = self._encoded(phrases)
        lm = self._lm if self.settings.vectors else None
        stored = write_object(
            self._root,
            "phrases",
            phrases_key(entries, self.settings, vectors),
            lambda folder: write_phrases(folder, *phrases, rows),
        )
        found = totals(shards)
        return Manifest(
            settings=self.settings,
            tokenizer=self._tokenizer.fingerprint(),
            model=lm.name if lm else "",
            encoder=lm.fingerprint() if lm else "",
            width=lm.width if lm else 0,
            is_tied=lm.is_tied if lm else False,
            shards=tuple(entries),
            index=index,
            phrases=stored,
            vectors=tuple(vectors),
            documents=found.documents,
            chunks=found.chunks,
            characters=found.characters,
            tokens=found.tokens,
            phrase_count=len(phrases),
        )

    def _encoded(self, phrases: MinedPhrases) -> tuple[list[ObjectEntry], Ints]:
        """Return the objects with vectors and each phrase's row in them, encoding what is new."""
        rows = numpy.full(len(phrases), NO_ROW, dtype=numpy.int64)
        if not self.settings.vectors:
            return [], rows
        from univerb.corpus.encode import encode_batch, encode_tasks

        assert self._lm is not None
        kept: list[ObjectEntry] = []
        begin = 0
        if self._old is not None and self._old.has_vectors:
            kept, rows, begin = self._old.kept_rows(phrases.tokens, phrases.ends)
        missing = numpy.flatnonzero(rows == NO_ROW)
        tasks = encode_tasks(self._lm, self._root, phrases, missing, self.settings.dtype)
        new = list(self._run("vectors", encode_batch, tasks))
        rows[missing] = begin + numpy.arange(len(missing))
        return kept + new, rows

    def _run(self, stage: str, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        if not tasks:
            return
        self._tell(stage, 0, len(tasks))
        # One part is not worth the start of other processes.
        workers = self._workers if len(tasks) > 1 else local_workers()
        with workers:
            for done, result in enumerate(workers.map(function, tasks), start=1):
                self._tell(stage, done, len(tasks))
                yield result

    def _sweep(self, manifest: Manifest, *others: ObjectEntry) -> None:
        """Delete the objects, also unfinished ones, that no longer belong to the corpus."""
        names = {entry.name for entry in (*manifest.entries(), *others)}
        for path in self._root.iterdir():
            if path.name not in names and _OBJECT.match(path.name):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out, and take note of what they wrote before."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with _lock(self.folder):
                self._old = self._opened()
                self.settings = self._settled(self.settings)
                yield
        except OSError as error:
            # Libraries raise OSErrors of their own, which are not the disk's.
            if error.errno is None:
                raise
            raise CorpusError(
                f"{str(self.folder)!r} cannot be written: {os.strerror(error.errno)}. What was "
                "there before is as it was. Give a folder that has room and may be written."
            ) from error


def build_corpus(
    folder: str | Path,
    documents: Iterable[Document],
    lm: DynamicLM,
    settings: CorpusSettings | None = None,
    *,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Build a corpus, or add documents to one.

    Args:
        folder: Where it lies; `corpus.uv` by custom.
        documents: What to index.
        lm: The model whose phrases are meant.
        settings: How to build; those of an existing corpus stay.
        workers: Who does the work; this process by default.
        progress: Is told how far it is.

    Returns:
        The corpus, open.
    """
    builder = CorpusBuilder(
        folder, lm.tokenizer, settings, lm=lm, workers=workers, progress=progress
    )
    builder.add(documents)
    return open_corpus(folder)


def _checked(documents: Iterable[Document]) -> list[Document]:
    given = list(documents)
    if not given:
        raise DocumentError("there are no documents to add. Give at least one.")
    names: set[str] = set()
    for document in given:
        if document.name in names:
            raise DocumentError(f"two documents are called {document.name!r}. Rename one of them.")
        if _HALF_CHARACTER.search(document.text):
            raise DocumentError(
                f"document {document.name!r} is not valid UTF-8 (it has half a character). "
                "Correct it."
            )
        names.add(document.name)
    return given


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CorpusError(
            f"{str(folder)!r} is being written by another process. Wait until it has finished."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
