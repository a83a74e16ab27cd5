"""Counting n-grams: what a Counter finds, however the work is split."""

import functools
from collections import Counter
from typing import NamedTuple

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import mine_phrases
from univerb.errors import OptionError
from univerb.phrase import Document
from univerb.phrases import mining
from univerb.phrases.mining import NgramCounts, count_ngrams, top_ngrams
from univerb.phrases.ngrams import ngrams
from univerb.phrases.tokenized import TokenArrays, tokenize_lines
from univerb.tokenizer import Tokenizer

HUGE = 2**30
SIZES = st.tuples(st.integers(2, 5), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))


class Case(NamedTuple):
    """A sequence with its flags."""

    symbols: list[int]
    may_start: list[bool]
    may_end: list[bool]
    is_content: list[bool]


def cases(symbols: st.SearchStrategy[int], longest: int = 40) -> st.SearchStrategy[Case]:
    rows = st.lists(st.tuples(symbols, *[st.booleans()] * 3), max_size=longest)
    return rows.map(lambda found: Case(*([row[i] for row in found] for i in range(4))))


def counted(case: Case, sizes: tuple[int, int], min_count: int, flags: bool) -> dict:
    """Count by looking at every window: how often, and where first."""
    counts: Counter[tuple[int, ...]] = Counter()
    first: dict[tuple[int, ...], int] = {}
    for size in range(sizes[0], sizes[1] + 1):
        for start in range(len(case.symbols) - size + 1):
            window = tuple(case.symbols[start : start + size])
            end = start + size
            may = (
                case.may_start[start] and case.may_end[end - 1] and any(case.is_content[start:end])
            )
            if (may or not flags) and -1 not in window:
                counts[window] += 1
                first.setdefault(window, start)
    return {key: (first[key], count) for key, count in counts.items() if count >= min_count}


def mined(case: Case, sizes: tuple[int, int], min_count: int, flags: bool) -> dict:
    symbols = numpy.array(case.symbols, dtype=numpy.int32)
    given = [numpy.array(column, dtype=bool) for column in case[1:]] if flags else []
    found = count_ngrams(symbols, sizes, min_count, *given)
    rows = list(zip(*(column.tolist() for column in found), strict=True))
    result = {tuple(case.symbols[a : a + n]): (a, count) for a, n, count in rows}
    assert len(result) == len(rows)
    return result


class TestCount:
    @given(cases(st.integers(-1, 3)), SIZES, st.integers(1, 4), st.booleans())
    @settings(max_examples=400)
    @example(Case([], [], [], []), (2, 8), 1, True)
    @example(Case([1], [True], [True], [True]), (2, 8), 1, True)
    @example(Case([1] * 9, [True] * 9, [True] * 9, [True] * 9), (2, 30), 1, False)
    @example(Case([1, 2, 1, 2], [True] * 4, [True] * 4, [False] * 3 + [True]), (2, 2), 1, True)
    @example(Case([-1] * 9, [True] * 9, [True] * 9, [True] * 9), (2, 3), 1, True)
    def test_equals_a_counter(self, case, sizes, min_count, flags):
        assert mined(case, sizes, min_count, flags) == counted(case, sizes, min_count, flags)

    # Symbols whose highest bits alone differ: none may be lost in a key.
    @given(
        cases(st.sampled_from([-1, 0, 1, HUGE, HUGE + 1, 2**31 - 1])),
        SIZES,
        st.integers(1, 3),
        st.booleans(),
    )
    @settings(max_examples=300)
    @example(Case([5, 7, HUGE + 5, 7], [True] * 4, [True] * 4, [True] * 4), (2, 2), 1, False)
    def test_large_symbols_are_told_apart(self, case, sizes, min_count, flags):
        assert mined(case, sizes, min_count, flags) == counted(case, sizes, min_count, flags)

    # 3 bits for symbols, at most 6 for places: parts of at least 2 places, split at every size.
    @pytest.mark.parametrize("bits", [9, 10, 12])
    @given(cases(st.integers(-1, 5), longest=60), SIZES, st.integers(1, 3), st.booleans())
    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @example(Case([1] * 20 + [2], [True] * 21, [True] * 21, [True] * 21), (2, 4), 1, True)
    def test_parts_make_the_whole(self, monkeypatch, bits, case, sizes, min_count, flags):
        monkeypatch.setattr(mining, "_KEY_BITS", bits)
        assert mined(case, sizes, min_count, flags) == counted(case, sizes, min_count, flags)

    @pytest.mark.parametrize(("sizes", "least"), [((1, 3), 1), ((3, 2), 1), ((2, 3), 0)])
    def test_sizes_and_counts_that_cannot_be_are_refused(self, sizes, least):
        with pytest.raises(OptionError, match="at least 2 symbols"):
            count_ngrams(numpy.zeros(3, numpy.int32), sizes, least)


