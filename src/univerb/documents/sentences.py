"""Sentence splitting, by fast rules or by a library."""

import re
from collections.abc import Callable, Iterable, Iterator

from univerb.errors import MissingExtra, OptionError, did_you_mean

Splitter = Callable[[str], Iterable[tuple[int, int]]]
"""Returns the character spans of a text's sentences, in order."""

# Every repeat is possessive and nothing after it can fail, so that the search is linear. It begins
# with a character set, which the regex engine finds several times as fast.
_END = re.compile(r"[.!?。！？\n\r](?:(?<=[\n\r])|[.!?。！？\"'”’»)\]]*+)\s*+")
_CLAUSE_END = re.compile(r"[,.]++\s*+")
_OPENERS = frozenset("\"'“‘«([")
# Words whose full stop does not end a sentence; the second kind only before a number.
_ABBREVIATION = re.compile(
    r"(?i)mr|mrs|ms|dr|prof|rev|hon|st|jr|sr|vs|cf|e\.g|i\.e|viz|approx",
)
_NUMBERED = re.compile(r"(?i)arts?|nos?|nr|sect?|figs?|vol|paras?|ch|cl|reg|pp?")
_TAIL = 12  # Longer than any of them.
_WRAPPED = 40  # A longer line that does not end a sentence continues on the next one.


def split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Find sentences by final punctuation and line ends, in linear time.

    Lines that an editor wrapped count as one. Spans have no surrounding space.
    """
    return _between(text, _sentence_ends(text))


def split_clauses(text: str) -> Iterator[tuple[int, int]]:
    """Find spans that end with a comma or a full stop (docs/method.md, Protocols: LawMT)."""
    ends = (m.end() for m in _CLAUSE_END.finditer(text) if m.group()[-1].isspace())
    return _between(text, ends)


def splitter_named(name: str) -> Splitter:
    """Return a splitter by name: "rules", "clauses" or "pysbd"."""
    makers: dict[str, Callable[[], Splitter]] = {
        "rules": lambda: split_sentences,
        "clauses": lambda: split_clauses,
        "pysbd": _pysbd,
    }
    if name not in makers:
        raise OptionError(f"no sentence splitter is called {name!r}. {did_you_mean(name, makers)}")
    return makers[name]()


def _between(text: str, cuts: Iterable[int]) -> Iterator[tuple[int, int]]:
    start = len(text) - len(text.lstrip())
    for cut in (*cuts, len(text)):
        # A cut is behind space: only the very first sentence can begin with it.
        end = start + len(text[start:cut].rstrip())
        if start < end:
            yield start, end
            start = cut


def _sentence_ends(text: str) -> Iterator[int]:
    start = line = 0
    for match in _END.finditer(text):
        mark = match.group()
        stop, after = match.span()
        if after == len(text):
            return
        breaks = mark.count("\n") or mark.count("\r")
        if breaks > 1:
            is_end = True
        elif mark[0] in "\n\r":
            is_end = not _is_wrapped(text, line, stop, after)
        else:
            is_end = _is_final(mark, text[after], bool(breaks)) and not (
                mark.rstrip() == "."
                and _is_abbreviated(text[max(start, stop - _TAIL) : stop], text[after])
            )
        if is_end:
            yield after
            start = after
        if breaks:
            line = after


def _is_final(mark: str, following: str, is_line_end: bool) -> bool:
    """Tell whether a mark and its space end a sentence, by what follows."""
    if mark[0] in "。！？" or is_line_end:
        return True
    if not mark[-1].isspace():
        return False
    return following in _OPENERS or (following.isalnum() and not following.islower())


def _is_abbreviated(tail: str, following: str) -> bool:
    """Tell whether the full stop behind the tail of a sentence belongs to its last word."""
    if not tail or tail[-1].isspace():
        return False
    word = tail.split()[-1].lstrip("(\"'[")
    if len(word) == 1 and word.isupper():
        return True  # An initial.
    if word.isdigit() and len(word) == len(tail) < _TAIL:
        return True  # The number of a list item.
    if following.isdigit() and _NUMBERED.fullmatch(word):
        return True
    return _ABBREVIATION.fullmatch(word) is not None


def _is_wrapped(text: str, line: int, stop: int, after: int) -> bool:
    if stop - line <= _WRAPPED or text[stop - 1] in " :;":
        return False
    return text[after].isalnum() or text[after] in "_(\"'"


def _pysbd() -> Splitter:
    try:
        import pysbd
    except ImportError:
        raise MissingExtra("pysbd", "parse") from None

    def split(text: str) -> Iterator[tuple[int, int]]:
        # One per text, since it has state. Blocks, since its time is quadratic.
        segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)
        for start, end in _blocks(text):
            for span in segmenter.segment(text[start:end]):
                yield start + span.start, start + span.end

    return split


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Cut a text into blocks of at most 2,000 characters, between paragraphs if possible."""
    start = 0
    while start < len(text):
        end = start + 2_000
        if end < len(text):
            cuts = (text.rfind(mark, start + 1, end) for mark in ("\n\n", "\n", ". ", " "))
            end = next((cut + 1 for cut in cuts if cut > 0), end)
        yield start, min(end, len(text))
        start = end
