"""n-grams of documents: found by an independent count, true to their sources, guarded."""

import functools
import importlib.resources
import re
import sys
import textwrap
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
import tokenizers
from bm25s.stopwords import STOPWORDS_EN_PLUS
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from conftest import EOS, TEXT, make_tokenizer
from univerb.errors import MissingExtra, OptionError
from univerb.phrase import Document, Phrase, Span
from univerb.phrases.content import content_words
from univerb.phrases.guards import NUMBER, Guards
from univerb.phrases.ngrams import PhraseSource, UnspacedTextWarning, ngrams, word_ngrams
from univerb.tokenizer import Tokenizer

ENGLISH = ["the", "tenant", "shall", "pay", "rent", "premises", "written", "notice", "unusual"]
PIECES = [
    *ENGLISH,
    "of",
    "7",
    "1,500",
    "42",
    "1990",
    "😀",
    "東京",
    "é",
    "e\u0301",
    "naïve",
    "don't",
    "_",
    "½",
]
MARKS = [".", ",", "!", "(", ")", '"', "–", "…", ":", "%"]
TEXTS = st.lists(
    st.sampled_from([*PIECES, *MARKS, " ", " ", " ", "\n"]), min_size=1, max_size=30
).map(lambda pieces: re.sub(" +", " ", "".join(pieces)))
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
GLUE = ["of", "the", "It", "isn't", "they’re", "O'Hara", "tenant's", "'s", "--", "a_b", "2013"]
NUMBERS = ["60", "2013", "1,500", "3.14", "12:30", "10/11/2013", "1990–95", "1990-95", "50%"]
NUMBERS += ["§12(3)", "§ 12(3)", "12(3)(a)", "§§ 12-14", "1,234,567.89", "9(iv)"]
NUMBER_TEXTS = st.lists(
    st.sampled_from([*NUMBERS, *"§(),.:/–-%a1 \n", "rent", " of "]) | st.text(max_size=2),
    max_size=20,
).map("".join)
SIZES = st.tuples(st.integers(1, 6), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))


@functools.cache
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def found(source: PhraseSource, text: str) -> list[Phrase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnspacedTextWarning)
        return list(source(Document(text, "a.txt"), tokenizer()))


def texts(phrases: Iterable[Phrase]) -> list[str]:
    return [phrase.text for phrase in phrases]


