"""Documents from files, folders and standard input, whatever their format."""

import difflib
import gzip
import io
import json
import os
import stat
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NoReturn

from univerb.errors import DocumentError, MissingExtra
from univerb.phrase import Document
from univerb.sources.markup import html_text, markdown_text

_MAX_BYTES = 512 * 2**20
_STDIN = "-"
_LABELS = ("name", "id", "title", "celex")

_Reader = Callable[[bytes, str], Iterator[tuple[str, str]]]
"""Yields the texts of a file's bytes, each with its label; the file is named in errors only."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file to read, or standard input."""

    path: str
    parts: tuple[str, ...]
    """The absolute path, without its root."""
    own: int = 1
    """How many of the last parts are its name."""

    @property
    def origin(self) -> str:
        """How errors call the file."""
        return "standard input" if self.path == _STDIN else repr(self.path)


def read_documents(*paths: str | os.PathLike[str]) -> list[Document]:
    """Read files and folders as documents.

    Args:
        *paths: Text, Markdown, HTML, JSON Lines, PDF and DOCX files, also gzipped; folders, of
            which all such files are read but hidden ones; `-` for text from standard input.

    Returns:
        The documents in the order given, those of a folder sorted by path. Each is named after its
        file, within a folder by the path below it, and one of JSON Lines as `file.jsonl#name`.
        Names are distinct: parent folders or a number are added where they would not be.

    Raises:
        DocumentError: If no path is given, or one is missing, unreadable, empty, binary, broken or
            larger than 512 MiB.
        MissingExtra: If there is a PDF or DOCX file, but not the package that reads it.
    """
    if not paths:
        raise DocumentError("no path was given. Name a file or a folder, or '-' for stdin.")
    files = [file for path in paths for file in _files(os.fspath(path))]
    texts: list[str] = []
    names: list[str] = []
    for file, name in zip(files, _file_names(files), strict=True):
        for label, text in _texts(file):
            texts.append(text)
            names.append(f"{name}#{label}" if label else name)
    return [Document(text, name) for text, name in zip(texts, _numbered(names), strict=True)]


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
    found: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=lambda e: _refuse(repr(e.filename), e)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [Path(root, name) for name in names if not name.startswith(".")]
        found += [p for p in visible if _suffix(p.name) in _READERS and os.path.isfile(p)]
    if not found:
        raise DocumentError(
            f"folder {str(folder)!r} has no files that can be read. Known are {_known_suffixes()}; "
            "name files with other suffixes one by one to read them as text."
        )
    return [
        _File(str(path), _parts(path), len(path.relative_to(folder).parts))
        for path in sorted(found)
    ]


def _texts(file: _File) -> list[tuple[str, str]]:
    data = _contents(file)
    texts = list(_READERS.get(_suffix(file.path), _read_text)(data, file.origin)) if data else []
    if not texts or not all(text.strip() for _, text in texts):
        raise DocumentError(
            f"{file.origin} is empty or has no text (a scan needs text recognition first). "
            "Leave it out."
        )
    return texts


def _contents(file: _File) -> bytes:
    try:
        if file.path == _STDIN:
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            is_gzip = file.path.lower().endswith(".gz")
            with gzip.open(file.path) if is_gzip else open(file.path, "rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DocumentError(
            f"{file.origin} is not a readable gzip file. Pack it again or leave it out."
        ) from error
    except OSError as error:
        _refuse(file.origin, error)
    _check_size(len(data), file.origin)
    return data


