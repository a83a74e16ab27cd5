"""Text of a DOCX file, read as a stream: what does not end up in the text takes no memory."""

import zipfile
from collections.abc import Callable
from typing import IO
from xml.parsers import expat

from univerb.errors import DocumentError

_MAX_XML = 128 * 2**20
_MAX_DEPTH = 1000
# Large, because expat begins a long token anew with every piece.
_PIECE = 16 * 2**20
_DOCUMENT = "/relationships/officeDocument"
_WORD = ("/wordprocessingml/2006/main", "/wordprocessingml/main")
_HIDDEN = ("moveFrom", "Fallback")
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}

Attributes = dict[str, str]


def docx_paragraphs(file: IO[bytes], origin: str) -> list[str]:
    """Return the paragraphs that Word shows, those of tables and text boxes included.

    A damaged file can raise anything, one that is too large or nested too deep a DocumentError
    that names it `origin`.
    """
    targets: list[str] = []

    def find(_: str, attributes: Attributes) -> None:
        if attributes.get("Type", "").endswith(_DOCUMENT):
            targets.append(attributes["Target"].lstrip("/"))

    content = _WordText(origin)
    with zipfile.ZipFile(file) as archive:
        _parse(archive, "_rels/.rels", origin, find)
        _parse(archive, targets[0], origin, content.start, content.end, content.data)
    return ["".join(parts) for parts in content.paragraphs]


class _WordText:
    """Collects the text of each paragraph's runs, be they in an insertion, a field or a link.

    Text that was moved away is left out, and a text box's second copy, which is a fallback.
    """

    def __init__(self, origin: str) -> None:
        self.paragraphs: list[list[str]] = []
        """The pieces of text of those that have any."""
        self._open: list[list[str]] = []
        """Those whose end has not come; a text box is inside a paragraph."""
        self._path: list[str] = []
        """The open elements: Word's by their local names, others in full."""
        self._hidden = 0
        self._origin = origin

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element."""
        namespace, _, local = name.rpartition(" ")
        is_in_run = self._path[-1:] == ["r"]
        self._path.append(local if namespace.endswith(_WORD) else name)
        if len(self._path) > _MAX_DEPTH:
            raise DocumentError(
                f"{self._origin} has elements that are nested more than {_MAX_DEPTH} deep. Save it "
                "as text or leave it out."
            )
        self._hidden += local in _HIDDEN
        if self._path[-1] == "p":
            self._open.append([])
        elif is_in_run and not any(key.endswith(" type") for key in attributes):
            # A break with a type is one of pages or columns.
            self._add(_CHARACTERS.get(self._path[-1], ""))

    def end(self, name: str) -> None:
        """End an element."""
        self._hidden -= name.rpartition(" ")[2] in _HIDDEN
        if self._path.pop() == "p":
            self._open.pop()

    def data(self, text: str) -> None:
        """Take the text of an element."""
        if self._path[-2:] == ["r", "t"]:
            self._add(text)

    def _add(self, text: str) -> None:
        if not text or not self._open or self._hidden:
            return
        parts = self._open[-1]
        if not parts:
            self.paragraphs.append(parts)
        parts.append(text)


def _parse(
    archive: zipfile.ZipFile,
    name: str,
    origin: str,
    start: Callable[[str, Attributes], None],
    end: Callable[[str], None] | None = None,
    data: Callable[[str], None] | None = None,
) -> None:
    """Read a part of the archive; what expat finds in it goes to the functions."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = data
    left = _MAX_XML
    with archive.open(name) as part:
        while piece := part.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise DocumentError(
                    f"{origin} unpacks to more than {_MAX_XML // 2**20} MiB. Split it, save it as "
                    "text or leave it out."
                )
            parser.Parse(piece)
    parser.Parse(b"", True)


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares entities, as no DOCX file does")