def normal(text: str) -> str:
    return " ".join(text.split())


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield where each line begins, and the line; wrapped ones count as one."""
    rows = text.split("\n")
    place, begin, whole = 0, 0, ""
    for row, after in zip(rows, [*rows[1:], ""], strict=True):
        whole += row
        place += len(row) + 1
        if len(row) > 40 and not re.search(r"[\s.!?:;]$", row) and re.match(r"[\w(\"']", after):
            whole += " "
            continue
        yield begin, whole
        begin, whole = place, ""


def is_inside_word(left: str, right: str) -> bool:
    def is_word(character: str) -> bool:
        return character == "_" or unicodedata.category(character)[0] in "LNM"

    if unicodedata.category(right)[0] == "M":
        return True
    if any(unicodedata.name(one, "").startswith("CJK") for one in (left, right)):
        return False
    return is_word(left) and is_word(right)


def brute_force(text: str, low: int, high: int) -> tuple[dict[tuple[int, ...], set[Span]], set]:
    """Return every n-gram with its spans by looking at the bytes of every window of tokens.

    Also return the windows that leave out the space which stands alone before a line: they are
    looked at by a test of their own.
    """
    rust = make_rust()
    expected: dict[tuple[int, ...], set[Span]] = defaultdict(set)
    without_space = set()
    for begin, line in lines(text):
        if not line.strip():
            continue
        begin += len(line) - len(line.lstrip())
        data = f" {line.strip()}".encode()
        ids = rust.encode(data.decode(), add_special_tokens=False).ids
        sizes = [len(rust.id_to_token(one)) for one in ids]
        for first in range(len(ids)):
            for last in range(first + low, min(first + high, len(ids)) + 1):
                start, end = sum(sizes[:first]), sum(sizes[:last])
                try:
                    before, spelled = data[:start].decode(), data[start:end].decode()
                except UnicodeDecodeError:
                    continue
                after = data[end:].decode()
                if not is_phrase(before, spelled, after) or last - first < 2:
                    continue
                place = begin + len(before) - 1 + len(spelled) - len(spelled.lstrip())
                key = tuple(ids[first:last])
                expected[key].add(Span("a.txt", place, place + len(spelled.strip())))
                if before == " ":
                    without_space.add(key)
    return expected, without_space


def number_spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in NUMBER.finditer(text)]


def content_spans(text: str) -> list[tuple[int, int]]:
    words = re.finditer(r"[^\W_]+", text)
    return [word.span() for word in words if word.group().lower() not in STOPWORDS_EN_PLUS]


def is_phrase(before: str, spelled: str, after: str) -> bool:
    visible = spelled.lstrip()
    if not visible or visible != visible.rstrip():
        return False
    if before[1:] and before[-1].isspace():
        return False
    if before and visible == spelled and is_inside_word(before[-1], spelled[0]):
        return False
    if after and is_inside_word(spelled[-1], after[0]):
        return False
    whole, end = before + spelled + after, len(before + spelled)
    start = end - len(visible)
    if any(a < place < b for a, b in number_spans(whole) for place in (start, end)):
        return False
    if not any(a < end and start < b for a, b in content_spans(whole)):
        return False
    named = [one for one in spelled if unicodedata.category(one)[0] in "LN"]
    return not named or not all(one.isdigit() for one in named)


@functools.cache
def make_rust():
    return make_tokenizer().backend_tokenizer


MERGED = [
    word for word in ENGLISH if tokenizer().decode(tokenizer().encode_inside(word).ids[:1]).strip()
]


def sentences(words: list[str], gaps: list[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(st.sampled_from(words), st.sampled_from(gaps)).map("".join)
    return st.lists(pair, min_size=1, max_size=12).map(lambda pairs: "".join(pairs).strip())


class TestTokenNgrams:
    @given(text=TEXTS, sizes=SIZES)
    @settings(max_examples=300)
    @example(text=TEXT, sizes=(2, 8))
    @example(text=textwrap.fill(TEXT, 60), sizes=(2, 8))
    @example(text="pay 42 😀 東京 (naïve)\n e\u0301 don't", sizes=(1, 8))
    def test_they_are_those_of_a_brute_force_search(
        self, text: str, sizes: tuple[int, int]
    ) -> None:
        assume(text.strip())
        expected, without_space = brute_force(text, *sizes)
        actual = {phrase.ids: set(phrase.sources) for phrase in found(ngrams(sizes), text)}
        for key in without_space:
            merged = expected.pop(key) | actual.pop(key, set())
            assert merged
        assert actual == expected

    @given(text=ANYTHING | TEXTS, sizes=SIZES)
    @settings(max_examples=200)
    @example(text="a  b\t\tc \u00a0 d", sizes=(1, 8))
    @example(text=f"the tenant{EOS}shall pay", sizes=(1, 8))
    def test_every_phrase_keeps_what_it_promises(self, text: str, sizes: tuple[int, int]) -> None:
        assume(text.strip())
        phrases = found(ngrams(sizes), text)
        assert len({phrase.ids for phrase in phrases}) == len(phrases)
        for phrase in phrases:
            assert max(sizes[0], 2) <= len(phrase) <= sizes[1]
            assert phrase.text == tokenizer().decode(phrase.ids)
            assert "\n" not in phrase.text
            assert "\r" not in phrase.text
            assert tokenizer().special_ids.isdisjoint(phrase.ids)
            assert phrase.sources
            assert len(set(phrase.sources)) == len(phrase.sources)
            for span in phrase.sources:
                assert span.document == "a.txt"
                assert 0 <= span.start < span.end <= len(text)
                assert normal(text[span.start : span.end]) == normal(phrase.text)

    @given(words=st.lists(st.sampled_from(ENGLISH), min_size=1, max_size=8))
    def test_of_plain_words_every_run_is_found_wherever_it_stands(self, words: list[str]) -> None:
        text = " ".join(words)
        by_text = {phrase.text: phrase for phrase in found(ngrams((1, 64)), text)}
        for first in range(len(words)):
            for last in range(first + 2, len(words) + 1):
                run = " ".join(words[first:last])
                if set(words[first:last]) == {"the"}:
                    assert f" {run}" not in by_text
                    continue
                expected = {
                    match.start(1) for match in re.finditer(rf"(?<!\S)(?=({run})(?!\S))", text)
                }
                spans = by_text[f" {run}"].sources
                assert {span.start for span in spans} == expected

    @given(words=st.lists(st.sampled_from(ENGLISH), min_size=2, max_size=40))
    def test_a_phrase_is_tokenized_as_its_text_is(self, words: list[str]) -> None:
        for phrase in found(ngrams(), " ".join(["the", *words])):
            assert tuple(tokenizer().encode_inside(phrase.text.strip()).ids) == phrase.ids
            assert tuple(tokenizer().encode(phrase.text).ids) == phrase.ids

    @pytest.mark.parametrize("gap", ["  ", "   ", "\t", " \t ", "\u00a0 "])
    def test_a_span_never_begins_with_space(self, gap: str) -> None:
        text = f"the rent.{gap}The tenant shall pay"
        for phrase in found(ngrams(), text):
            for span in phrase.sources:
                assert text[span.start : span.end] == text[span.start : span.end].strip()

    @pytest.mark.parametrize("gap", ["  ", "   ", "\t"])
    def test_a_cut_phrase_points_at_its_part_behind_a_wide_space(self, gap: str) -> None:
        text = f"the rent.{gap}The tenant shall pay"
        whole = next(p for p in found(ngrams(), text) if p.text.strip() == "The tenant shall")
        (span,) = whole.cut(whole.text.removesuffix(" shall"), whole.ids[:-1]).sources
        assert text[span.start : span.end] == "The tenant"

    @pytest.mark.parametrize("start", ["42", "😀", "東京"])
    def test_a_line_begins_with_the_same_phrases_as_a_sentence(self, start: str) -> None:
        alone = found(ngrams((2, 12)), f"{start} the rent")
        behind = found(ngrams((2, 12)), f"pay {start} the rent")
        assert set(texts(alone)) <= set(texts(behind))

    def test_an_empty_space_is_no_phrase(self) -> None:
        phrases = found(ngrams((1, 3), Guards(min_tokens=1)), "42 the rent")
        assert all(phrase.text.strip() for phrase in phrases)


def sentencepiece() -> Tokenizer:
    """Return a Unigram model that writes what it does not know as bytes."""
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256)), ("▁", -3.0)]
    pieces += [(f"▁{word}", -5.0) for word in ENGLISH]
    pieces += [(one, -8.0) for one in "aehnrstuy.,()"]
    rust = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return Tokenizer(rust)


class TestOtherTokenizers:
    @given(text=TEXTS, sizes=SIZES, boundaries=st.booleans())
    @settings(max_examples=200)
    @example(text="pay éø東京ж 😀😀 the", sizes=(1, 10), boundaries=False)
    def test_spans_are_true_where_unknown_characters_share_an_offset(
        self, text: str, sizes: tuple[int, int], boundaries: bool
    ) -> None:
        assume(text.strip())
        source = ngrams(sizes, Guards(word_boundaries=boundaries))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnspacedTextWarning)
            phrases = list(source(Document(text, "a.txt"), SENTENCEPIECE))
        for phrase in phrases:
            for span in phrase.sources:
                assert normal(text[span.start : span.end]) == normal(phrase.text)

    def test_the_space_before_a_line_is_in_its_first_phrase(self) -> None:
        phrases = list(ngrams()(Document("the tenant\nthe tenant shall"), SENTENCEPIECE))
        (phrase,) = [p for p in phrases if p.text == " the tenant"]
        assert phrase.sources == (Span("text", 0, 10), Span("text", 11, 21))


SENTENCEPIECE = sentencepiece()


class TestLines:
    @given(
        words=st.lists(st.sampled_from(ENGLISH), min_size=20, max_size=60),
        width=st.integers(55, 90),
        indent=st.sampled_from(["", "  "]),
    )
    def test_wrapped_lines_have_the_phrases_of_the_unwrapped_text(
        self, words: list[str], width: int, indent: str
    ) -> None:
        plain = " ".join(words)
        wrapped = textwrap.fill(plain, width, initial_indent=indent)
        expected = {phrase.ids: phrase for phrase in found(ngrams(), plain)}
        actual = {phrase.ids: phrase for phrase in found(ngrams(), wrapped)}
        assert actual.keys() == expected.keys()
        for ids, phrase in actual.items():
            assert len(phrase.sources) == len(expected[ids].sources)
            for span in phrase.sources:
                assert normal(wrapped[span.start : span.end]) == phrase.text.strip()

    @pytest.mark.parametrize("end", [".", "!", "?", ":", ";", " "])
    def test_a_line_that_ends_by_itself_is_not_joined(self, end: str) -> None:
        text = f"The tenant shall pay the rent on the first day{end}\nnotice to the landlord"
        assert not [p for p in texts(found(ngrams(), text)) if "day" in p and "notice" in p]

    @pytest.mark.parametrize(
        "text", ["the rent\nthe tenant", "the rent\r\nthe tenant", "rent\rtenant", "a\n\nb c"]
    )
    def test_short_lines_are_not_joined(self, text: str) -> None:
        assert not [p for p in texts(found(ngrams(), text)) if "rent" in p and "tenant" in p]

    @pytest.mark.parametrize("after", ["- a bullet", "", "* a star", "# a title", "  an indent"])
    def test_a_line_before_a_new_block_is_not_joined(self, after: str) -> None:
        text = f"The tenant shall pay the rent on the first day\n{after}\nthe end"
        crossing = [p for p in texts(found(ngrams(), text)) if "day" in p and p[-3:] != "day"]
        assert crossing == []

    def test_a_long_blank_line_takes_no_time(self) -> None:
        text = "the rent\n" + " " * 100_000 + "\nthe tenant"
        assert " the tenant" in texts(found(ngrams(), text))


class TestGuards:
    def test_sizes_respect_the_shortest_the_guards_allow(self) -> None:
        words = "the rent shall pay"
        assert min(map(len, found(ngrams((1, 3)), words))) == 2
        assert min(map(len, found(ngrams((1, 3), Guards(min_tokens=1)), words))) == 1
        assert min(map(len, found(ngrams((2, 4), Guards(min_tokens=3)), words))) == 3

    def test_words_are_cut_only_without_word_boundaries(self) -> None:
        cut = {" the u", "al the", "usua"}
        guarded = {*texts(found(ngrams(), "the unusual the"))}
        unguarded = {*texts(found(ngrams(guards=Guards(word_boundaries=False)), "the unusual the"))}
        assert not cut & guarded
        assert cut <= unguarded
        assert guarded <= unguarded

    def test_characters_are_cut_only_without_whole_characters(self) -> None:
        def is_cut(phrase: Phrase) -> bool:
            return "\N{REPLACEMENT CHARACTER}" in phrase.text

        for boundaries in (True, False):
            guards = Guards(word_boundaries=boundaries)
            assert not any(map(is_cut, found(ngrams(guards=guards), "pay 😀 東京")))
        off = Guards(whole_characters=False, word_boundaries=False, content=None)
        cut = texts(filter(is_cut, found(ngrams(guards=off), "pay 😀 the")))
        assert [text for text in cut if text.endswith(" the")]
        assert [text for text in cut if text.startswith(" pay")]

    def test_special_tokens_are_inside_only_if_allowed(self) -> None:
        text = f"the rent{EOS} the tenant"
        assert not [p for p in found(ngrams(), text) if EOS in p.text]
        allowed = found(ngrams(guards=Guards(no_special=False)), text)
        assert [p for p in allowed if EOS in p.text and 0 in p.ids]

    def test_bare_numbers_are_merged_only_if_allowed(self) -> None:
        text = "pay 1990, 42 rent"
        assert not [p for p in texts(found(ngrams(), text)) if re.fullmatch(r"[\d\s,]+", p)]
        allowed = texts(found(ngrams(guards=Guards(no_digits=False)), text))
        assert " 1990" in allowed

    @pytest.mark.parametrize("make", [ngrams, word_ngrams])
    def test_glue_is_a_phrase_only_without_the_content_guard(self, make) -> None:
        text = "pay of the rent in 2013"
        default, loose = (texts(found(make((2, 8), g), text)) for g in (None, Guards(content=None)))
        # The second is two tokens of this tokenizer.
        assert {" of the"} <= set(loose) - set(default) <= {" of the", " in"}
        assert {" the rent", " pay of the", " in 2013"} <= set(default)

    @given(words=st.lists(st.sampled_from([*GLUE, *ENGLISH]), min_size=1, max_size=12))
    @settings(max_examples=200)
    def test_phrases_have_a_content_word_and_none_with_one_is_lost(self, words) -> None:
        text = " ".join(words)
        every = found(ngrams(guards=Guards(content=None)), text)
        assert found(ngrams(), text) == [phrase for phrase in every if content_words(phrase.text)]

    @pytest.mark.parametrize("number", NUMBERS)
    def test_a_number_is_cut_only_without_whole_numbers(self, number: str) -> None:
        text = f"rent of {number} shall be paid"
        begin, end = text.index(number), text.index(number) + len(number)
        places = {
            rule: {
                place
                for phrase in found(ngrams((2, 16), Guards(whole_numbers=rule)), text)
                for span in phrase.sources
                for place in (span.start, span.end)
            }
            for rule in (True, False)
        }
        inside = set(range(begin + 1, end))
        assert not places[True] & inside
        assert places[True] == places[False] - inside
        assert {begin, end} <= places[True]
        # Plain digits are whole already because they are a word.
        assert bool(places[False] & inside) != number.isdigit()

    @given(text=NUMBER_TEXTS, sizes=SIZES, boundaries=st.booleans())
    @settings(max_examples=300)
    def test_no_phrase_begins_or_ends_inside_a_number(self, text, sizes, boundaries) -> None:
        assume(text.strip())
        spans = number_spans(text)
        for phrase in found(ngrams(sizes, Guards(word_boundaries=boundaries)), text):
            for source in phrase.sources:
                for place in (source.start, source.end):
                    assert not any(start < place < end for start, end in spans)

    @pytest.mark.parametrize("make", [ngrams, word_ngrams])
    @pytest.mark.parametrize("sizes", [(0, 3), (3, 2), (-1, 2), (1, 65), (0, 0)])
    def test_sizes_out_of_range_are_refused(self, make, sizes: tuple[int, int]) -> None:
        with pytest.raises(OptionError, match=re.escape(str(sizes))):
            make(sizes)

    @pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 64)])
    def test_sizes_at_the_edge_of_the_range_are_fine(self, sizes: tuple[int, int]) -> None:
        guards = Guards(min_tokens=1)
        assert {len(p) for p in found(ngrams(sizes, guards), "the rent shall pay")} <= set(
            range(sizes[0], sizes[1] + 1)
        )


class TestUnspacedText:
    @pytest.mark.parametrize(
        "text",
        [
            "承租人应当按照约定的期限支付租金。",
            "賃借人は毎月初日に賃料を支払わなければならない。",
            "ผู้เช่าต้องชำระค่าเช่าในวันแรกของทุกเดือน",
            "ຜູ້ເຊົ່າຕ້ອງຈ່າຍຄ່າເຊົ່າ",
            "អ្នកជួលត្រូវបង់ថ្លៃឈ្នួល",
            "The tenant 承租人应当按照约定的期限支付租金",
        ],
    )
    @pytest.mark.parametrize("make", [ngrams, word_ngrams])
    def test_a_warning_names_the_document(self, make, text: str) -> None:
        with pytest.warns(UnspacedTextWarning, match=r"'lease\.txt'"):
            phrases = list(make()(Document(text, "lease.txt"), tokenizer()))
        for phrase in phrases:
            for span in phrase.sources:
                assert text[span.start : span.end] == phrase.text.strip()

    @pytest.mark.parametrize(
        "text",
        [
            TEXT,
            f"{TEXT} 承租人",
            "임차인은 매월 첫째 날에 임대료를 지불해야 한다.",
            "Арендатор обязан вносить арендную плату.",
            "किरायेदार हर महीने किराया देगा",
            "1, 2, 3!",
        ],
    )
    def test_other_texts_give_no_warning(self, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(ngrams()(Document(text, "lease.txt"), tokenizer()))


class TestWordNgrams:
    @given(text=sentences(MERGED, [" ", " ", " ", ", ", ") ", '" ', "; ", ". "]), sizes=SIZES)
    @settings(max_examples=150)
    def test_they_are_the_runs_of_nltk_words_that_tokens_can_spell(
        self, text: str, sizes: tuple[int, int]
    ) -> None:
        self.compare_with_nltk(text, sizes)

    @given(text=sentences(ENGLISH, [" ", " ", ", ", " (", ") ", ' "', '" ']), sizes=SIZES)
    @settings(max_examples=150)
    @example(text=TEXT, sizes=(2, 5))
    def test_they_are_so_where_a_space_is_a_token_of_its_own(
        self, text: str, sizes: tuple[int, int]
    ) -> None:
        self.compare_with_nltk(text, sizes)

    def compare_with_nltk(self, text: str, sizes: tuple[int, int]) -> None:
        nltk = pytest.importorskip("nltk.tokenize")
        low, high = sizes
        words = list(nltk.NLTKWordTokenizer().span_tokenize(text))
        spaced = f" {text}"
        borders = {0}
        for one in tokenizer().encode_inside(text).ids:
            borders.add(max(borders) + len(tokenizer().decode([one])))
        starts = {border + spaced[border : border + 1].isspace() - 1 for border in borders}
        ends = {border - 1 for border in borders}
        expected = set()
        for first, (start, _) in enumerate(words):
            for _, end in words[first + low - 1 : first + high]:
                own = start if start in borders and spaced[start] == " " else start + 1
                is_long = len(borders & set(range(own, end + 1))) >= 2
                says_something = bool(content_words(text[start:end]))
                if start in starts and end in ends and is_long and says_something:
                    expected.add((start, end))
        phrases = found(word_ngrams(sizes), text)
        assert {(span.start, span.end) for p in phrases for span in p.sources} == expected
        for phrase in phrases:
            assert len(phrase) >= 2
            assert {text[span.start : span.end] for span in phrase.sources} == {phrase.text.strip()}

    def test_offsets_hold_where_the_quotes_are_rewritten(self) -> None:
        text = 'The "quiet enjoyment" of the premises'
        for phrase in found(word_ngrams((1, 5)), text):
            for span in phrase.sources:
                assert text[span.start : span.end] == phrase.text.strip()

    @pytest.mark.parametrize("run", ["42 apples", "😀 apples", "東京 apples"])
    def test_a_run_is_found_where_its_space_is_a_token_of_its_own(self, run: str) -> None:
        runs = [phrase.text for phrase in found(word_ngrams(), f"the tenant shall pay {run}")]
        assert f" {run}" in runs

    def test_words_that_nltk_divides_are_cut_only_without_word_boundaries(self) -> None:
        text = "the tenant cannot pay"
        cut = {"not pay", " tenant can"}
        off = Guards(word_boundaries=False)
        assert not cut & {*texts(found(word_ngrams(), text))}
        assert cut <= {*texts(found(word_ngrams(guards=off), text))}

    def test_a_run_has_its_space_also_without_word_boundaries(self) -> None:
        off = Guards(word_boundaries=False)
        assert " rent the" in texts(found(word_ngrams(guards=off), "pay rent the"))

    def test_a_run_is_found_behind_a_double_space(self) -> None:
        runs = [p.text.strip() for p in found(word_ngrams(), "pay the rent.  The tenant shall")]
        assert "The tenant" in runs

    def test_without_nltk_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
        with pytest.raises(MissingExtra, match=r"univerb\[nltk\]"):
            word_ngrams()


@pytest.fixture(scope="module")
def lease_text() -> str:
    folder = importlib.resources.files("univerb") / "assets" / "demo"
    return (folder / "lease.txt").read_text(encoding="utf-8")


class TestDemo:
    """The documents that come with univerb, hard-wrapped as real ones are."""

    @pytest.mark.parametrize("source", [ngrams(), ngrams((3, 12)), word_ngrams()])
    def test_every_span_of_a_wrapped_lease_is_true(
        self, source: PhraseSource, lease_text: str
    ) -> None:
        phrases = found(source, lease_text)
        assert len(phrases) > 1000
        for phrase in phrases:
            for span in phrase.sources:
                assert normal(lease_text[span.start : span.end]) == phrase.text.strip()

    def test_phrases_cross_the_wrapped_lines(self, lease_text: str) -> None:
        crossing = [
            phrase.text
            for phrase in found(ngrams((2, 12)), lease_text)
            if any("\n" in lease_text[span.start : span.end] for span in phrase.sources)
        ]
        assert crossing
