"""Documents from files, folders and standard input, whatever their format."""

import difflib
import gzip
import io
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn

from univerb.documents.formats import FORMATS, TEXT, check_size, known_suffixes, repaired
from univerb.errors import DocumentError, shown
from univerb.phrase import Document

if TYPE_CHECKING:
    from _typeshed import SupportsRead, WriteableBuffer

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
            files of these formats are read unless hidden or links that lead out of the folder;
            `-` for text from standard input.

    Returns:
        The documents in the order of the paths, those of a folder sorted by path. Each is named
        after its file, in a folder by the path below it, in JSON Lines as `file.jsonl#name`, and
        `file.txt#1` and so on for the parts of a text of more than 16 million characters.
        Names are distinct: parent folders or a number are added where needed.

    Raises:
        DocumentError: If there is no path, or one is missing, no regular file, unreadable, empty,
            binary, broken or too large for its format (text: 1 GiB, Markdown: 4 MiB).
        MissingExtra: If the package that reads PDF files is needed and missing.
    """
    return list(iter_documents(*paths))


def iter_documents(*paths: str | os.PathLike[str]) -> Iterator[Document]:
    """Read files and folders as `read_documents` does, but a document only when it is asked for.

    No more than one is in memory at a time. Paths are checked at once, files when they are read.
    """
    if not paths:
        raise DocumentError("no path was given. Name a file or a folder, or '-' for stdin.")
    files = [file for path in paths for file in _files(_decoded(path))]
    return _documents(files)


def _documents(files: Sequence[_File]) -> Iterator[Document]:
    used: set[str] = set()
    repeats: Counter[str] = Counter()
    for file, name in zip(files, _file_names(files), strict=True):
        for label, text in _texts(file):
            distinct = _distinct(f"{name}#{label}" if label else name, used, repeats)
            yield Document(text, distinct)


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
    if not stat.S_ISREG(mode):
        raise DocumentError(
            f"{path!r} is a pipe, a socket or a device. Name a regular file, or '-' for stdin."
        )
    return [_File(path, _parts(path))]


def _folder_files(folder: Path) -> list[_File]:
    paths: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=lambda e: _refuse(repr(e.filename), e)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [Path(root, name) for name in names if not name.startswith(".")]
        paths += [p for p in visible if _suffix(p.name) in FORMATS and _is_inside(folder, p)]
    if not paths:
        raise DocumentError(
            f"folder {str(folder)!r} has no files that can be read. Known are {known_suffixes()}; "
            "name files with other suffixes one by one to read them as text."
        )
    return [
        _File(str(path), _parts(path), len(path.relative_to(folder).parts))
        for path in sorted(paths)
    ]


def _is_inside(folder: Path, path: Path) -> bool:
    """Tell whether a path is a regular file of a folder, not a link that leads out of it."""
    return os.path.isfile(path) and path.resolve().is_relative_to(folder.resolve())


def _texts(file: _File) -> Iterator[tuple[str, str]]:
    """Yield the labels and texts of a file; one without any is an error."""
    form = FORMATS.get(_suffix(file.path), TEXT)
    is_empty = True
    try:
        with _opened(file) as stream:
            raw = _Bounded(stream, form.max_bytes, file.origin)
            bounded: io.BufferedReader = io.BufferedReader(raw)
            for label, text in form.read(bounded, file.origin) if bounded.peek(1) else ():
                is_empty = not text.strip()
                if is_empty:
                    break
                yield label, text
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DocumentError(
            f"{file.origin} is not a readable gzip file. Pack it again or leave it out."
        ) from error
    except OSError as error:
        _refuse(file.origin, error)
    if is_empty:
        raise DocumentError(
            f"{file.origin} is empty or has no text (a scan needs text recognition first). "
            "Leave it out."
        )


def _opened(file: _File) -> "AbstractContextManager[SupportsRead[bytes]]":
    if file.path == _STDIN:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(file.path) if file.path.lower().endswith(".gz") else open(file.path, "rb")


class _Bounded(io.RawIOBase):
    """The bytes of a file; one that has too many is refused as soon as that shows."""

    def __init__(self, stream: "SupportsRead[bytes]", limit: int, origin: str) -> None:
        self._stream = stream
        self._limit = limit
        self._origin = origin
        self._size = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read what comes next into a buffer."""
        data = self._stream.read(len(memoryview(buffer)))
        self._size += len(data)
        check_size(self._size, self._limit, self._origin)
        memoryview(buffer)[: len(data)] = data
        return len(data)


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


def _distinct(name: str, used: set[str], repeats: Counter[str]) -> str:
    """Return a name that is not used yet, with a number if it comes again, and note it."""
    distinct = name
    while distinct in used:
        repeats[name] += 1
        distinct = f"{name}#{repeats[name] + 1}"
    used.add(distinct)
    return distinct


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
