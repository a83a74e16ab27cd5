"""A document as tokens: where phrases may begin and end, character by character."""

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy
import pytest
import tokenizers
from bm25s.stopwords import STOPWORDS_EN_PLUS
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers

from conftest import EOS, TEXT, make_tokenizer
from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.guards import NUMBER, Guards, is_unspaced
from univerb.phrases.tokenized import (
    BREAK,
    CONTENT,
    DIGIT,
    END,
    LETTER,
    START,
    TokenArrays,
    TokenizedText,
    tokenize_lines,
)
from univerb.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = sorted(set(TEXT.split()) | {"a"})


def is_word_boundary(text: str, position: int) -> bool:
    """Tell whether a word may begin or end at a position of a text."""
    if position <= 0 or position >= len(text):
        return True
    before, after = text[position - 1], text[position]
    if _is_mark(after):
        return False
    if is_unspaced(before) or is_unspaced(after):
        return True
    return not (_in_word(before) and _in_word(after))


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or _is_mark(character)


def _is_mark(character: str) -> bool:
    """Tell whether a character is a vowel sign, an accent or the like: a part of the one before."""
    return unicodedata.category(character).startswith("M")


def byte_level() -> tokenizers.Tokenizer:
    return make_tokenizer().backend_tokenizer


def sentence_piece() -> tokenizers.Tokenizer:
    """Return a Unigram model with byte fallback, as T5 and Gemma have."""
    pieces = [("<unk>", 0.0), *((byte, -20.0) for byte in BYTES), ("▁", -3.0), (EOS, -50.0)]
    pieces += [(f"▁{word}", -5.0) for word in WORDS]
    pieces += [(one, -8.0) for one in sorted(set(TEXT) - {" "})]
    rust = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=True))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    rust.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Metaspace(prepend_scheme="always"),
        ]
    )
    rust.add_special_tokens([EOS])
    return rust


MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "sentence-piece": sentence_piece,
}


@functools.cache
def make(kind: str) -> Tokenizer:
    rust = MAKERS[kind]()
    return Tokenizer(rust, [rust.token_to_id(EOS)])


every_kind = pytest.mark.parametrize("kind", MAKERS)

PIECES = [
    *["the", "tenant", "shall", "unusual", "don't", "7", "1990", "½", "_", "a_b"],
    *["é", "e\u0301", "\u0301", "東京", "か\u3099", "ก็", "😀", "👩‍👧", "naïve", "\u200b"],
    *["of", "It's", "1,500", "3.14", "12:30", "50%", "§", "(3)", "(a)", "/"],
    *[".", ",", "(", '"', "–", ":", " ", " ", " ", "  ", "\t", "\xa0", "\u3000"],
    *[
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\x0c",
        "\u2028",
        EOS,
        REPLACEMENT,
        "the premises in good repair",
    ],
]
MIXED = st.lists(st.sampled_from(PIECES), min_size=1, max_size=25).map("".join)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40)
TEXTS = MIXED | ANYTHING
GUARDS = st.builds(
    Guards,
    word_boundaries=st.booleans(),
    whole_characters=st.booleans(),
    no_special=st.booleans(),
    whole_numbers=st.booleans(),
    content=st.sampled_from([None, "en"]),
)


class Row(NamedTuple):
    """A token as the slow reference sees it."""

    id: int
    line: int
    visible: int
    end: int
    may_start: bool
    may_end: bool
    is_masked: bool
    has_letter: bool
    has_digit: bool
    is_content: bool


def unwrapped(text: str) -> str:
    """Put a space for a break after a long line that ends no sentence, if a word follows."""
    rows = text.split("\n")
    whole = rows[0]
    for row, after in itertools.pairwise(rows):
        # A break of another kind within a row begins no line here.
        is_long = len(row) > 40 and not row[-1].isspace() and row[-1] not in ".!?:;"
        goes_on = bool(re.match(r"[\w(\"']", after))
        whole += (" " if is_long and goes_on else "\n") + after
    return whole


def line_spans(text: str) -> list[tuple[int, int]]:
    """Return where lines with text begin and end, spaces around them left out."""
    found, begin = [], 0
    for place in range(len(text) + 1):
        if place == len(text) or text[place] in "\n\r":
            line = text[begin:place]
            if line.strip():
                start = begin + len(line) - len(line.lstrip())
                found.append((start, start + len(line.strip())))
            begin = place + 1
    return found


