"""Building a corpus, adding documents to it and removing some.

A corpus is a function of its documents and settings: after any changes it equals one that was
built from its present documents at once. Nothing is computed twice, and an interrupted build
continues where it stopped.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy

from univerb.corpus.corpus import Corpus, corpus_folder, open_corpus
from univerb.corpus.manifest import (
    FORMAT,
    MANIFEST,
    OBJECTS,
    CorpusSettings,
    Manifest,
    index_key,
    phrases_key,
    write_manifest,
)
from univerb.corpus.mine import MinedPhrases, mine_phrases
from univerb.corpus.objects import ObjectEntry, StoredObject, corrupt, write_object
from univerb.corpus.phrase_index import NO_ROW, write_phrases
from univerb.corpus.shards import Shard, ShardTask, digest, grouped, make_shard, totals
from univerb.corpus.versions import LOCK, retire, sweep
from univerb.errors import CorpusError, DocumentError, OptionError, first_line
from univerb.files import PATIENCE, exclusive_lock
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import Workers, local_workers
from univerb.phrase import Document
from univerb.phrases.hashing import Ints
from univerb.phrases.tokenized import TokenArrays
from univerb.retrieval.methods import method_named
from univerb.tokenizer import Tokenizer

OnProgress = Callable[[str, int, int], None]
"""Called with the stage, the number of its documents or phrases that are done, and of all."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
T = TypeVar("T")
R = TypeVar("R")


