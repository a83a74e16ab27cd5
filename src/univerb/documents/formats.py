"""Text of a file's bytes, one reader per format."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import NamedTuple

from univerb.documents.docx import docx_paragraphs
from univerb.documents.markup import html_text, markdown_text
from univerb.errors import DocumentError, MissingExtra

_MIB = 2**20
PART = 16 * _MIB
"""Plain text is cut into documents of about so many characters; a JSON line has no more."""
_MAX_PDF_TEXT = 64 * _MIB
_LABELS = ("name", "id", "title", "celex")

FormatReader = Callable[[io.BufferedReader, str], Iterator[tuple[str, str]]]
"""Yields (label, text) pairs from a file; the second argument names the file in errors."""


class Format(NamedTuple):
    """How a file is read."""

    read: FormatReader
    max_bytes: int
    """Of the file, unpacked if it is a .gz file."""


def _read_text(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    parts = _parts(_decoded(stream), origin)
    first = list(islice(parts, 2))
    if len(first) == 1:
        yield "", first[0]
    else:
        yield from ((str(number), text) for number, text in enumerate(chain(first, parts), start=1))


def _parts(text: io.TextIOWrapper, origin: str) -> Iterator[str]:
    """Cut a long text between paragraphs, lines or words; parts without text are left out."""
    part = _next(text.read, PART, origin)
    while more := _next(text.read, PART, origin):
        ends = (part.rfind(mark) + len(mark) for mark in ("\n\n", "\n", " "))
        end = next((end for end in ends if end > PART // 2), len(part))
        if part[:end].strip():
            yield part[:end]
        part = part[end:] + more
    if part.strip():
        yield part


def _read_markdown(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    source = _next(_decoded(stream).read, -1, origin)
    yield "", markdown_text(source, origin)


def _read_html(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    source = _next(_decoded(stream).read, -1, origin)
    yield "", html_text(source, origin)


def _read_jsonl(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    lines = _decoded(stream)
    number = 0
    while line := _next(lines.readline, PART + 1, origin):
        number += 1
        if len(line) > PART:
            raise DocumentError(
                f"line {number} of {origin} has more than {PART:,} characters. Cut it into "
                "several lines, or leave it out."
            )
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
    named = (" ".join(repaired(str(label)).split()) for label in labels)
    return next(filter(None, named), ""), repaired(text)


def _read_pdf(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "files") from None
    data = stream.read()
    pages: list[str] = []
    size = 0
    with _explained(origin, "PDF file; it may be broken or need a password"):
        for page in pypdf.PdfReader(io.BytesIO(data)).pages:
            pages.append(page.extract_text().strip())
            # Pages can share what they show: a small file may have any number of large ones.
            size += len(pages[-1])
            check_size(size, _MAX_PDF_TEXT, origin)
    yield "", repaired("\n\n".join(filter(None, pages)))


def _read_docx(stream: io.BufferedReader, origin: str) -> Iterator[tuple[str, str]]:
    data = stream.read()
    with _explained(origin, "DOCX file; it may be broken or need a password"):
        paragraphs = docx_paragraphs(io.BytesIO(data), origin)
    yield "", repaired("\n\n".join(filter(None, map(str.strip, paragraphs))))


# What is converted as a whole takes a multiple of its size: Markdown hundreds of times as much.
TEXT = Format(_read_text, 1024 * _MIB)
_MARKDOWN, _HTML = Format(_read_markdown, 4 * _MIB), Format(_read_html, 32 * _MIB)
_JSON_LINES = Format(_read_jsonl, 1024 * _MIB)
FORMATS: dict[str, Format] = {
    ".txt": TEXT,
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".html": _HTML,
    ".htm": _HTML,
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".pdf": Format(_read_pdf, 512 * _MIB),
    ".docx": Format(_read_docx, 128 * _MIB),
}


def _decoded(stream: io.BufferedReader) -> io.TextIOWrapper:
    """Return a file as text, whose lines end with LF."""
    is_utf16 = stream.peek(2).startswith((b"\xff\xfe", b"\xfe\xff"))
    return io.TextIOWrapper(stream, "utf-16" if is_utf16 else "utf-8-sig")


def _next(read: Callable[[int], str], size: int, origin: str) -> str:
    """Read further text, or raise a DocumentError if it is none."""
    try:
        text = read(size)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError(
            f"{origin} is binary or not UTF-8. Known are UTF-8 text and {known_suffixes()}: "
            "convert it or leave it out."
        )
    return text


def repaired(text: str) -> str:
    """Return a text that every tokenizer accepts, its lines ended by LF."""
    # Escapes and broken fonts can yield NUL and halves of characters.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")


def known_suffixes() -> str:
    """List the readable suffixes, for error messages."""
    return f"{', '.join(sorted(FORMATS))}, each also with .gz"


def check_size(size: int, limit: int, origin: str) -> None:
    """Refuse a file that is too large to be a document."""
    if size > limit:
        raise DocumentError(
            f"{origin} holds more than {limit // _MIB} MiB. Split it or leave it out."
        )


@contextmanager
def _explained(origin: str, kind: str) -> Iterator[None]:
    try:
        yield
    except DocumentError:
        raise
    # The libraries raise anything, from KeyError to RecursionError.
    except Exception as error:
        raise DocumentError(
            f"{origin} is not a readable {kind}. Convert it to text or leave it out."
        ) from error
