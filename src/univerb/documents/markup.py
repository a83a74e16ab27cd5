"""Plain text of Markdown and HTML, with a blank line between blocks."""

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

_DROPPED = frozenset({"script", "style", "template"})
_IN_HEAD = _DROPPED | {"base", "head", "link", "meta", "noscript", "title"}
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|dir|div|fieldset|"
    "figcaption|figure|footer|form|h[1-6r]|head|header|hgroup|html|legend|li|main|menu|nav|ol|"
    "optgroup|option|p|pre|search|section|select|summary|t[dhr]|table|tbody|textarea|tfoot|thead|"
    "title|ul"
)
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
for _code in ("fence", "code_block"):
    _MARKDOWN.add_render_rule(_code, lambda *_: "")


def markdown_text(source: str) -> str:
    """Convert Markdown (CommonMark, tables, strikethrough) to plain text.

    Headings, paragraphs, list items and table cells become blocks. Code blocks and images are
    left out; embedded HTML is converted, too.
    """
    return html_text(_MARKDOWN.render(source))


def html_text(source: str) -> str:
    """Convert HTML, a page or a fragment, to plain text; it need not be well-formed.

    The title and each block element become blocks. Scripts, styles and templates are left out;
    space is collapsed, except for the line breaks of `<pre>`.
    """
    parser = _TextParser()
    parser.feed(source)
    parser.close()
    parser.end_block()
    return "\n\n".join(parser.blocks)


class _TextParser(HTMLParser):
    """Collects the text of each block element."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._parts: list[str] = []
        self._open: dict[str, int] = {}
        self._in_head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a block or a line."""
        # The head's end tag may be missing: an element that belongs elsewhere ends it, too.
        self._in_head = tag == "head" or (self._in_head and tag in _IN_HEAD)
        if tag in _DROPPED or tag in {"pre", "title"}:
            self._open[tag] = self._open.get(tag, 0) + 1
        if _BLOCK.fullmatch(tag):
            self.end_block()
        elif tag == "br":
            self._parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a block."""
        if self._open.get(tag):
            self._open[tag] -= 1
        if _BLOCK.fullmatch(tag):
            self.end_block()
        self._in_head = self._in_head and tag != "head"

    def handle_data(self, data: str) -> None:
        """Collect text that a browser would show."""
        if any(map(self._open.get, _DROPPED)) or (self._in_head and not self._open.get("title")):
            return
        self._parts.append(data if self._open.get("pre") else data.replace("\n", " "))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read `<![…>` as browsers do, as a comment; the inherited method fails on some."""
        return self.parse_bogus_comment(i, report)

    def end_block(self) -> None:
        """Close the current block, if it has text."""
        block = _block("".join(self._parts))
        if block:
            self.blocks.append(block)
        self._parts.clear()


def _block(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.split("\n")).strip()
