"""Documents from files, folders and standard input, whatever their format."""

import difflib
import gzip
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NoReturn

from univerb.documents.formats import (
    MAX_BYTES,
    READERS,
    check_size,
    known_suffixes,
    read_text,
    repaired,
)
from univerb.errors import DocumentError, shown
from univerb.phrase import Document

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class _File:
    """A file to read, or standard input."""

    path: str
    parts: tuple[str, ...]
    """The absolute path, without its root."""
    name_length: int = 1
    """Number of the last parts that make its name."""

    @property
    def origin(self) -> str:
        """The file's name in errors."""
        return "standard input" if self.path == _STDIN else repr(self.path)


def read_documents(*paths: str | os.PathLike[str]) -> list[Document]:
    """Read files and folders as documents.

    Args:
        *paths: Text, Markdown, HTML, JSON Lines, PDF and DOCX files, also gzipped; folders, whose
            files of these formats are read unless hidden; `-` for text from standard input.

    Returns:
        The documents in the order of the paths, those of a folder sorted by path. Each is named
        after its file, in a folder by the path below it, in JSON Lines as `file.jsonl#name`.
        Names are distinct: parent folders or a number are added where needed.

    Raises:
        DocumentError: If there is no path, or one is missing, unreadable, empty, binary, broken or
            larger than 512 MiB.
        MissingExtra: If the package that reads PDF or DOCX files is needed and missing.
    """
    if not paths:
        raise DocumentError("no path was given. Name a file or a folder, or '-' for stdin.")
    files = [file for path in paths for file in _files(_decoded(path))]
    texts: list[str] = []
    names: list[str] = []
    for file, name in zip(files, _file_names(files), strict=True):
        for label, text in _texts(file):
            texts.append(text)
            names.append(f"{name}#{label}" if label else name)
    return [Document(text, name) for text, name in zip(texts, _numbered(names), strict=True)]


def _decoded(path: str | bytes | os.PathLike[str]) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise DocumentError(f"{shown(path)} is no path. Name a file or a folder.") from None


def _files(path: str) -> list[_File]:
    if path == _STDIN:
        return [_File(path, ("stdin",))]
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise DocumentError(f"{path!r} does not exist. {_suggestion(Path(path))}") from None
    except OSError as error:
        _refuse(repr(path), error)
    if stat.S_ISDIR(mode):
        return _folder_files(Path(path))
    return [_File(path, _parts(path))]


def _folder_files(folder: Path) -> list[_File]:
    paths: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=lambda e: _refuse(repr(e.filename), e)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [Path(root, name) for name in names if not name.startswith(".")]
        paths += [p for p in visible if _suffix(p.name) in READERS and os.path.isfile(p)]
    if not paths:
        raise DocumentError(
            f"folder {str(folder)!r} has no files that can be read. Known are {known_suffixes()}; "
            "name files with other suffixes one by one to read them as text."
        )
    return [
        _File(str(path), _parts(path), len(path.relative_to(folder).parts))
        for path in sorted(paths)
    ]


def _texts(file: _File) -> list[tuple[str, str]]:
    data = _contents(file)
    texts = list(READERS.get(_suffix(file.path), read_text)(data, file.origin)) if data else []
    if not texts or not all(text.strip() for _, text in texts):
        raise DocumentError(
            f"{file.origin} is empty or has no text (a scan needs text recognition first). "
            "Leave it out."
        )
    return texts


def _contents(file: _File) -> bytes:
    try:
        if file.path == _STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            is_gzip = file.path.lower().endswith(".gz")
            with gzip.open(file.path) if is_gzip else open(file.path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DocumentError(
            f"{file.origin} is not a readable gzip file. Pack it again or leave it out."
        ) from error
    except OSError as error:
        _refuse(file.origin, error)
    check_size(len(data), file.origin)
    return data


def _file_names(files: Sequence[_File]) -> list[str]:
    lengths = [file.name_length for file in files]
    while True:
        names = ["/".join(f.parts[-length:]) for f, length in zip(files, lengths, strict=True)]
        # A file that is named twice cannot be told from itself by a folder.
        distinct = {(name, file.parts) for name, file in zip(names, files, strict=True)}
        counts = Counter(name for name, _ in distinct)
        ambiguous = [
            i for i, f in enumerate(files) if counts[names[i]] > 1 and lengths[i] < len(f.parts)
        ]
        if not ambiguous:
            return [repaired(name) for name in names]
        for i in ambiguous:
            lengths[i] += 1


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Add a number to names that come again."""
    used: set[str] = set()
    repeats: Counter[str] = Counter()
    for name in names:
        distinct = name
        while distinct in used:
            repeats[name] += 1
            distinct = f"{name}#{repeats[name] + 1}"
        used.add(distinct)
        yield distinct


def _suffix(path: str) -> str:
    return PurePath(path.lower().removesuffix(".gz")).suffix


def _parts(path: str | Path) -> tuple[str, ...]:
    return Path(os.path.abspath(path)).parts[1:]


def _suggestion(path: Path) -> str:
    with suppress(OSError, ValueError):
        close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
        if close:
            return f"Did you mean {str(path.with_name(close[0]))!r}?"
    return "Check the path."


def _refuse(origin: str, error: OSError) -> NoReturn:
    raise DocumentError(
        f"{origin} cannot be read: {error.strerror or error}. "
        "Check its permissions or leave it out."
    ) from error