def is_inside_number(text: str, position: int) -> bool:
    return any(match.start() < position < match.end() for match in NUMBER.finditer(text))


def is_content(text: str, position: int) -> bool:
    """Tell whether a character belongs to a word that is not on the stop list."""
    for match in re.finditer(r"[^\W_]+", text):
        if match.start() <= position < match.end():
            return match.group().lower() not in STOPWORDS_EN_PLUS
    return False


def reference(given: str, tokenizer: Tokenizer, guards: Guards) -> list[Row]:
    text = unwrapped(given)
    rows: list[Row] = []
    for number, (start, stop) in enumerate(line_spans(text)):
        ids, offsets = tokenizer.encode_inside(text[start:stop])
        spans = [(start + a, start + b) for a, b in offsets]
        for at, (one, (begin, end)) in enumerate(zip(ids, spans, strict=True)):
            # Within its line: what stands around a line is no part of any word in it.
            visible = next((i for i in range(begin, len(text)) if not text[i].isspace()), len(text))
            is_space = visible >= end
            first, last = at == 0, at == len(ids) - 1
            may_start = may_end = True
            if guards.whole_characters:
                may_start &= first or spans[at - 1][1] <= begin
                may_end &= last or end <= spans[at + 1][0]
            if guards.word_boundaries:
                before_is_space = not first and not text[slice(*spans[at - 1])].strip()
                may_start &= (visible in (start, stop)) or is_word_boundary(text, visible)
                may_start &= not before_is_space
                may_end &= (end in (start, stop)) or is_word_boundary(text, end)
                may_end &= not is_space
            if guards.whole_numbers:
                may_start &= not is_inside_number(text, visible)
                may_end &= not is_inside_number(text, end)
            own = text[begin:end]
            is_bad = guards.whole_characters and REPLACEMENT in own
            is_special = guards.no_special and one in tokenizer.special_ids
            letters = [c for c in own if c.isalnum()]
            rows.append(
                Row(
                    *(one, number, visible, end, may_start, may_end, is_bad or is_special),
                    has_letter=any(not c.isdigit() for c in letters),
                    has_digit=any(c.isdigit() for c in own),
                    is_content=not guards.content
                    or any(is_content(text, place) for place in range(begin, end)),
                )
            )
    return rows


def columns(found: TokenizedText) -> list[Row]:
    arrays = (
        *(found.ids, found.line, found.visible, found.end, found.may_start, found.may_end),
        *(found.is_masked, found.has_letter, found.has_digit, found.is_content),
    )
    return [Row(*row) for row in zip(*(array.tolist() for array in arrays), strict=True)]


class TestFlags:
    @every_kind
    @given(text=TEXTS, guards=GUARDS)
    @settings(max_examples=250)
    @example(text=TEXT, guards=Guards())
    @example(text="a\r\nb\r\n\r\n c \r", guards=Guards())
    @example(text="the premises in good repair the premises\nthe tenant\nb", guards=Guards())
    @example(text=f"a{EOS}b {EOS} c{REPLACEMENT}d", guards=Guards())
    @example(text="e\u0301 \u0301a\n\u0301b", guards=Guards())
    @example(text="the\n\n  東京tenant 👩‍👧  ", guards=Guards())
    @example(text="of § 12(3)(a), 1,500 or 50% of it", guards=Guards(word_boundaries=False))
    def test_equal_those_found_character_by_character(self, kind, text, guards):
        assume(text.strip())
        found = tokenize_lines(Document(text), make(kind), guards)
        assert columns(found) == reference(text, make(kind), guards)

    @every_kind
    @given(text=TEXTS, size=st.integers(1, 9))
    @settings(max_examples=200)
    @example(text=f"the tenant {EOS} shall the {REPLACEMENT} rent", size=3)
    @example(text="the\ntenant", size=50)
    def test_windows_are_stretches_of_a_line_that_may_be_phrases(self, kind, text, size):
        assume(text.strip())
        rows = reference(text, make(kind), Guards())
        expected = []
        for first in range(len(rows) - size + 1):
            part = rows[first : first + size]
            is_one_line = part[0].line == part[-1].line
            is_whole = part[0].may_start and part[-1].may_end
            is_whole &= any(row.is_content for row in part)
            if is_one_line and is_whole and not any(row.is_masked for row in part):
                expected.append(first)
        assert tokenize_lines(Document(text), make(kind)).windows(size).tolist() == expected

    @every_kind
    @pytest.mark.parametrize("text", ["a\ud800b", "the tenant\n\udfff", "\ud83d"])
    def test_half_a_character_is_a_typed_error(self, kind, text):
        with pytest.raises(DocumentError, match="not valid UTF-8"):
            tokenize_lines(Document(text, "half"), make(kind))


