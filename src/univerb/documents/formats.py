"""Text of a file's bytes, one reader per format."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from univerb.documents.markup import html_text, markdown_text
from univerb.errors import DocumentError, MissingExtra

MAX_BYTES = 512 * 2**20
_LABELS = ("name", "id", "title", "celex")

FormatReader = Callable[[bytes, str], Iterator[tuple[str, str]]]
"""Yields (label, text) pairs from a file's bytes; the second argument names the file in errors."""


def read_text(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    """Read plain text."""
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
    named = (" ".join(repaired(str(label)).split()) for label in labels)
    return next(filter(None, named), ""), repaired(text)


def _read_pdf(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "files") from None
    with _explained(origin, "PDF file; it may be broken or need a password"):
        pages = [page.extract_text().strip() for page in pypdf.PdfReader(io.BytesIO(data)).pages]
    yield "", repaired("\n\n".join(filter(None, pages)))


def _read_docx(data: bytes, origin: str) -> Iterator[tuple[str, str]]:
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", "files") from None
    paragraphs: dict[object, str] = {}
    with _explained(origin, "DOCX file; it may be broken or need a password"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_size(sum(entry.file_size for entry in archive.infolist()), origin)
        body = docx.Document(io.BytesIO(data)).element.body
        # Runs, because a paragraph's text lacks tracked insertions and form fields; a text box is
        # stored twice, the second time as a fallback.
        shown = "not(ancestor::w:moveFrom or ancestor::*[local-name()='Fallback'])"
        for run in body.xpath(f".//w:r[{shown}]"):
            paragraph = next(run.iterancestors(qn("w:p")))
            paragraphs[paragraph] = paragraphs.get(paragraph, "") + run.text
    yield "", repaired("\n\n".join(filter(None, map(str.strip, paragraphs.values()))))


READERS: dict[str, FormatReader] = {
    ".txt": read_text,
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
            f"{origin} is binary or not UTF-8. Known are UTF-8 text and {known_suffixes()}: "
            "convert it or leave it out."
        )
    return _unix_lines(text)


def repaired(text: str) -> str:
    """Return a text that every tokenizer accepts, its lines ended by LF."""
    # Escapes and broken fonts can yield NUL and halves of characters.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _unix_lines(whole.replace("\0", ""))


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def known_suffixes() -> str:
    """List the readable suffixes, for error messages."""
    return f"{', '.join(sorted(READERS))}, each also with .gz"


def check_size(size: int, origin: str) -> None:
    """Refuse a file that is too large to be a document."""
    if size > MAX_BYTES:
        raise DocumentError(
            f"{origin} holds more than {MAX_BYTES // 2**20} MiB. Split it or leave it out."
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
