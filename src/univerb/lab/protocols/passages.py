"""Texts cut after their first tokens: what systems go on from, and how the text goes on (METHOD D).

Passages come in an order that does not depend on how many are taken, so that a longer run goes on
where a shorter one stopped.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from univerb.documents.chunks import chunked
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.tokenizer import Tokenizer

PREFIX = 32
"""Tokens of a passage that are given."""
WIKITEXT, NATURAL, LAWMT, ACTS = "wikitext", "wikitext-natural", "lawmt", "acts"
_ACTS_FILE = "eurlex.jsonl"
_HEADING = " ="
_UNKNOWN = "<unk>"
_WORDS = 256
"""Of a passage of an act: more than 160 tokens."""
_FROM_AN_ACT = 4


@dataclass(frozen=True, slots=True)
class Passage:
    """The tokens of a text, cut in two."""

    name: str
    prefix: tuple[int, ...]
    reference: tuple[int, ...]
    """All that follows."""


class Named(NamedTuple):
    """A text, and what to call it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class TestSet:
    """Where passages are taken from."""

    __test__ = False
    """Not a test, whatever pytest thinks of its name."""

    about: str
    """As tables name it."""
    file: str
    """Below the data."""
    corpus: str
    """The corpus that phrases come from: wiki or law."""
    read: Callable[[Path], Iterable[Named]]
    k: int = 32
    """Chunks that the paper retrieves for a prefix."""


def wikitext_paragraphs(path: Path) -> Iterator[Named]:
    """Yield the paragraphs of a WikiText file as they are: spaced, with `@-@` and `<unk>`."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip() and not line.startswith(_HEADING):
            yield Named(f"line {number}", line.strip())


def natural_paragraphs(path: Path) -> Iterator[Named]:
    """Yield the paragraphs of a WikiText file as natural text, but for those with removed words."""
    for name, text in wikitext_paragraphs(path):
        if _UNKNOWN not in text:
            yield Named(name, detokenised(text))


def detokenised(text: str) -> str:
    """Return WikiText's tokens as the text that they were made of, but for quotes' sides."""
    text = re.sub(r" @([-,.])@ ", r"\1", text.strip())
    text = re.sub(r'(?<!\S)" (.*?) "(?!\S)', r'"\1"', text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m)?)(?= |$)", r"\1", text)
    return re.sub(r" +([.,;:!?%)\]])", r"\1", text).strip()


def law_lines(path: Path) -> Iterator[Named]:
    """Yield the lines of LawMT by their numbers."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield Named(str(number), line.strip())


def act_passages(path: Path) -> Iterator[Named]:
    """Yield passages, some of each act that is kept out of indexes; tables of numbers are no text.

    Args:
        path: The acts.

    Yields:
        Whole sentences of 256 words at most.
    """
    for act in read_documents(path):
        if is_kept_out(act.name):
            chunks = [own for own in chunked(act, _WORDS) if _is_prose(own.text)]
            step = max(len(chunks) // _FROM_AN_ACT, 1)
            for chunk in chunks[::step][:_FROM_AN_ACT]:
                yield Named(f"{act.name} {chunk.start}", " ".join(chunk.text.split()))


def is_kept_out(name: str) -> bool:
    """Tell of a document's name whether it is an act that is kept out of indexes: one in ten."""
    file, _, act = Path(name).name.partition("#")
    if not file.startswith(_ACTS_FILE):
        return False
    return int(hashlib.sha256(f"{file}#{act}".encode()).hexdigest()[:8], 16) % 10 == 0


def _is_prose(text: str) -> bool:
    letters = sum(letter.isalpha() or letter.isspace() for letter in text)
    return letters > 0.85 * len(text)


TEST_SETS = {
    WIKITEXT: TestSet(
        "wikitext-103 test", "wikitext103/wiki.test.tokens", "wiki", wikitext_paragraphs
    ),
    NATURAL: TestSet(
        "wikitext-103 test, de-tokenised",
        "wikitext103/wiki.test.tokens",
        "wiki",
        natural_paragraphs,
    ),
    LAWMT: TestSet("lawmt test", "law/lawmt.test.en", "law", law_lines, k=512),
    ACTS: TestSet(
        "EUR-Lex acts kept out of the index", "law/eurlex.jsonl.gz", "law", act_passages, k=512
    ),
}


def read_passages(
    name: str, data: Path | None, tokenizer: Tokenizer, limit: int, prefix: int = PREFIX
) -> list[Passage]:
    """Read passages that go on after their prefix.

    Args:
        name: One of `TEST_SETS`.
        data: The folder with the data.
        tokenizer: Makes the tokens.
        limit: At most so many.
        prefix: Tokens that are given.

    Returns:
        The passages: those of a smaller limit are the first of a larger one.

    Raises:
        OptionError: If there is no such set, or a number is out of its range.
        DocumentError: If its file is missing, or has no text that is long enough.
    """
    if name not in TEST_SETS:
        raise OptionError(f"there is no test set {name!r}. {did_you_mean(name, TEST_SETS)}")
    if limit < 1 or prefix < 1:
        raise OptionError(f"limit is {limit} and prefix is {prefix}; give 1 or more.")
    own = TEST_SETS[name]
    if data is None or not (data / own.file).is_file():
        raise DocumentError(
            f"test set {name!r} needs {own.file!r} in the folder with the data. Name that folder "
            "with --data or UNIVERB_DATA."
        )
    texts = sorted(own.read(data / own.file), key=_drawn)
    found = (_cut(text, tokenizer, prefix) for text in texts)
    passages = [passage for passage, _ in zip(filter(None, found), range(limit), strict=False)]
    if not passages:
        raise DocumentError(f"{own.file!r} has no text of more than {prefix} tokens. Give another.")
    return passages


def _drawn(text: Named) -> str:
    """Return what puts texts into an order that looks random, and is always the same."""
    return hashlib.sha256(f"{text.name}\n{text.text}".encode()).hexdigest()


def _cut(text: Named, tokenizer: Tokenizer, prefix: int) -> Passage | None:
    ids = tokenizer.encode(text.text).ids
    if len(ids) <= prefix:
        return None
    return Passage(text.name, tuple(ids[:prefix]), tuple(ids[prefix:]))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
