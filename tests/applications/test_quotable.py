"""What of passages can be quoted: sentences that say something by themselves, and lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.applications.quotable import find_quotable, quotable_spans
from univerb.documents.chunks import Chunk

RENT = "The tenant shall pay the whole rent on the first day of each month."
SHIPS = "Ships sail across the wide blue sea to a far and quiet harbour!"
CATS = "Cats sleep on the warm roof of the old house all day long."


def quotable(text: str) -> list[str]:
    return [text[start:end] for start, end in quotable_spans(text)]


def test_sentences_are_quotable():
    assert quotable(f" {RENT} {SHIPS}\n") == [RENT, SHIPS]
    assert quotable("") == quotable(" \n") == []


def test_a_very_short_sentence_comes_with_the_next():
    assert quotable(f"No. {RENT} {SHIPS}") == [f"No. {RENT}", SHIPS]
    # Not with that of another paragraph.
    assert quotable(f"No.\n\n{RENT}") == quotable(f"No.\r\n\r\n{RENT}") == ["No.", RENT]


def test_a_heading_says_nothing_alone_and_a_list_is_whole():
    text = f"Rent and fees\n\n{RENT}\n\nred\nblue\ngreen\n"
    assert quotable(text) == [RENT, "red\nblue\ngreen"]
    assert quotable("Only a heading") == ["Only a heading"]


def test_a_very_long_sentence_comes_in_clauses():
    text = ", ".join(f"clause {n} says that some thing number {n} is so" for n in range(30)) + "."
    parts = quotable(text)
    assert len(parts) > 2 and " ".join(parts) == text
    assert all(part.endswith((",", ".")) for part in parts)
    # One that has no commas is cut anywhere.
    assert [len(part.split()) for part in quotable("word " * 150 + "end.")] == [60, 60, 31]


def test_a_long_list_comes_in_lines():
    text = "\n".join(f"Item number {n} of all these costs {n} euros" for n in range(400))
    assert quotable(text) == text.split("\n")
    # Lines that say little come together.
    parts = quotable("\n".join(f"{n},bolt {n}" for n in range(3000)))
    assert {len(part.split("\n")) for part in parts[:-1]} == {7}


def test_lines_that_look_wrapped_are_cut_where_there_are_very_many():
    lines = [f"{n},a bolt of stainless steel of size {n},some {n} euros" for n in range(300)]
    assert quotable("\n".join(lines)) == lines
    passage = Chunk("a", sum(map(len, lines[:50])) + 50, "\n".join(lines[50:55]))
    found = find_quotable([passage], {"a": "\n".join(lines)})
    assert [each.source.text for each in found] == lines[50:55]


def test_sentences_without_spaces_are_quotable_one_by_one():
    sentences = [
        "租户应按月提前支付全部租金。",
        "大船驶过蓝色的海到达远方的港口。",
        "猫整天睡在房顶上休息。",
    ]
    assert quotable("".join(sentences)) == sentences
    assert quotable(f"不。{sentences[0]}") == [f"不。{sentences[0]}"]
    long = "，".join(["租户应按月提前支付全部租金"] * 12) + "。"
    assert "".join(quotable(long)) == long and quotable(long)[0].endswith("，")
    assert list(map(len, quotable("租" * 150 + "。"))) == [60, 60, 31]


PARTS = [RENT, SHIPS, "No.", "heading", "\n", "\n\n", " ", "x, " * 40, "漢字。"]


@given(st.lists(st.sampled_from(PARTS)))
def test_spans_are_in_order_and_have_no_space_around_them(parts):
    text = "".join(parts)
    spans = quotable_spans(text)
    assert bool(spans) == bool(text.strip())
    for start, end in spans:
        assert text[start:end] == text[start:end].strip() != ""
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)


@given(
    st.lists(st.sampled_from(PARTS), min_size=1).map("".join),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200)), min_size=1, max_size=4),
    st.booleans(),
)
def test_what_is_quoted_stands_where_it_says(text, cuts, is_at_hand):
    passages = [Chunk("d", a, text[a : a + n]) for a, n in cuts if text[a : a + n]]
    found = find_quotable(passages, {"d": text} if is_at_hand else {})
    for each in found:
        assert text[each.source.start : each.source.end] == each.source.text
        assert each.text == " ".join(each.source.text.split())
        assert each.heading in each.below_heading and each.before in each.after_sentence
    places = [each.source.start for each in found]
    assert len(places) == len(set(places)), "passages overlap; nothing is quoted twice"


def test_sentences_are_those_of_the_whole_text_where_it_is_at_hand():
    text = f"The tenant shall pay the whole rent on a certain day of\nthe month. {SHIPS}"
    second = text.index("the month")
    rent = Chunk("a", 0, text[: text.index(" Ships")])
    # A passage that begins on the second line, of which nobody could know that it was wrapped.
    wrapped, ships = find_quotable([Chunk("a", second, text[second:])], {"a": text})
    assert wrapped.source == rent
    assert ships.source == Chunk("a", text.index(SHIPS), SHIPS)
    assert ships.before == " ".join(rent.text.split())
    # A sentence that a passage only begins is whole.
    [found] = find_quotable([Chunk("a", 0, text[:40])], {"a": text})
    assert found.source == rent


def test_it_is_known_what_stands_above_and_before():
    text = f"Big house\n\n{SHIPS}\n\nSmall garden\n\n{RENT} {CATS}"
    ships, rent, cats = find_quotable([Chunk("My lease.txt", 5, text)], {})
    assert (rent.heading, cats.heading) == ("Small garden", "Small garden")
    assert rent.below_heading == f"Small garden. {RENT}"
    assert all(each.title.startswith("My lease") for each in (ships, rent, cats))
    assert ships.before == "" and cats.before == RENT
    assert cats.after_sentence == f"{RENT} {CATS}"
    assert rent.source == Chunk("My lease.txt", 5 + text.index(RENT), RENT)


def test_very_short_sentences_count_where_there_are_no_others():
    short = [Chunk("a", 3, "Rent is due.\n\nPay it."), Chunk("b", 0, "付租金。")]
    texts = ["Rent is due.", "Pay it.", "付租金。"]
    assert [each.text for each in find_quotable(short, {})] == texts
    assert [each.text for each in find_quotable([*short, Chunk("c", 0, RENT)], {})] == [RENT]


@pytest.mark.parametrize("passages", [[], [Chunk("a", 0, "")], [Chunk("a", 0, " \n")]])
def test_there_may_be_nothing_to_quote(passages):
    assert find_quotable(passages, {}) == []