class TestRun:
    @every_kind
    @given(text=TEXTS)
    @settings(max_examples=200)
    @example(text=f"\n\na{EOS}b\n\nc\n")
    def test_a_break_stands_behind_every_line_and_for_every_barred_token(self, kind, text):
        assume(text.strip())
        rows = reference(text, make(kind), Guards())
        expected: list[tuple[int, int]] = []
        for _, own in itertools.groupby(rows, key=lambda row: row.line):
            for row in own:
                flags = START * row.may_start | END * row.may_end
                flags |= LETTER * row.has_letter | DIGIT * row.has_digit
                flags |= CONTENT * row.is_content
                expected.append((BREAK, 0) if row.is_masked else (row.id, flags))
            expected.append((BREAK, 0))
        run = tokenize_lines(Document(text), make(kind)).arrays()
        assert list(zip(run.ids.tolist(), run.flags.tolist(), strict=True)) == expected
        assert run.has(START).tolist() == [bool(flags & START) for _, flags in expected]

    def test_runs_are_joined_in_their_order(self):
        runs = [
            tokenize_lines(Document(text), make("byte-level")).arrays()
            for text in ("the\na", "rent")
        ]
        joined = TokenArrays.concatenate(runs)
        assert joined.ids.tolist() == runs[0].ids.tolist() + runs[1].ids.tolist()
        assert joined.flags.tolist() == runs[0].flags.tolist() + runs[1].flags.tolist()
        assert len(TokenArrays.concatenate([]).ids) == 0
        assert TokenArrays.concatenate([]).ids.dtype == numpy.int32


class TestLines:
    @every_kind
    @given(text=TEXTS)
    @settings(max_examples=100)
    def test_are_the_tokens_of_each_line(self, kind, text):
        assume(text.strip())
        found = tokenize_lines(Document(text), make(kind))
        slices = list(found.lines())
        rows = reference(text, make(kind), Guards())
        expected = [len(list(own)) for _, own in itertools.groupby(rows, key=lambda r: r.line)]
        assert [one.stop - one.start for one in slices] == expected
        assert [i for one in slices for i in range(len(rows))[one]] == list(range(len(rows)))

    @pytest.mark.parametrize("empty", range(5))
    def test_lines_of_which_nothing_is_left_are_left_out(self, empty):
        rust = byte_level()
        rust.normalizer = normalizers.Replace(Regex("[*]|^ (?=[*])"), "")
        found = tokenize_lines(Document("***\n" * empty + "a"), Tokenizer(rust))
        assert [found.text[found.visible[one.start]] for one in found.lines()] == ["a"]
        assert (found.arrays().ids >= 0).sum() == len(found.ids)


class TestMany:
    @every_kind
    @given(texts=st.lists(TEXTS, max_size=6))
    @settings(max_examples=100)
    @example(texts=["", " the tenant", "the tenant", "\tthe", "😀"])
    def test_texts_at_once_are_read_and_written_as_one_by_one(self, kind, texts):
        tokenizer = make(kind)
        encoded = tokenizer.encode_all_inside(texts)
        assert encoded == [tokenizer.encode_inside(text) for text in texts]
        ids = [one.ids for one in encoded]
        assert tokenizer.decode_all(ids) == [tokenizer.decode(one) for one in ids]

    @every_kind
    @given(many=st.lists(st.lists(st.integers(0, 300), max_size=6), max_size=6))
    @settings(max_examples=100)
    def test_ids_that_spell_no_text_are_written_alike(self, kind, many):
        tokenizer = make(kind)
        assert tokenizer.decode_all(many) == [tokenizer.decode(one) for one in many]

    def test_other_merges_make_another_tokenizer(self):
        content = json.loads(byte_level().to_str())
        merges = content["model"]["merges"]
        merges[-1], merges[-2] = merges[-2], merges[-1]
        other = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
        assert other.fingerprint() != Tokenizer(byte_level()).fingerprint()
