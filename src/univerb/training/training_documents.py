"""The documents of a run: WikiText's files stay on the disk, an article is read when it is used."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, overload

from univerb.documents.read import read_documents
from univerb.documents.wikitext import (
    WikiTextForm,
    article_offsets,
    article_text,
    wikitext_articles,
)
from univerb.errors import DocumentError
from univerb.phrase import Document

WIKITEXT_SUFFIX = ".tokens"


class _Article(NamedTuple):
    """Where an article is: bytes of a file."""

    path: Path
    begin: int
    end: int


class TrainingDocuments(Sequence[Document]):
    """All documents of files and folders, in order.

    Articles of a WikiText file are documents, so that no passage crosses two, and only their places
    are in memory.

    Args:
        paths: Files and folders of any kind.
        form: Of the text of WikiText's files.
        limit: Number of documents, at most.

    Raises:
        DocumentError: If a file is missing or cannot be read, or has no text.
    """

    def __init__(
        self, paths: Sequence[str], form: WikiTextForm = "raw", limit: int | None = None
    ) -> None:
        self._form: WikiTextForm = form
        self._entries: list[Document | _Article] = []
        for name in paths:
            path = Path(name).expanduser()
            is_wikitext = path.suffix == WIKITEXT_SUFFIX and path.is_file()
            self._entries += self._articles(path) if is_wikitext else read_documents(name)
        self._entries = self._entries[:limit]

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self._document(entry) for entry in self._entries[index]]
        return self._document(self._entries[index])

    def _document(self, entry: Document | _Article) -> Document:
        if isinstance(entry, Document):
            return entry
        title, text = self._read(entry)
        return Document(text, f"{entry.path.name}#{title}")

    def _articles(self, path: Path) -> list[_Article]:
        try:
            with path.open("rb") as file:
                edges = [*article_offsets(file), os.fstat(file.fileno()).st_size]
            places = (_Article(path, begin, end) for begin, end in pairwise(edges))
            articles = [article for article in places if self._read(article)[1].strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DocumentError(
                f"{str(path)!r} is no readable WikiText file: {error}. Its text must be UTF-8."
            ) from error
        if not articles:
            raise DocumentError(
                f"{str(path)!r} has no text in the form {self._form!r}. Give another data.text."
            )
        return articles

    def _read(self, article: _Article) -> tuple[str, str]:
        with article.path.open("rb") as file:
            file.seek(article.begin)
            lines = file.read(article.end - article.begin).decode("utf-8").split("\n")
        title, paragraphs = next(wikitext_articles(lines), ("", []))
        return title, article_text(paragraphs, self._form)
