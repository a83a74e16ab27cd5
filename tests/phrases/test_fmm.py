"""Forward maximum matching, against dictionaries of words and against another library."""

import functools
import gzip
import itertools
import json
import sys
import warnings
from collections import Counter

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import TEXT, data_directory, make_tokenizer
from univerb.errors import MissingExtra, OptionError
from univerb.locations import DEFAULT_MODEL, locate
from univerb.phrase import Document
from univerb.phrases import fmm as fmm_module
from univerb.phrases.fmm import FMMTable, WordSpans, fmm, words_of
from univerb.phrases.ngrams import UnspacedTextWarning
from univerb.phrases.tokenized import (
    BREAK,
    CONTENT,
    DIGIT,
    END,
    LETTER,
    START,
    TokenArrays,
    tokenize_lines,
)
from univerb.tokenizer import Tokenizer

Word = tuple[int, ...] | None
KINDS = [LETTER, LETTER, DIGIT, 0]
"""What the tokens 0, 1, 2 and 3 are made of; 3 is punctuation."""


def make_run(data: bytes) -> TokenArrays:
    """Read a byte as a token: two bits say which, others where phrases may be."""
    rows = [(BREAK, 0) if byte >= 232 else (byte & 3, _flags(byte)) for byte in data]
    ids, flags = zip(*rows, strict=True) if rows else ((), ())
    return TokenArrays(numpy.array(ids, numpy.int32), numpy.array(flags, numpy.uint8))


def _flags(byte: int) -> int:
    # Most tokens begin and end words, as in a text.
    ends = START * (byte & 12 > 0) | END * (byte & 48 > 0)
    return KINDS[byte & 3] | ends | CONTENT * (byte & 64 == 0)


def slow_words(run: TokenArrays) -> list[tuple[int, int, Word]]:
    """Return first token, last token, and the ids of what is a word."""
    ids, flags = run.ids.tolist(), run.flags.tolist()
    begins = [i for i, (one, own) in enumerate(zip(ids, flags, strict=True)) if is_new(one, own)]
    found: list[tuple[int, int, Word]] = []
    for begin, end in itertools.pairwise([*begins, len(ids)]):
        has_text = any(own & (LETTER | DIGIT) for own in flags[begin:end])
        is_word = ids[begin] != BREAK and has_text and flags[end - 1] & END
        found.append((begin, end - 1, tuple(ids[begin:end]) if is_word else None))
    return found


def is_new(token: int, flags: int) -> bool:
    return bool(token == BREAK or flags & START)


def slow_table(run: TokenArrays, sizes: tuple[int, int], min_count: int, cap: int | None):
    spans = slow_words(run)
    words = [word for _, _, word in spans]
    says = [bool((run.flags[first : last + 1] & CONTENT).any()) for first, last, _ in spans]
    counts: Counter[tuple[Word, ...]] = Counter()
    first: dict[tuple[Word, ...], int] = {}
    for start in range(len(words)):
        for size in range(sizes[0], sizes[1] + 1):
            ngram = tuple(words[start : start + size])
            if len(ngram) == size and None not in ngram and any(says[start : start + size]):
                counts[ngram] += 1
                first.setdefault(ngram, start)
    kept = [ngram for ngram in counts if counts[ngram] >= min_count and has_letter(ngram)]
    kept.sort(key=lambda ngram: (-counts[ngram], first[ngram], -len(ngram)))
    return [(ngram, counts[ngram]) for ngram in kept[:cap]]


def has_letter(ngram: tuple[Word, ...]) -> bool:
    return any(KINDS[token] == LETTER for word in ngram for token in word or ())


def slow_match(run: TokenArrays, table: list[tuple[Word, ...]]) -> list[tuple[int, int, int]]:
    words = slow_words(run)
    numbers = {ngram: number for number, ngram in enumerate(table)}
    longest = max(map(len, table), default=0)
    found, place = [], 0
    while place < len(words):
        for size in range(longest, 0, -1):
            part = words[place : place + size]
            number = numbers.get(tuple(word for _, _, word in part))
            if number is not None and len(part) == size:
                found.append((part[0][0], part[-1][1], number))
                place += size
                break
        else:
            place += 1
    return found


def rows(matches) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in matches), strict=True))


class TestBruteForce:
    @given(
        st.binary(max_size=28),
        st.binary(max_size=16),
        st.integers(2, 3),
        st.integers(0, 3),
        st.integers(1, 3),
        st.none() | st.integers(0, 6),
    )
    @settings(max_examples=800)
    @example(b"", b"", 2, 0, 1, None)
    @example(b"<=<=<=<=", b"<==<=<=", 2, 2, 2, None)
    @example(b"\xff<=\xff<=\xff", b"<\xff=<=", 2, 0, 2, None)
    def test_table_and_matches_are_those_of_a_dictionary(
        self, corpus, text, low, more, min_count, cap
    ):
        run, other = make_run(corpus), make_run(text)
        table = FMMTable.mine(run, (low, low + more), min_count, cap)
        expected = slow_table(run, (low, low + more), min_count, cap)
        keys = [tuple(itertools.chain(*ngram)) for ngram, _ in expected]
        assert [table.ids(number) for number in range(len(table))] == keys
        assert table.counts.tolist() == [count for _, count in expected]
        ngrams = [ngram for ngram, _ in expected]
        for one in (run, other):
            assert rows(table.match(one)) == slow_match(one, ngrams)

    @given(st.binary(max_size=60))
    @settings(max_examples=300)
    def test_words_are_equal_exactly_when_their_tokens_are(self, data):
        run = make_run(data)
        found, slow = words_of(run), slow_words(run)
        assert [found.first.tolist(), found.last.tolist()] == [
            [first for first, _, _ in slow],
            [last for _, last, _ in slow],
        ]
        pairs = set(zip(found.keys.tolist(), (word for _, _, word in slow), strict=True))
        assert len(pairs) == len({key for key, _ in pairs}) == len({word for _, word in pairs})
        assert all((key == 0) == (word is None) for key, word in pairs)


