"""The training text as passages: stretches of the documents, cut between words."""

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.phrase import Document
from univerb.tokenizer import Tokenizer
from univerb.training.training_passages import Passages

HF = make_tokenizer()
TOKENIZER = Tokenizer(HF.backend_tokenizer, HF.all_special_ids)
WORDS = st.sampled_from(
    ["tenant", "the", "a", "東京都", "x" * 300, " ", "  ", "\r\n", "\n\n", "é."]
)


def epoch(text: str, block: int) -> list[str]:
    """Return the passages of a text in the order of the text."""
    passages = Passages([Document(text, "one")], TOKENIZER, block)
    texts = [passages.tokens(0, index).text for index in range(len(passages))]
    order = numpy.random.default_rng((0, 0)).permutation(len(passages))
    return [texts[i] for i in numpy.argsort(order)]


@settings(max_examples=60)
@given(st.lists(WORDS, max_size=60).map(" ".join).map("the".__add__))
@example("東" * 3000)
@example(" " * 3000 + "a")
@example("a" * 3000 + " b")
def test_passages_are_stretches_of_the_text_in_its_order(text):
    """Each is the beginning of its own stretch, of which it may lack the end (the block)."""
    place = 0
    for part in epoch(text, 8):
        place = text.index(part, place) + len(part)


@pytest.mark.parametrize("text", ["漢字仮名交じり文" * 500, "x" * 4000])
def test_a_text_without_spaces_has_passages_too(text):
    # What is left at the end may belong to the passage before.
    assert min(map(len, epoch(text, 64)[:-1])) > 0


def test_a_passage_of_a_huge_text_without_spaces_reads_a_small_part_of_it():
    passages = Passages([Document("文" * 4_000_000, "one")], TOKENIZER, 64)
    assert all(len(passages.tokens(0, index).ids) == 64 for index in range(20))


def test_words_are_not_cut_where_there_are_spaces():
    words = TEXT.split()
    for part in epoch(TEXT * 9, 16)[1:]:
        assert part.split()[0] in words or TEXT.split()[-1] + words[0] in part
