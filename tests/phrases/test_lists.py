"""A user's own phrases: every text kept in order, or named with the reason."""

import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import EOS, make_tokenizer
from univerb.errors import PhraseError
from univerb.phrases.guards import Guards
from univerb.phrases.lists import LeftOutWarning, listed_phrases, read_phrase_list
from univerb.tokenizer import Tokenizer

WORDS = st.lists(
    st.sampled_from(["quiet", "enjoyment", "tenant", "größe", "東京", "😀"]), min_size=2
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    hf = make_tokenizer()
    return Tokenizer(hf.backend_tokenizer, hf.all_special_ids)


def listed(tmp_path: Path, content: str | bytes) -> list[str | tuple[str, float]]:
    path = tmp_path / "phrases.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_phrase_list(path)


class TestTexts:
    @given(lists=st.lists(WORDS, max_size=5))
    def test_each_text_becomes_a_phrase_with_its_space(
        self, tokenizer: Tokenizer, lists: list[list[str]]
    ) -> None:
        texts = [" ".join(words) for words in lists]
        phrases = listed_phrases(texts, tokenizer)
        assert [phrase.text for phrase in phrases] == [f" {text}" for text in texts]
        for phrase in phrases:
            assert tokenizer.decode(phrase.ids) == phrase.text
            assert (phrase.sources, phrase.weight) == ((), 0.0)

    def test_a_space_that_is_given_is_not_doubled(self, tokenizer: Tokenizer) -> None:
        plain, spaced = listed_phrases(["quiet enjoyment", " quiet enjoyment"], tokenizer)
        assert plain == spaced

    def test_a_weight_beside_a_text_is_the_phrases(self, tokenizer: Tokenizer) -> None:
        phrases = listed_phrases([("quiet enjoyment", -1.5), "the tenant"], tokenizer)
        assert [phrase.weight for phrase in phrases] == [-1.5, 0.0]

    @pytest.mark.parametrize("weight", [float("nan"), float("inf"), float("-inf")])
    def test_a_weight_that_is_no_number_is_refused(
        self, tokenizer: Tokenizer, weight: float
    ) -> None:
        with pytest.raises(PhraseError, match="quiet enjoyment"):
            listed_phrases([("quiet enjoyment", weight)], tokenizer)

    @pytest.mark.parametrize("empty", ["", " ", "\n\t", ("  ", 1.0)])
    def test_an_empty_text_is_refused_with_its_number(self, tokenizer: Tokenizer, empty) -> None:
        with pytest.raises(PhraseError, match="phrase 1 of the list is empty"):
            listed_phrases(["quiet enjoyment", empty], tokenizer)

    def test_an_empty_list_has_no_phrases(self, tokenizer: Tokenizer) -> None:
        assert listed_phrases([], tokenizer) == []


class TestLeftOut:
    @pytest.mark.parametrize(
        "text, reason",
        [
            ("the", "fewer than 2 tokens"),
            (f"the{EOS}tenant", "special token"),
            ("the\ntenant", "line break"),
            ("1,234", "bare number"),
        ],
    )
    def test_one_warning_says_what_is_left_out_and_why(
        self, tokenizer: Tokenizer, text: str, reason: str
    ) -> None:
        with pytest.warns(LeftOutWarning, match=f"1 of 2 phrases.*{reason}") as caught:
            phrases = listed_phrases([text, "quiet enjoyment"], tokenizer)
        assert [phrase.text for phrase in phrases] == [" quiet enjoyment"]
        assert len(caught) == 1
        assert repr(text) in str(caught[0].message)

    def test_a_long_list_of_reasons_is_cut(self, tokenizer: Tokenizer) -> None:
        with pytest.warns(LeftOutWarning, match="5 of 5") as caught:
            assert listed_phrases(["10", "20", "30", "40", "50"], tokenizer) == []
        message = str(caught[0].message)
        assert "'30'" in message
        assert "'40'" not in message
        assert "…" in message

    def test_glue_and_parts_of_numbers_are_used_if_they_are_listed(
        self, tokenizer: Tokenizer
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            phrases = listed_phrases(["of the", "of 1", ",500 of"], tokenizer)
        assert [phrase.text for phrase in phrases] == [" of the", " of 1", " ,500 of"]

    def test_guards_decide_what_is_left_out(self, tokenizer: Tokenizer) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            phrases = listed_phrases(
                ["the", "1,234"], tokenizer, Guards(min_tokens=1, no_digits=False)
            )
        assert [phrase.text for phrase in phrases] == [" the", " 1,234"]


class TestFile:
    def test_lines_are_phrases_and_blank_ones_are_not(self, tmp_path: Path) -> None:
        content = "quiet enjoyment\n\n  \nthe tenant shall\r\ngröße 東京"
        assert listed(tmp_path, content) == ["quiet enjoyment", "the tenant shall", "größe 東京"]

    @pytest.mark.parametrize(
        "written, weight", [("1.5", 1.5), ("-2", -2.0), (" 3 ", 3.0), ("0", 0.0), ("1e1", 10.0)]
    )
    def test_a_number_behind_a_tab_is_the_weight(
        self, tmp_path: Path, written: str, weight: float
    ) -> None:
        content = f"quiet enjoyment\t{written}\nthe tenant\n"
        assert listed(tmp_path, content) == [("quiet enjoyment", weight), "the tenant"]

    @pytest.mark.parametrize("written", ["", "much", "1,5", "nan", "inf", "-inf", "1.5\t2"])
    def test_a_weight_that_is_no_number_is_named_with_its_line(
        self, tmp_path: Path, written: str
    ) -> None:
        with pytest.raises(PhraseError, match=r"phrases\.txt:3: the weight") as caught:
            listed(tmp_path, f"the tenant\n\nquiet enjoyment\t{written}\n")
        assert repr(written) in str(caught.value)

    def test_a_byte_order_mark_is_no_part_of_the_first_phrase(self, tmp_path: Path) -> None:
        assert listed(tmp_path, "\ufeffquiet enjoyment\n") == ["quiet enjoyment"]

    @pytest.mark.parametrize("content", ["", "\n\n", " \t\n", "\ufeff"])
    def test_an_empty_file_is_refused(self, tmp_path: Path, content: str) -> None:
        with pytest.raises(PhraseError, match=r"phrases\.txt' is empty"):
            listed(tmp_path, content)

    def test_a_file_in_another_encoding_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PhraseError, match="UTF-8"):
            listed(tmp_path, "größe\n".encode("latin-1"))

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PhraseError, match=r"missing\.txt"):
            read_phrase_list(tmp_path / "missing.txt")

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PhraseError, match="cannot be read"):
            read_phrase_list(tmp_path)

    def test_what_is_read_can_be_used_as_it_is(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        texts = listed(tmp_path, "quiet enjoyment\t2.5\nthe tenant shall\n")
        phrases = listed_phrases(texts, tokenizer)
        assert [(p.text, p.weight) for p in phrases] == [
            (" quiet enjoyment", 2.5),
            (" the tenant shall", 0.0),
        ]


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and devices")
def test_a_pipe_or_a_device_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(PhraseError, match="no regular file"):
            read_phrase_list(path)
