"""The rules that keep useless or harmful spans out of a vocabulary, one by one."""

import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.phrases.guards import NUMBER, PAPER_GUARDS, Guards, is_number, is_unspaced
from univerb.phrases.tokenized import _boundaries, _char_classes

SPECIAL = frozenset({0})
CASES = {
    "min_tokens": ((5,), " tenant", "fewer than 2 tokens"),
    "no_special": ((5, 0), " tenant<|endoftext|>", "special token"),
    "no_newline": ((5, 6), " the\ntenant", "line break"),
    "whole_characters": ((5, 6), " tenant\N{REPLACEMENT CHARACTER}", "not valid UTF-8"),
    "no_digits": ((5, 6), " 1,234.56", "bare number"),
}
LATIN = st.characters(categories=["Lu", "Ll"], max_codepoint=0x24F)
SPACED = [string.ascii_letters, "éøßŁ", "абвё", "αβγ", "한국어", "עברית", "0123456789_"]


def word_boundaries(text: str) -> list[bool]:
    return _boundaries(_char_classes(text)).tolist()


class TestObjection:
    @pytest.mark.parametrize("rule", CASES)
    def test_each_rule_objects_with_its_reason(self, rule: str) -> None:
        ids, text, reason = CASES[rule]
        assert reason in (Guards().objection(ids, text, SPECIAL) or "")

    @pytest.mark.parametrize("rule", CASES)
    def test_each_rule_can_be_switched_off_alone(self, rule: str) -> None:
        off = dataclasses.replace(Guards(), **{rule: 1 if rule == "min_tokens" else False})
        for other, (ids, text, _) in CASES.items():
            assert (off.objection(ids, text, SPECIAL) is None) == (other == rule)

    @pytest.mark.parametrize("text", [" quiet enjoyment", " 30 days", " No. 5", " Größe 東京 😀"])
    def test_ordinary_phrases_pass(self, text: str) -> None:
        assert Guards().objection((5, 6), text, SPECIAL) is None

    @given(least=st.integers(1, 9), count=st.integers(1, 9))
    def test_min_tokens_is_the_smallest_size(self, least: int, count: int) -> None:
        objection = Guards(min_tokens=least).objection(tuple(range(5, 5 + count)), " a b", SPECIAL)
        assert (objection is None) == (count >= least)


class TestContent:
    def test_an_unknown_stop_list_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(OptionError, match="'english'.*de, en, es"):
            Guards(content="english")
        with pytest.raises(OptionError, match="de, en, es"):
            Guards(content=["en"])  # type: ignore[arg-type]

    def test_glue_is_no_objection_to_what_a_user_lists(self) -> None:
        assert Guards().objection((5, 6), " of the", SPECIAL) is None

    def test_the_papers_guards_have_neither_content_nor_whole_numbers(self) -> None:
        assert Guards(content=None, whole_numbers=False) == PAPER_GUARDS


class TestNumberExpressions:
    @pytest.mark.parametrize(
        ("text", "expressions"),
        [
            ("60 in 2013, 1,500.", ["60", "2013", "1,500"]),
            ("3.14 at 12:30 on 10/11/2013", ["3.14", "12:30", "10/11/2013"]),
            ("1990–95, 1990-95; 50% of 7 %", ["1990–95", "1990-95", "50%", "7"]),
            ("§12(3) and § 12(3), §§\xa012-14", ["§12(3)", "§ 12(3)", "§§\xa012-14"]),
            ("12(3)(a) 9(iv) 5(see above) 5 (b)", ["12(3)(a)", "9(iv)", "5", "5"]),
            ("- 5 §\n12 a.b § x", ["5", "12"]),
            ("٣٫٥ ½", ["٣", "٥"]),
        ],
    )
    def test_are_found_as_a_reader_would(self, text: str, expressions: list[str]) -> None:
        assert [match.group() for match in NUMBER.finditer(text)] == expressions

    @pytest.mark.parametrize("part", ["1", "1,", "§", "§ ", "(1)", "1(a)", "1(", "-1"])
    def test_long_ones_take_no_time(self, part: str) -> None:
        assert all(match.group() for match in NUMBER.finditer(part * 100_000))


class TestNumbers:
    @given(
        st.text(string.digits, min_size=1),
        st.text(" ,.-:/%$€()", max_size=5),
        st.text("٣०²", max_size=2),
    )
    def test_digits_among_punctuation_are_a_number(
        self, digits: str, marks: str, other_digits: str
    ) -> None:
        assert is_number(f"{marks}{digits}{marks}{other_digits}{marks}")

    @given(st.text(string.digits + " ,."), st.characters(categories=["L"]))
    def test_a_single_letter_makes_it_no_number(self, digits: str, letter: str) -> None:
        assert not is_number(digits + letter)

    @given(st.text(string.punctuation + " –…"))
    def test_punctuation_alone_is_no_number(self, marks: str) -> None:
        assert not is_number(marks)


class TestUnspaced:
    @pytest.mark.parametrize(
        "text", ["東京都", "ひらがな", "カタカナ", "ภาษา", "ລາວ", "ភាសា", "မြန်"]
    )
    def test_scripts_without_spaces_are_known(self, text: str) -> None:
        assert all(map(is_unspaced, text))

    @pytest.mark.parametrize("text", [*SPACED, "हिन्दी", "العربية", ".,!? \n", "😀"])
    def test_all_others_are_not(self, text: str) -> None:
        assert not any(map(is_unspaced, text))


class TestWordBoundary:
    @given(st.text(min_size=1))
    def test_the_ends_of_a_text_are_boundaries(self, text: str) -> None:
        assert word_boundaries(text)[0]
        assert word_boundaries(text)[len(text)]

    @pytest.mark.parametrize("letters", SPACED)
    def test_there_is_none_inside_a_word(self, letters: str) -> None:
        assert not any(word_boundaries(letters)[i] for i in range(1, len(letters)))

    @given(st.text(LATIN, min_size=1), st.sampled_from(' .,;!?()"\t–…'), st.text(LATIN, min_size=1))
    def test_words_end_at_spaces_and_punctuation(self, left: str, mark: str, right: str) -> None:
        text = left + mark + right
        found = [i for i in range(len(text) + 1) if word_boundaries(text)[i]]
        assert found == [0, len(left), len(left) + 1, len(text)]

    def test_each_character_of_an_unspaced_script_is_a_word(self) -> None:
        assert all(word_boundaries("東京a都")[i] for i in range(5))

    def test_an_accent_belongs_to_the_letter_before_it(self) -> None:
        text = "re\u0301sume\u0301"
        assert not any(word_boundaries(text)[i] for i in range(1, len(text)))

    @pytest.mark.parametrize("word", ["हिन्दी", "भाषा", "தமிழ்", "বাংলা"])
    def test_vowel_signs_do_not_cut_a_word(self, word: str) -> None:
        assert not any(word_boundaries(word)[i] for i in range(1, len(word)))

    @pytest.mark.parametrize("text, sign", [("วันนี้", "ั"), ("ភាសា", "ា"), ("マ\u309a", "\u309a")])
    def test_a_mark_is_never_cut_from_its_letter_in_unspaced_scripts(
        self, text: str, sign: str
    ) -> None:
        assert not word_boundaries(text)[text.index(sign)]
