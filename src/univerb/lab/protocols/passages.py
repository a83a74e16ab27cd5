"""Test sets: passages cut into a prefix, which systems continue, and its reference.

Passages have an order that does not depend on their number, so that a longer run continues where a
shorter one stopped (docs/method.md).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from univerb.documents.chunks import chunked
from univerb.documents.read import read_documents
from univerb.documents.wikitext import UNKNOWN, cog_text, detokenised
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.tokenizer import Tokenizer

PREFIX = 32
"""Tokens of a prefix."""
COG, RAW, NATURAL = "wikitext-cog", "wikitext", "wikitext-natural"
LAWMT, ACTS = "lawmt", "acts"
_ACTS_FILE = "eurlex.jsonl"
_ACT_WORDS = 256
"""Words of a passage of an act: more than 160 tokens."""
_PASSAGES_PER_ACT = 4
_HEADING = " ="


@dataclass(frozen=True, slots=True)
class Passage:
    """The tokens of a text, cut in two."""

    name: str
    prefix: tuple[int, ...]
    reference: tuple[int, ...]
    """All that follows."""


class NamedText(NamedTuple):
    """A text and its name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class TestSet:
    """Where passages are read from."""

    __test__ = False
    """Not a test, whatever pytest thinks of its name."""

    about: str
    """As tables name it."""
    file: str
    """Below the data."""
    corpus: str
    """The corpus that phrases come from: wiki or law."""
    read: Callable[[Path], Iterable[NamedText]]
    form: Callable[[str], str | None] = str
    """Returns a text as systems see it; None leaves it out."""
    k: int = 32
    """Number of chunks that the paper retrieves for a prefix."""


def wikitext_paragraphs(path: Path) -> Iterator[NamedText]:
    """Yield the paragraphs of a WikiText file as they are: spaced, with `@-@` and `<unk>`."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip() and not line.startswith(_HEADING):
            yield NamedText(f"line {number}", line.strip())


def natural_form(text: str) -> str | None:
    """Return WikiText's tokens as natural text; None for a paragraph with removed words."""
    return None if UNKNOWN in text else detokenised(text)


def law_lines(path: Path) -> Iterator[NamedText]:
    """Yield the lines of LawMT by their numbers."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield NamedText(str(number), line.strip())


def act_passages(path: Path) -> Iterator[NamedText]:
    """Yield some passages of whole sentences of each held-out act, without tables of numbers."""
    for act in read_documents(path):
        if is_held_out(act.name):
            chunks = [chunk for chunk in chunked(act, _ACT_WORDS) if is_prose(chunk.text)]
            step = max(len(chunks) // _PASSAGES_PER_ACT, 1)
            for chunk in chunks[::step][:_PASSAGES_PER_ACT]:
                yield NamedText(f"{act.name} {chunk.start}", " ".join(chunk.text.split()))


def is_held_out(name: str) -> bool:
    """Tell by a document's name whether it is an act that no corpus may have: one in ten."""
    file, _, act = Path(name).name.partition("#")
    if not file.startswith(_ACTS_FILE):
        return False
    return int(hashlib.sha256(f"{file}#{act}".encode()).hexdigest()[:8], 16) % 10 == 0


def is_prose(text: str) -> bool:
    """Tell whether a text is no table, list of numbers or formula."""
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return letters > 0.85 * len(text)


def _wikitext(about: str, form: Callable[[str], str | None]) -> TestSet:
    file = "wikitext103/wiki.test.tokens"
    return TestSet(f"wikitext-103 test{about}", file, "wiki", wikitext_paragraphs, form)


TEST_SETS = {
    COG: _wikitext("", cog_text),
    RAW: _wikitext(", raw tokens", str),
    NATURAL: _wikitext(", de-tokenised", natural_form),
    LAWMT: TestSet("lawmt test", "law/lawmt.test.en", "law", law_lines, k=512),
    ACTS: TestSet(
        "EUR-Lex acts held out of the corpus", "law/eurlex.jsonl.gz", "law", act_passages, k=512
    ),
}


class PassageSet(NamedTuple):
    """Passages of a test set, and how many it has."""

    passages: list[Passage]
    available: int
    """Texts that are longer than the prefix."""
    left_out: int
    """Texts that this form of the test set leaves out, whatever their length."""
    total: int
    """Texts in the file."""

    def __str__(self) -> str:
        short = self.total - self.left_out - self.available
        return (
            f"{len(self.passages):,} of {self.available:,}; the file has {self.total:,} texts, of "
            f"which {self.left_out:,} are left out of this form and {short:,} are not longer than "
            "the prefix"
        )


def read_passages(
    name: str, data: Path | None, tokenizer: Tokenizer, limit: int, prefix: int = PREFIX
) -> PassageSet:
    """Read at most `limit` passages of one of `TEST_SETS` that are longer than their prefix.

    Passages of a smaller limit are the first of a larger one. Raises OptionError if there is no
    such set or a number is out of its range, DocumentError if its file in the folder with the data
    is missing or has no text that is long enough.
    """
    if name not in TEST_SETS:
        raise OptionError(f"there is no test set {name!r}. {did_you_mean(name, TEST_SETS)}")
    if limit < 1 or prefix < 1:
        raise OptionError(f"limit is {limit} and prefix is {prefix}; give 1 or more.")
    test_set = TEST_SETS[name]
    if data is None or not (data / test_set.file).is_file():
        raise DocumentError(
            f"test set {name!r} needs {test_set.file!r} in the folder with the data. Name that "
            "folder with --data or UNIVERB_DATA; `univerb lab data` says where to get the file."
        )
    texts = [(text.name, test_set.form(text.text)) for text in test_set.read(data / test_set.file)]
    formed = [NamedText(label, text) for label, text in texts if text is not None]
    passages = list(_cut(sorted(formed, key=_sort_key), tokenizer, prefix))
    if not passages:
        raise DocumentError(
            f"{test_set.file!r} has no text of more than {prefix} tokens. Give another."
        )
    left_out = len(texts) - len(formed)
    return PassageSet(passages[:limit], len(passages), left_out, len(texts))


def _sort_key(text: NamedText) -> str:
    """Return what puts texts into an order that looks random, and is always the same."""
    return hashlib.sha256(f"{text.name}\n{text.text}".encode()).hexdigest()


def _cut(texts: Iterable[NamedText], tokenizer: Tokenizer, prefix: int) -> Iterator[Passage]:
    for name, text in texts:
        ids = tokenizer.encode(text).ids
        if len(ids) > prefix:
            yield Passage(name, tuple(ids[:prefix]), tuple(ids[prefix:]))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
