"""Plain text of Markdown and HTML, with a blank line between blocks."""

import re
from collections import Counter
from collections.abc import Mapping

from markdown_it import MarkdownIt

from univerb.errors import DocumentError

# Of open elements: enough for pages that close none of their anchors.
_MAX_DEPTH = 5000
_DROPPED = ("script", "style", "template")
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|dir|div|fieldset|"
    "figcaption|figure|footer|form|h[1-6r]|head|header|hgroup|html|legend|li|main|menu|nav|ol|"
    "optgroup|option|p|pre|search|section|select|summary|t[dhr]|table|tbody|textarea|tfoot|thead|"
    "title|ul"
)
_PARAGRAPH_END = re.compile(r"(?i)</p\s*+>")
_MADE_PARAGRAPH = re.compile(r"(?i)(</p\s*+>)<p>")
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
for _code in ("fence", "code_block"):
    _MARKDOWN.add_render_rule(_code, lambda *_: "")


def markdown_text(source: str, origin: str = "the text") -> str:
    """Convert Markdown (CommonMark, tables, strikethrough) to plain text.

    Headings, paragraphs, list items and table cells become blocks. Code blocks and images are
    left out; embedded HTML is converted, too. `origin` is its name in errors.
    """
    return html_text(_MARKDOWN.render(source), origin)


def html_text(source: str, origin: str = "the text") -> str:
    """Convert HTML, a page or a fragment, to plain text; it need not be well-formed.

    The title and each block element become blocks. Scripts, styles and templates are left out;
    space is collapsed, except for the line breaks of `<pre>`. A DocumentError, which names it
    `origin`, if elements are nested too deep.
    """
    from lxml import etree

    collected = _TextTarget(origin)
    # libxml2 tells the target what it reads, in linear time, and builds no tree. Without
    # `huge_tree` it would end some texts early instead of refusing them.
    parser = etree.HTMLParser(target=collected, encoding="utf-8", huge_tree=True)
    # An end tag without its start: to a browser an empty paragraph, to libxml2 nothing.
    parser.feed(_PARAGRAPH_END.sub(r"\g<0><p>", source).encode())
    parser.close()
    return "\n\n".join(collected.blocks)


class _TextTarget:
    """Collects the text of each block element."""

    def __init__(self, origin: str) -> None:
        self.blocks: list[str] = []
        self._parts: list[str] = []
        self._open: Counter[str] = Counter()
        self._depth = 0
        self._origin = origin

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a block or a line."""
        self._open[tag] += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DocumentError(
                f"{self._origin} has elements that are nested more than {_MAX_DEPTH} deep. Convert "
                "it to text or leave it out."
            )
        if _BLOCK.fullmatch(tag):
            self._end_block()
        elif tag == "br":
            self._parts.append("\n")

    def end(self, tag: str) -> None:
        """End a block."""
        self._open[tag] -= 1
        self._depth -= 1
        if _BLOCK.fullmatch(tag):
            self._end_block()

    def data(self, text: str) -> None:
        """Collect text that a browser would show."""
        is_open = self._open
        if any(is_open[tag] for tag in _DROPPED) or (is_open["head"] and not is_open["title"]):
            return
        if is_open["title"] or is_open["textarea"]:
            # Tags are text there, also the one that was added for libxml2.
            text = _MADE_PARAGRAPH.sub(r"\1", text)
        self._parts.append(text if is_open["pre"] else text.replace("\n", " "))

    def close(self) -> None:
        """End the last block."""
        self._end_block()

    def _end_block(self) -> None:
        block = _block("".join(self._parts))
        if block:
            self.blocks.append(block)
        self._parts.clear()


def _block(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.split("\n")).strip()