class TestTable:
    def test_an_empty_table_matches_nothing(self):
        table = FMMTable.mine(make_run(b""))
        assert len(table) == 0
        assert table.patterns() == []
        assert rows(table.match(make_run(b"<=<="))) == []

    def test_punctuation_and_bare_numbers_are_no_phrases(self):
        table = mined("the 12 7 rent, the 12 7 rent", 2)
        texts = {tokenizer().decode(table.ids(number)) for number in range(len(table))}
        assert " the 12 7 rent" in texts
        assert " 12 7" not in texts
        assert not any("," in text for text in texts)

    def test_glue_is_no_phrase(self):
        table = mined("rent of the rent of the, of the", 2)
        texts = {tokenizer().decode(table.ids(number)) for number in range(len(table))}
        assert " rent of the" in texts
        assert " of the" not in texts

    def test_a_number_expression_is_one_word(self):
        table = mined("pay 1,500 rent. pay 1,500 rent", 2)
        texts = {tokenizer().decode(table.ids(number)) for number in range(len(table))}
        assert texts == {" pay 1,500", " 1,500 rent", " pay 1,500 rent"}

    @pytest.mark.parametrize("sizes", [(0, 3), (1, 3), (3, 2), (2, 65)])
    def test_sizes_that_cannot_be_are_refused(self, sizes):
        with pytest.raises(OptionError, match=r"sizes (is|are) "):
            FMMTable.mine(make_run(b"<=<="), sizes)

    def test_more_words_than_there_are_characters_are_refused(self, monkeypatch):
        monkeypatch.setattr(fmm_module, "_MAX_WORDS", 1)
        table = FMMTable.mine(make_run(b"<=<="), min_count=1)
        with pytest.raises(OptionError, match="at most 1 can be matched"):
            table.match(make_run(b"<="))

    def test_without_daachorse_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "daachorse", None)
        table = FMMTable.mine(make_run(b"<=<="), min_count=1)
        with pytest.raises(MissingExtra, match="univerb\\[index\\]"):
            table.match(make_run(b"<="))


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def mined(text: str, min_count: int) -> FMMTable:
    return FMMTable.mine(tokenize_lines(Document(text), tokenizer()).arrays(), (2, 16), min_count)


PIECES = ["the", " tenant", " shall", " pay", " 12", ", ", " ", "\n", "é", "東京", "e\u0301", "😀"]
PROSE = st.lists(st.sampled_from([*PIECES, "<|endoftext|>", "\ufffd", "\r\n"]), max_size=40)


class TestSource:
    @given(PROSE.map("".join))
    @settings(max_examples=200)
    @example(TEXT)
    @example("\n\n the tenant\n\n  the tenant \n")
    def test_phrases_are_where_their_spans_say(self, text):
        document = Document(f"the tenant {text}", "a.txt")
        table = mined(document.text * 2, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnspacedTextWarning)
            phrases = list(fmm(table)(document, tokenizer()))
        spans = sorted(span for phrase in phrases for span in phrase.sources)
        assert len({phrase.ids for phrase in phrases}) == len(phrases)
        for phrase in phrases:
            assert tokenizer().decode(phrase.ids) == phrase.text
            for span in phrase.sources:
                # A line that an editor wrapped is one: its break is spelled as a space.
                spelled = document.text[span.start : span.end].replace("\n", " ")
                assert spelled == phrase.text.strip()
        # None overlaps another, and all that the table finds is there.
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
        run = tokenize_lines(document, tokenizer()).arrays()
        assert len(spans) == len(table.match(run).first)

    def test_the_longest_phrase_is_taken(self):
        table = mined("the tenant shall pay. " * 3 + "the tenant. " * 3, 2)
        found = [p.text for p in fmm(table)(Document("so the tenant shall pay"), tokenizer())]
        assert found == [" the tenant shall pay"]


@pytest.mark.default_model
def test_matches_of_2_mb_of_law_are_those_of_another_library():
    import ahocorasick_rs

    documents, size = [], 0
    with gzip.open(data_directory() / "law" / "eurlex.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            documents.append(Document(json.loads(line)["text"]))
            size += len(documents[-1].text.encode())
            if size >= 2_000_000:
                break
    assert size >= 2_000_000
    own = Tokenizer.from_file(locate(DEFAULT_MODEL) / "tokenizer.json")
    run = TokenArrays.concatenate(tokenize_lines(document, own).arrays() for document in documents)
    table = FMMTable.mine(run)
    matches = table.match(run)
    words: WordSpans = words_of(run)
    other = ahocorasick_rs.AhoCorasick(
        table.patterns(), matchkind=ahocorasick_rs.MatchKind.LeftmostLongest
    )
    found = other.find_matches_as_indexes(table.word_codes(words.keys))
    number, begin, end = numpy.array(found).T
    assert len(found) > 10_000
    assert (matches.phrase == number).all()
    assert (matches.first == words.first[begin]).all()
    assert (matches.last == words.last[end - 1]).all()
    # What is matched is spelled as the phrase is.
    for place in range(0, len(found), 997):
        ids = run.ids[matches.first[place] : matches.last[place] + 1]
        assert table.ids(int(matches.phrase[place])) == tuple(ids.tolist())
