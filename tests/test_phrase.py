"""Documents, spans and phrases: identity by ids, and sources that stay true."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import DocumentError, PhraseError, UniverbError
from univerb.phrase import Document, Phrase, Span

SPANS = st.builds(Span, st.sampled_from(["a.txt", "b.txt"]), st.integers(0, 5), st.integers(6, 9))
WEIGHTS = st.floats(-10, 10)
WORDS = st.lists(st.sampled_from(["the", "tenant", "shall", "größe", "東京", "😀"]), min_size=1)


def phrase(sources: tuple[Span, ...] = (), weight: float = 0.0) -> Phrase:
    return Phrase((7, 8), " quiet enjoyment", sources, weight)


class TestDocument:
    @pytest.mark.parametrize("text", ["", " ", "\n\t \u00a0\r\n"])
    def test_no_text_is_refused_by_name(self, text: str) -> None:
        with pytest.raises(DocumentError, match=r"'empty\.txt'"):
            Document(text, "empty.txt")

    def test_the_text_is_kept_as_it_was_given(self) -> None:
        assert Document("  a\r\nb ").text == "  a\r\nb "

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Document("a").text = "b"


class TestIdentity:
    def test_ids_alone_make_phrases_equal(self) -> None:
        one = phrase((Span("a.txt", 0, 3),), 2.0)
        other = Phrase((7, 8), "spelled otherwise")
        assert one == other
        assert hash(one) == hash(other)
        assert len({one, other}) == 1

    def test_other_ids_make_another_phrase(self) -> None:
        assert Phrase((7, 8), " a") != Phrase((8, 7), " a")
        assert Phrase((7,), " a") != Phrase((7, 7), " a")

    def test_a_phrase_equals_nothing_but_phrases(self) -> None:
        assert phrase() != (7, 8)

    def test_length_counts_tokens_and_str_is_the_text(self) -> None:
        assert len(phrase()) == 2
        assert str(phrase()) == " quiet enjoyment"

    def test_a_phrase_without_tokens_is_refused(self) -> None:
        with pytest.raises(PhraseError, match="' nothing' has no tokens") as caught:
            Phrase((), " nothing")
        assert isinstance(caught.value, UniverbError)

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            phrase().weight = 1.0


class TestMerged:
    @given(st.lists(SPANS), st.lists(SPANS), WEIGHTS, WEIGHTS)
    def test_every_source_of_both_is_there_once(
        self, left: list[Span], right: list[Span], weight: float, other_weight: float
    ) -> None:
        one = phrase(tuple(dict.fromkeys(left)), weight)
        both = one.merged(phrase(tuple(dict.fromkeys(right)), other_weight))
        assert set(both.sources) == {*left, *right}
        assert len(both.sources) == len(set(both.sources))
        assert both.sources[: len(one.sources)] == one.sources
        assert both == one

    @given(WEIGHTS, WEIGHTS)
    def test_the_weight_that_is_larger_in_size_stays(self, left: float, right: float) -> None:
        merged = phrase(weight=left).merged(phrase(weight=right)).weight
        assert merged in (left, right)
        assert abs(merged) == max(abs(left), abs(right))

    def test_neither_of_the_two_changes(self) -> None:
        one, other = phrase((Span("a.txt", 0, 3),), 1.0), phrase((Span("b.txt", 0, 3),), -2.0)
        one.merged(other)
        assert (one.sources, one.weight) == ((Span("a.txt", 0, 3),), 1.0)
        assert (other.sources, other.weight) == ((Span("b.txt", 0, 3),), -2.0)

    def test_a_weight_without_sources_is_merged_too(self) -> None:
        merged = phrase((Span("a.txt", 0, 3),)).merged(phrase(weight=1.5))
        assert (merged.sources, merged.weight) == ((Span("a.txt", 0, 3),), 1.5)


class TestCut:
    @given(before=WORDS, words=WORDS, keep=st.integers(1), weight=WEIGHTS)
    def test_the_sources_cover_exactly_the_part(
        self, before: list[str], words: list[str], keep: int, weight: float
    ) -> None:
        text = " ".join(before + words + before + words)
        length = len(" ".join(words))
        starts = (len(" ".join(before)) + 1, len(text) - length)
        whole = Phrase(
            tuple(range(1, len(words) + 2)),
            " " + " ".join(words),
            tuple(Span("a.txt", start, start + length) for start in starts),
            weight,
        )
        kept = " ".join(words[: 1 + keep % len(words)])
        part = whole.cut(f" {kept}", (1,))
        assert (part.text, part.ids, part.weight) == (f" {kept}", (1,), weight)
        assert tuple(span.start for span in part.sources) == starts
        assert {text[span.start : span.end] for span in part.sources} == {kept}

    def test_the_whole_stays_as_it_was(self) -> None:
        whole = phrase((Span("a.txt", 4, 19),))
        whole.cut(" quiet", (7,))
        assert (whole.text, whole.sources) == (" quiet enjoyment", (Span("a.txt", 4, 19),))


def test_spans_sort_by_document_and_place() -> None:
    spans = [Span("b", 0, 1), Span("a", 5, 6), Span("a", 2, 9), Span("a", 2, 3)]
    assert sorted(spans) == [Span("a", 2, 3), Span("a", 2, 9), Span("a", 5, 6), Span("b", 0, 1)]


@pytest.mark.parametrize("weight", [1e300, -1e300, float("nan"), float("inf")])
def test_a_weight_that_no_logit_could_hold_is_refused(weight):
    with pytest.raises(PhraseError, match="between -1,000,000 and 1,000,000"):
        Phrase((1, 2), " a b", weight=weight)
