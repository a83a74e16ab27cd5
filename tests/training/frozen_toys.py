"""Toy texts for the frozen regime: tokens with random flags, and what follows from them, slowly."""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy
from hypothesis import strategies as st

from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.phrases.tokenized import BREAK, CONTENT, DIGIT, END, LETTER, START, TokenArrays
from univerb.training.frozen.pools import CandidateTree, Stretch, stretch
from univerb.training.frozen.windows import windows

SIZES = (2, 4)
WORD = START | END | LETTER | CONTENT
Key = tuple[int, ...]

# Few tokens, so that phrases come again; most begin and end words. Token 0 is as good as any.
TOKENS = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, BREAK]),
    st.sampled_from([WORD] * 6 + [START | LETTER, END, DIGIT | WORD & ~LETTER, WORD & ~CONTENT]),
)


def texts(least: int, most: int) -> st.SearchStrategy[TokenArrays]:
    return st.lists(TOKENS, min_size=least, max_size=most).map(text_of)


def text_of(tokens: list[tuple[int, int]]) -> TokenArrays:
    ids = numpy.array([token for token, _ in tokens], dtype=numpy.int32)
    flags = numpy.array([flag for _, flag in tokens], dtype=numpy.uint8)
    # As everywhere, a break follows a text.
    ids, flags = numpy.append(ids, numpy.int32(BREAK)), numpy.append(flags, numpy.uint8(0))
    return TokenArrays(ids, numpy.where(ids == BREAK, 0, flags).astype(numpy.uint8))


def word_starts(text: TokenArrays, begin: int, end: int) -> list[int]:
    return [at for at in range(begin, end) if text.flags[at] & START]


def phrases_at(text: TokenArrays, begin: int, end: int, sizes=SIZES) -> dict[int, list[Key]]:
    """All phrases by the place at which they begin."""
    found = {}
    for start in word_starts(text, begin, end):
        found[start] = []
        for size in range(sizes[0], sizes[1] + 1):
            key = tuple(text.ids[start : start + size].tolist())
            flags = text.flags[start : start + size].tolist()
            seen = int(numpy.bitwise_or.reduce(flags))
            is_number = seen & DIGIT and not seen & LETTER
            is_whole = len(key) == size and start + size <= end and BREAK not in key
            if is_whole and flags[-1] & END and seen & CONTENT and not is_number:
                found[start].append(key)
    return found


def all_phrases(*parts: dict[int, list[Key]]) -> Counter[Key]:
    """Every phrase, and how often it stands there."""
    return Counter(key for part in parts for keys in part.values() for key in keys)


def parent_of(key: Key, keys: Collection[Key]) -> Key:
    """The longest other phrase that a phrase begins with, or its first token."""
    return next((key[:n] for n in range(len(key) - 1, 1, -1) if key[:n] in keys), key[:1])


def overlap_of(key: Key, before: list[int], keys: Collection[Key]) -> int:
    sizes = range(1, min(MAX_OVERLAP, len(before)) + 1)
    return max((n for n in sizes if (*before[-n:], *key) in keys), default=0)


def evidence_of(some: list[Key], before: list[int], keys: Counter[Key]) -> Evidence:
    """What documents with these phrases say of some of them after a text."""
    overlaps = [overlap_of(key, before, keys) for key in some]
    longer = [(*before[len(before) - n :], *key) for n, key in zip(overlaps, some, strict=True)]
    counts = [keys[key] if n else 1 for n, key in zip(overlaps, longer, strict=True)]
    columns = [keys[key] for key in some], overlaps, counts
    return Evidence(*(numpy.array(column, dtype=numpy.int64) for column in columns))


def keys_of(pool: CandidateTree) -> list[Key]:
    return [tuple(row[:length]) for row, length in zip(pool.ids.tolist(), pool.length, strict=True)]


class Toy(NamedTuple):
    """A text of which a part is to be written with the phrases of another one."""

    text: TokenArrays
    begin: int
    end: int
    pool: CandidateTree
    stretch: Stretch
    keys: Counter[Key]


def make_toy(text: TokenArrays, other: TokenArrays, begin: int, options=None, seed=0) -> Toy:
    end = len(text.ids) - 1
    pool = CandidateTree.of(windows(other, SIZES))
    made = stretch(
        pool,
        text.ids,
        windows(text, SIZES, begin, end),
        (begin, end),
        options,
        numpy.random.default_rng(seed),
    )
    keys = all_phrases(phrases_at(other, 0, len(other.ids)))
    return Toy(text, begin, end, pool, made, keys)


def units_at(toy: Toy, start: int) -> list[Key]:
    """The units that the text can go on with: its token, and phrases where a word starts."""
    rest = tuple(toy.text.ids[start : toy.end].tolist())
    units = [rest[:1]]
    if start in word_starts(toy.text, toy.begin, toy.end):
        units += [rest[:n] for n in range(SIZES[0], SIZES[1] + 1) if rest[:n] in toy.keys]
    return list(dict.fromkeys(units))


def ways(toy: Toy, start: int) -> list[list[tuple[int, int]]]:
    """Every way of writing the text from a place on, as units (begin, end)."""
    if start == toy.end:
        return [[]]
    ends = [start + len(unit) for unit in units_at(toy, start)]
    return [[(start, end), *more] for end in ends for more in ways(toy, end)]


def node_children(key: Key, keys: Collection[Key]) -> list[Key]:
    return sorted(other for other in keys if parent_of(other, keys) == key)


def path_to(key: Key, keys: Collection[Key]) -> list[Key]:
    """The nodes from a first token to a phrase, both included."""
    return [key] if len(key) == 1 else [*path_to(parent_of(key, keys), keys), key]
