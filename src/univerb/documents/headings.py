"""Headings: short lines that stand alone and say what the text below them is about."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

# A text may begin with a byte order mark, and each of its lines end with a carriage return.
_ALONE = re.compile(r"(?:\A\ufeff?+|\n[ \t\r]*\n)[ \t#]*([^\s#][^\n]{0,119})(?=\n[ \t\r]*\n)")
_FINAL = re.compile(r"[.!?…。！？:;,][\"'”’»)]*\s*\Z")
_LONGEST = 15
"""Words."""
_MOST_IN_A_ROW = 3
"""Title, chapter, section."""


class Heading(NamedTuple):
    """A heading, and where it stands."""

    start: int
    text: str


@lru_cache(maxsize=64)
def find_headings(text: str) -> Sequence[Heading]:
    """Find the lines between blank lines that have few words and no final punctuation.

    Many of them in a row are the items of a list.
    """
    runs: list[list[Heading]] = []
    last = -1
    for match in _ALONE.finditer(text):
        line = " ".join(match[1].split())
        if len(line.split()) > _LONGEST or _FINAL.search(line):
            continue
        if last < 0 or text[last : match.start(1)].strip(" \t\r\n#"):
            runs.append([])
        runs[-1].append(Heading(match.start(1), line))
        last = match.end(1)
    return tuple(heading for run in runs if len(run) <= _MOST_IN_A_ROW for heading in run)


def heading_above(text: str, position: int) -> str:
    """Return the last heading above a position of a text; empty if there is none."""
    headings = find_headings(text)
    above = bisect_right(headings, position, key=lambda heading: heading.start)
    # The position itself may be in a heading, which is then above nothing.
    if above and headings[above - 1].start == position:
        above -= 1
    return headings[above - 1].text if above else ""


def leading_heading(text: str) -> str:
    """Return the heading that a text begins with, its title; empty if it begins otherwise."""
    begin = len(text) - len(text.lstrip("\ufeff \t\r\n#"))
    headings = find_headings(text)
    return headings[0].text if headings and headings[0].start == begin else ""