class TestOrder:
    @given(
        st.lists(st.tuples(st.integers(0, 9), st.integers(2, 4), st.integers(1, 3)), unique=True),
        st.none() | st.integers(0, 9),
        st.booleans(),
    )
    def test_the_largest_come_first_then_the_first_then_the_longest(self, rows, cap, by_gain):
        columns = numpy.array(rows, dtype=numpy.int64).reshape(-1, 3).T
        given = NgramCounts(*columns)
        gain = (given.size - 1) * given.counts if by_gain else None
        found = top_ngrams(given, cap, gain)

        def rank(row):
            start, size, count = row
            return -(size - 1) * count if by_gain else -count, start, -size

        expected = sorted(rows, key=rank)[:cap]
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


WORDS = ["the", " tenant", " shall", " pay", " 12", "7", " 3.5", ", ", "(", "é", "e\u0301", "\n"]
PROSE = st.lists(st.sampled_from([*WORDS, " ", "<|endoftext|>", "\ufffd", "😀"]), max_size=60)


class TestPhrasesOfACorpus:
    @given(PROSE, st.integers(1, 3), st.sampled_from([(2, 8), (3, 4), (2, 2)]))
    @settings(max_examples=200)
    @example([TEXT], 2, (2, 8))
    @example(["12 7 12 7 ", "the 12 the 12"], 2, (2, 8))
    def test_are_the_ngrams_of_its_lines_that_are_frequent(self, pieces, min_count, sizes):
        text = "".join(pieces)
        document = Document(f"the\n{text}", "lines")
        run = tokenize_lines(document, tokenizer()).arrays()
        found = mine_phrases(run, CorpusSettings(sizes=sizes, min_count=min_count))
        begins = [0, *found.ends.tolist()]
        keys = [tuple(found.tokens[a:b].tolist()) for a, b in zip(begins, begins[1:], strict=False)]
        # There are too few to leave out what occurs twice.
        least = min(min_count, 2)
        phrases = [p for p in ngrams(sizes)(document, tokenizer()) if len(p.sources) >= least]
        assert keys == sorted(p.ids for p in phrases)
        counts = {p.ids: len(p.sources) for p in phrases}
        assert dict(zip(keys, found.counts.tolist(), strict=True)) == counts

    def test_those_that_save_the_most_are_kept(self):
        run = tokenize_lines(Document("\n".join([TEXT] * 2), "twice"), tokenizer()).arrays()
        every = mine_phrases(run, CorpusSettings())
        few = mine_phrases(run, CorpusSettings(max_phrases=5))

        def saved(found):
            sizes = numpy.diff(found.ends, prepend=0)
            return sorted(((sizes - 1) * found.counts).tolist())

        assert saved(few) == saved(every)[-5:]

    def test_of_nothing_there_are_none(self):
        empty = TokenArrays(numpy.empty(0, numpy.int32), numpy.empty(0, numpy.uint8))
        assert len(mine_phrases(empty, CorpusSettings())) == 0
        assert len(mine_phrases(empty, CorpusSettings(max_phrases=0))) == 0