def _read_text(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    yield "", _decoded(data, origin)


def _read_markdown(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    yield "", markdown_text(_decoded(data, origin))


def _read_html(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    yield "", html_text(_decoded(data, origin))


def _read_jsonl(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    # str.splitlines would also cut at characters that JSON allows within a string.
    for number, line in enumerate(_decoded(data, origin).split("\n"), start=1):
        if line.strip():
            label, text = _record(line, f"line {number} of {origin}")
            yield label or str(number), text


def _record(line: str, origin: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError(
            f"{origin} is not valid JSON. Each line must be an object with 'text'; correct it."
        ) from error
    if not isinstance(record, dict):
        raise DocumentError(
            f"{origin} is a JSON {type(record).__name__}. Make it an object with 'text'."
        )
    text = record.get("text")
    if not isinstance(text, str) or not text.strip():
        problem = "'text' that is empty or no string" if "text" in record else "no 'text'"
        keys = ", ".join(map(repr, list(record)[:10])) or "none"
        raise DocumentError(
            f"{origin} has {problem}; its keys are: {keys}. Put the document under 'text'."
        )
    labels = [record[key] for key in _LABELS if isinstance(record.get(key), str | int)]
    named = (" ".join(_repaired(str(label)).split()) for label in labels)
    return next(filter(None, named), ""), _repaired(text)


def _read_pdf(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "files") from None
    with _explained(origin, "PDF file; it may be broken or need a password"):
        pages = [page.extract_text().strip() for page in pypdf.PdfReader(io.BytesIO(data)).pages]
    yield "", _repaired("\n\n".join(filter(None, pages)))


def _read_docx(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", "files") from None
    paragraphs: dict[object, str] = {}
    with _explained(origin, "DOCX file; it may be broken or need a password"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_size(sum(entry.file_size for entry in archive.infolist()), origin)
        body = docx.Document(io.BytesIO(data)).element.body
        # Runs, because a paragraph's own text lacks tracked insertions and form fields; a text
        # box is stored twice, the second time as a fallback.
        shown = "not(ancestor::w:moveFrom or ancestor::*[local-name()='Fallback'])"
        for run in body.xpath(f".//w:r[{shown}]"):
            paragraph = next(run.iterancestors(qn("w:p")))
            paragraphs[paragraph] = paragraphs.get(paragraph, "") + run.text
    yield "", _repaired("\n\n".join(filter(None, map(str.strip, paragraphs.values()))))


_READERS: dict[str, _Reader] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".pdf": _read_pdf,
    ".docx": _read_docx,
}


def _decoded(data: bytes, origin: str) -> str:
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError(
            f"{origin} is binary or not UTF-8. Known are UTF-8 text and {_known_suffixes()}: "
            "convert it or leave it out."
        )
    return _unix_lines(text)


def _repaired(text: str) -> str:
    # Escapes and broken fonts can spell what no tokenizer takes: NUL and halves of characters.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _unix_lines(whole.replace("\0", ""))


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _file_names(files: Sequence[_File]) -> list[str]:
    lengths = [file.own for file in files]
    while True:
        names = ["/".join(f.parts[-length:]) for f, length in zip(files, lengths, strict=True)]
        # A file that was given twice has no folder that would tell it from itself.
        places = Counter(
            name for name, _ in {(n, f.parts) for n, f in zip(names, files, strict=True)}
        )
        unclear = [
            i for i, f in enumerate(files) if places[names[i]] > 1 and lengths[i] < len(f.parts)
        ]
        if not unclear:
            return [_repaired(name) for name in names]
        for i in unclear:
            lengths[i] += 1


def _numbered(names: Iterable[str]) -> Iterator[str]:
    taken: set[str] = set()
    times: Counter[str] = Counter()
    for name in names:
        distinct = name
        while distinct in taken:
            times[name] += 1
            distinct = f"{name}#{times[name] + 1}"
        taken.add(distinct)
        yield distinct


def _suffix(path: str) -> str:
    return PurePath(path.lower().removesuffix(".gz")).suffix


def _parts(path: str | Path) -> tuple[str, ...]:
    return Path(os.path.abspath(path)).parts[1:]


def _known_suffixes() -> str:
    return f"{', '.join(sorted(_READERS))}, each also with .gz"


def _suggestion(path: Path) -> str:
    with suppress(OSError, ValueError):
        close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
        if close:
            return f"Did you mean {str(path.with_name(close[0]))!r}?"
    return "Check the path."


def _check_size(size: int, origin: str) -> None:
    if size > _MAX_BYTES:
        raise DocumentError(
            f"{origin} holds more than {_MAX_BYTES // 2**20} MiB. Split it or leave it out."
        )


def _refuse(origin: str, error: OSError) -> NoReturn:
    raise DocumentError(
        f"{origin} cannot be read: {error.strerror or error}. "
        "Check its permissions or leave it out."
    ) from error


@contextmanager
def _explained(origin: str, kind: str) -> Iterator[None]:
    try:
        yield
    except DocumentError:
        raise
    # The libraries let whatever they stumble on through, from KeyError to RecursionError.
    except Exception as error:
        raise DocumentError(
            f"{origin} is not a readable {kind}. Convert it to text or leave it out."
        ) from error