class CorpusBuilder:
    """Writes a corpus, one change at a time; other writers are locked out meanwhile.

    Args:
        folder: The corpus; made if it does not exist.
        tokenizer: The LM's.
        settings: Of a new corpus. An existing one keeps its own, which must not differ.
        lm: Encodes the phrases; needed if the settings ask for vectors.
        workers: Do the work; this process by default.
        progress: Called as the work proceeds.
    """

    def __init__(
        self,
        folder: str | Path,
        tokenizer: Tokenizer,
        settings: CorpusSettings | None = None,
        *,
        lm: DynamicLM | None = None,
        workers: Workers | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        # Absolute: workers may run in other folders.
        self.folder = corpus_folder(folder).resolve()
        self._tokenizer = tokenizer
        self._lm = lm
        self._workers = workers or local_workers()
        self._report = progress or (lambda stage, done, total: None)
        self._root = self.folder / OBJECTS
        self._present = self._open()
        self.settings = self._check_settings(settings)
        self._close()
        if self.settings.vectors and not (isinstance(lm, DynamicLM) and lm.has_encoder):
            raise OptionError(
                "a corpus with vectors needs a model with a phrase encoder, on torch; "
                f"{f'{lm.name!r} is none' if lm else 'there is no model'}. Leave the vectors out "
                "(vectors=False, --no-vectors), or train an encoder: univerb train"
            )

    def _close(self) -> None:
        if self._present:
            self._present.close()
        self._present = None

    def _open(self) -> Corpus | None:
        if (self.folder / MANIFEST).is_file():
            return open_corpus(self.folder)
        # An interrupted build left its lock; any other content is somebody else's.
        is_used = self.folder.is_dir() and any(self.folder.iterdir())
        if is_used and not (self.folder / LOCK).is_file():
            raise CorpusError(f"{str(self.folder)!r} is not empty and no corpus. Name another one.")
        return None

    def _check_settings(self, settings: CorpusSettings | None) -> CorpusSettings:
        if self._present is None:
            return settings or CorpusSettings()
        manifest = self._present.manifest
        if settings is not None and settings != manifest.settings:
            raise CorpusError(
                f"{str(self.folder)!r} was built with other settings: {manifest.settings}. Leave "
                "them out, or build into another folder."
            )
        self._present.check_tokenizer(self._tokenizer)
        if manifest.encoder and self._lm is not None:
            self._present.check_encoder(self._lm.fingerprint())
        return manifest.settings

    def add(self, documents: Iterable[Document]) -> Manifest:
        """Add documents; one with the name of an existing document replaces it.

        Documents that the corpus has already, with the same text, cost nothing.
        """
        checked = _checked(documents)
        with self._locked():
            listed = self._present.listed() if self._present else []
            known = {document["name"]: document["digest"] for document in listed}
            new = [d for d in checked if known.get(d.name) != digest(d.text)]
            replaced = {d.name for d in new} & known.keys()
            return self._commit([*self._shards_without(replaced), *map(self._task, grouped(new))])

    def remove(self, names: Iterable[str]) -> Manifest:
        """Remove documents by name, their text and the phrases that only they have."""
        removed = set(names)
        open_corpus(self.folder).close()
        with self._locked():
            present = self._present
            assert present
            # What interrupted changes left behind may be of these documents.
            sweep(self.folder, present.manifest)
            known = {document["name"] for document in present.listed()}
            if unknown := sorted(removed - known):
                raise DocumentError(
                    f"the corpus has no document {unknown[0]!r}. `univerb inspect` lists them."
                )
            if removed == known:
                raise DocumentError(
                    "no document would be left, and a corpus has at least one. Add another first."
                )
            return self._commit(list(self._shards_without(removed)))

    def _shards_without(self, removed: set[str]) -> Iterator[ShardTask | ObjectEntry]:
        """Yield the present shards; those to be made anew as tasks.

        Those are the ones with removed documents, and all of an older format, which lack flags.
        """
        if self._present is None:
            return
        is_current = self._present.manifest.format == FORMAT
        for entry in self._present.manifest.shards:
            shard = Shard(StoredObject(self._root, entry))
            if is_current and removed.isdisjoint(document["name"] for document in shard.listed):
                yield entry
            elif left := tuple(d for d in shard.documents() if d.name not in removed):
                yield self._task(left)

    def _task(self, documents: Sequence[Document]) -> ShardTask:
        special = tuple(sorted(self._tokenizer.special_ids))
        return ShardTask(
            self._root, tuple(documents), self.settings, self._tokenizer.to_json(), special
        )

    def _commit(self, parts: Sequence[ShardTask | ObjectEntry]) -> Manifest:
        """Make a new version of these shards the present one; the old one goes if unread."""
        tasks = [part for part in parts if isinstance(part, ShardTask)]
        made = self._run("documents", make_shard, tasks, [len(task.documents) for task in tasks])
        entries = [next(made) if isinstance(part, ShardTask) else part for part in parts]
        manifest = self._make_manifest(entries)
        if self._present:
            retire(self.folder, self._present.manifest)
            self._present.close()
        write_manifest(self.folder, manifest)
        sweep(self.folder, manifest)
        return manifest

    def _make_manifest(self, entries: Sequence[ObjectEntry]) -> Manifest:
        """Make what depends on all documents: the retrieval index, the phrases, their vectors."""
        shards = [Shard(StoredObject(self._root, entry)) for entry in entries]
        index = self._write_index(entries, shards)
        self._report("phrases", 0, 1)
        tokens = TokenArrays.concatenate(shard.arrays() for shard in shards)
        phrases = mine_phrases(tokens, self.settings)
        phrase_count = len(phrases)
        self._report("phrases", 1, 1)
        lm = self._lm if self.settings.vectors else None
        # Where tokens may be phrases, some of them are stored as such.
        if lm and lm.scoring.is_conditional and self.settings.sizes[0] > 1:
            phrases = phrases.with_first_tokens()
        vectors, rows = self._encode(phrases)
        stored = write_object(
            self._root,
            "phrases",
            phrases_key(entries, self.settings, vectors),
            lambda folder: write_phrases(folder, *phrases, rows),
        )
        manifest = Manifest(
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
            phrase_count=phrase_count,
        )
        return manifest.model_copy(update=totals(shards))

    def _write_index(self, entries: Sequence[ObjectEntry], shards: Sequence[Shard]) -> ObjectEntry:
        method = method_named(self.settings.method)

        def write(folder: Path) -> None:
            features = [shard.features() for shard in shards]
            try:
                index = method.index(features)
            except (IndexError, KeyError, TypeError, ValueError) as error:
                problem = f"has features that do not fit each other: {first_line(error)}"
                raise corrupt(self._root, problem) from error
            index.save(folder)

        self._report("retrieval index", 0, 1)
        index = write_object(self._root, "index", index_key(entries), write)
        self._report("retrieval index", 1, 1)
        return index

    def _encode(self, phrases: MinedPhrases) -> tuple[list[ObjectEntry], Ints]:
        """Encode new phrases; return the objects with vectors and each phrase's row in them."""
        rows = numpy.full(len(phrases), NO_ROW, dtype=numpy.int64)
        if not self.settings.vectors:
            return [], rows
        from univerb.corpus.encode import encode_batch, encode_tasks

        assert self._lm is not None
        if phrases.tokens.max(initial=0) >= self._lm.static_size:
            raise corrupt(self._root, "has tokens that the model does not know")
        reused: list[ObjectEntry] = []
        begin = 0
        if self._present is not None and self._present.has_vectors:
            reused, rows, begin = self._present.reusable_rows(phrases.tokens, phrases.ends)
        missing = numpy.flatnonzero(rows == NO_ROW)
        tasks = encode_tasks(self._lm, self._root, phrases, missing, self.settings.dtype)
        new = list(self._run("vectors", encode_batch, tasks, [len(task.ends) for task in tasks]))
        rows[missing] = begin + numpy.arange(len(missing))
        return reused + new, rows

    def _run(
        self, stage: str, function: Callable[[T], R], tasks: Sequence[T], sizes: Sequence[int]
    ) -> Iterator[R]:
        if not tasks:
            return
        self._report(stage, 0, sum(sizes))
        # A single task is not worth the start of other processes.
        workers = self._workers if len(tasks) > 1 else local_workers()
        with workers:
            for done, result in zip(accumulate(sizes), workers.map(function, tasks), strict=True):
                self._report(stage, done, sum(sizes))
                yield result

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock other writers out, and read what they wrote before."""
        busy = CorpusError(
            f"{str(self.folder)!r} is being written by another process. Wait until it has finished."
        )
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.folder / LOCK, busy, PATIENCE):
                self._present = self._open()
                self.settings = self._check_settings(self.settings)
                try:
                    yield
                finally:
                    # Nobody reads here until the next change: what others remove may go.
                    self._close()
        except OSError as error:
            # Libraries raise OSErrors of their own, which are not the disk's.
            if error.errno is None:
                raise
            raise CorpusError(
                f"{str(self.folder)!r} cannot be written: {os.strerror(error.errno)}. What was "
                "there before is unchanged. Name a folder that has room and can be written."
            ) from error


def build_corpus(
    folder: str | Path,
    documents: Iterable[Document],
    lm: DynamicLM,
    settings: CorpusSettings | None = None,
    *,
    workers: Workers | None = None,
    progress: OnProgress | None = None,
) -> Corpus:
    """Build a corpus for a model, or add documents to one; arguments as in `CorpusBuilder`."""
    builder = CorpusBuilder(
        folder, lm.tokenizer, settings, lm=lm, workers=workers, progress=progress
    )
    builder.add(documents)
    return open_corpus(folder)


def _checked(documents: Iterable[Document]) -> list[Document]:
    checked: dict[str, Document] = {}
    for document in documents:
        if document.name in checked:
            raise DocumentError(f"two documents are called {document.name!r}. Rename one of them.")
        if _HALF_CHARACTER.search(document.text):
            raise DocumentError(
                f"document {document.name!r} is not valid UTF-8 (it has half a character). "
                "Correct it."
            )
        checked[document.name] = document
    if not checked:
        raise DocumentError("there are no documents to add. Give at least one.")
    return list(checked.values())
