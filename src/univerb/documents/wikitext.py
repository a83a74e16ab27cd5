"""WikiText's files (`wiki.train.tokens`): their articles, and three forms of the text.

docs/method.md, Protocols: WikiText-103.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

WikiTextForm = Literal["raw", "cog", "natural"]
"""As it is; with CoG's replacements; or de-tokenised, without paragraphs that lack words."""

_TITLE = re.compile(r"= ([^=].*?) =")
_HEADING = "="
UNKNOWN = "<unk>"
"""What stands for a word that was removed."""
_COG = ((" @-@ ", "-"), (" @,@ ", ", "), (" @.@ ", "."), (UNKNOWN, "<|endoftext|>"))


def wikitext_articles(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield title and paragraphs of each article; text before the first title has the title ''."""
    title, paragraphs = "", list[str]()
    for line, new_title in _with_titles(lines):
        if new_title:
            if title or paragraphs:
                yield title, paragraphs
            title, paragraphs = new_title, []
        elif line and not line.startswith(_HEADING):
            paragraphs.append(line)
    if title or paragraphs:
        yield title, paragraphs


def article_offsets(lines: Iterable[bytes]) -> Iterator[int]:
    """Yield where articles begin in a file, in bytes; the first offset is 0."""
    yield 0
    # Latin-1 keeps one character for each byte, and a title's marks are ASCII.
    sizes, begin = list[int](), 0

    def decoded() -> Iterator[str]:
        for line in lines:
            sizes.append(len(line))
            yield line.decode("latin-1")

    for _, title in _with_titles(decoded()):
        if title and begin:
            yield begin
        begin += sizes.pop(0)


def article_text(paragraphs: Iterable[str], form: WikiTextForm) -> str:
    """Return the text of an article, a paragraph on each line; it may be empty."""
    if form == "cog":
        paragraphs = map(cog_text, paragraphs)
    elif form == "natural":
        paragraphs = (detokenised(text) for text in paragraphs if UNKNOWN not in text)
    return "\n".join(paragraphs)


def cog_text(text: str) -> str:
    """Return a paragraph as CoG has it, its comma within numbers followed by a space, too."""
    for mark, replacement in _COG:
        text = text.replace(mark, replacement)
    return text


def detokenised(text: str) -> str:
    """Return WikiText's tokens as the text that they were made of, but for quotes' sides."""
    text = re.sub(r" @([-,.])@ ", r"\1", text.strip())
    text = re.sub(r'(?<!\S)" (.*?) "(?!\S)', r'"\1"', text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m)?)(?= |$)", r"\1", text)
    return re.sub(r" +([.,;:!?%)\]])", r"\1", text).strip()


def _with_titles(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each line, stripped, and the title that it is, if it is one between blank lines.

    A formula may begin and end with the same marks, but it stands in the middle of a text.
    """
    before, line = "", None
    for after in chain(lines, [""]):
        after = after.strip()
        if line is not None:
            match = _TITLE.fullmatch(line) if not before and not after else None
            yield line, match[1] if match else ""
            before = line
        line = after
