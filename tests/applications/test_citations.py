"""A citation exists only if its source says the very same, however a text came about."""

import dataclasses
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.applications.citations import (
    Citation,
    Cite,
    CitedText,
    MarkedPhrase,
    Style,
    citable_phrases,
    cited_text,
)
from univerb.decoding.results import Generation, Piece, Stats
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError, PhraseError
from univerb.phrase import Phrase, Span
from univerb.phrases.ngrams import ngrams
from univerb.tokenizer import Tokenizer

LEASE = Chunk("lease", 100, "The tenant shall pay the rent. The landlord keeps the premises dry.")
LAW = Chunk("law", 0, "Every tenant shall pay the rent on time! Who else?")
STYLES, CITES = get_args(Style), get_args(Cite)


@pytest.fixture
def tokenizer(hf_tokenizer) -> Tokenizer:
    return Tokenizer(hf_tokenizer.backend_tokenizer, hf_tokenizer.all_special_ids)


def quote(text: str, *passages: Chunk) -> Piece:
    """A phrase piece with its first place in each passage."""
    spans = []
    for passage in passages:
        start = passage.start + passage.text.index(text.strip())
        spans.append(Span(passage.document, start, start + len(text.strip())))
    return Piece(text, (1, 2), 0.0, Phrase((1, 2), text, tuple(spans)))


def written(*pieces: Piece | str) -> Generation:
    """A generation; a text stands for a token."""
    whole = tuple(p if isinstance(p, Piece) else Piece(p, (3,), 0.0) for p in pieces)
    return Generation("".join(p.text for p in whole), whole, "eos", Stats())


def rendered(*pieces: Piece | str, style: Style = "sentence", cite: Cite = "best") -> str:
    return str(cited_text(written(*pieces), [LEASE, LAW], style, cite))


# -- A citation -----------------------------------------------------------------------------------

letters = st.text(alphabet="abA \n", min_size=1, max_size=8)
numbers = st.integers(-2, 10)


@given(letters, st.integers(0, 3), letters, numbers, numbers, numbers, numbers, numbers)
def test_no_citation_that_does_not_match(text, offset, answer, marker, start, end, first, last):
    passage = Chunk("d", offset, text)
    try:
        citation = Citation(marker, passage, start, end, first, last, answer=answer)
    except PhraseError:
        return
    assert marker >= 1 and passage.start <= start < end <= passage.end
    assert 0 <= citation.answer_start < citation.answer_end <= len(answer)
    assert citation.text == text[start - offset : end - offset]
    copy = answer[first:last]
    assert len(copy) == len(citation.text)
    assert all(s == a or (s == "\n" and a == " ") for s, a in zip(citation.text, copy, strict=True))


@given(st.text(max_size=9), st.text(min_size=1, max_size=9), st.text(max_size=9), st.text())
def test_every_true_copy_can_be_cited(before, source, after, lead):
    passage = Chunk("d", 7, before + source + after)
    answer = lead + source.replace("\n", " ") + "!"
    start = 7 + len(before)
    citation = Citation(
        1,
        passage,
        start,
        start + len(source),
        len(lead),
        len(lead) + len(source),
        answer=answer,
    )
    assert (citation.document, citation.text) == ("d", source)


@pytest.mark.parametrize("copy", ["every", "EVERY", "Ev\u0435ry", "Every"[::-1]])
def test_a_copy_in_other_letters_is_not_cited(copy):
    """Neither in another case nor in letters that only look the same."""
    with pytest.raises(PhraseError, match=f"{copy!r} is not what passage 1"):
        Citation(1, LAW, 0, 5, 0, 5, answer=f"{copy} one")
    piece = Piece(copy, (1, 2), 0.0, Phrase((1, 2), copy, (Span("law", 0, 5),)))
    assert not cited_text(written(piece), [LAW], "inline", "all").citations


def test_a_citation_cannot_be_moved():
    citation = Citation(1, LAW, 0, 5, 0, 5, answer="Every one")
    with pytest.raises(PhraseError, match="'Every' is not what passage 1"):
        dataclasses.replace(citation, start=1, end=6, answer="Every one")
    with pytest.raises(dataclasses.FrozenInstanceError):
        citation.start = 3


@pytest.mark.parametrize("answer", ["every tenant", "EVERY TENANT", "Every\ttenant"])
def test_a_copy_in_other_letters_is_no_copy(answer):
    with pytest.raises(PhraseError, match="is not what passage 1"):
        Citation(1, LAW, 0, 12, 0, 12, answer=answer)


@pytest.mark.parametrize(
    ("marker", "start", "end", "first", "last"),
    [(0, 0, 5, 0, 5), (1, 0, 5, 0, 99), (1, 0, 0, 0, 0), (1, -5, 0, -5, 0), (1, 0, 99, 0, 5)],
)
def test_a_range_that_does_not_exist_is_refused(marker, start, end, first, last):
    with pytest.raises(PhraseError, match="Cite the span"):
        Citation(marker, LAW, start, end, first, last, answer="Every one")


# -- Phrases that can be cited --------------------------------------------------------------------


@given(st.text(min_size=1, max_size=80).filter(str.strip), st.integers(0, 50), st.booleans())
@pytest.mark.filterwarnings("ignore::univerb.phrases.ngrams.UnspacedTextWarning")
def test_phrases_point_into_the_document(hf_tokenizer, text, start, encode_marker):
    tokenizer = Tokenizer(hf_tokenizer.backend_tokenizer)
    passages = [LAW, Chunk("d", start, text)]
    for phrase in citable_phrases(passages, ngrams(), tokenizer, encode_marker):
        assert "[" not in phrase.text.replace("[1]", "").replace("[2]", "")
        for span in phrase.sources:
            passage = passages[span.document == "d"]
            own = passage.text[span.start - passage.start : span.end - passage.start]
            bare = re.sub(r"\[\d\]$", "", phrase.text).strip()
            assert own.replace("\n", " ") == bare


def test_a_source_that_errs_is_not_believed(tokenizer):
    def source(document, tokenizer):
        ids = tuple(tokenizer.encode_inside("the rent").ids)
        yield Phrase(ids, " the rent", (Span(document.name, 0, 8), Span("elsewhere", 0, 8)))

    assert not list(citable_phrases([LEASE, LAW], source, tokenizer))


def test_brackets_are_left_to_markers(tokenizer):
    passage = Chunk("wiki", 0, "The rent [2] is paid [sic] each month")
    found = [phrase.text for phrase in citable_phrases([passage], ngrams(), tokenizer)]
    assert found and not any("[" in text or "]" in text for text in found)


def test_marked_phrases_have_one_entry_per_passage(tokenizer):
    plain = {p.ids: p for p in citable_phrases([LEASE, LAW], ngrams(), tokenizer)}
    marked = list(citable_phrases([LEASE, LAW], ngrams(), tokenizer, encode_marker=True))
    shared = [phrase for phrase in marked if phrase.text.startswith(" shall pay[")]
    assert [phrase.text for phrase in shared] == [" shall pay[1]", " shall pay[2]"]
    assert [phrase.sources[0].document for phrase in shared] == ["lease", "law"]
    for phrase in marked:
        assert tokenizer.decode(phrase.ids) == phrase.text
        assert len(phrase.sources) == len({(s.start, s.end) for s in phrase.sources})
        assert any(phrase.ids[: len(ids)] == ids for ids in plain)


@given(st.integers(0, 15))
def test_a_marker_is_never_sourced(length):
    phrase = MarkedPhrase((1, 2, 3), " shall pay[1]", (Span("lease", 111, 120),), bare=10)
    text = phrase.text[:length]
    part = phrase.cut(text, (1,))
    assert part.text == text
    assert [span.end for span in part.sources] == [
        111 + len(text[:10].strip()) for _ in part.sources
    ]
    assert part.cut(text[:5], (1,)).sources == phrase.cut(text[:5], (1,)).sources


# -- Rendering ------------------------------------------------------------------------------------


def test_markers_stand_before_the_final_punctuation():
    pieces = [quote(" tenant shall", LEASE), " really", quote(" pay the rent.", LEASE)]
    assert rendered("The", *pieces) == "The tenant shall really pay the rent [1]."
    assert rendered("The", *pieces, style="none") == "The tenant shall really pay the rent."


@pytest.mark.parametrize("end", [".", "!", "?!", '."', ".)", "", "…", "。"])
def test_any_final_punctuation(end):
    assert rendered("So", quote(" pay the rent", LEASE), end) == f"So pay the rent [1]{end}"


def test_inline_markers_stand_after_each_phrase():
    pieces = [quote(" tenant shall", LEASE), quote(" on time", LAW), " pay."]
    assert rendered("The", *pieces, style="inline") == "The tenant shall[1] on time[2] pay."


def test_the_best_passage_or_all():
    piece = quote(" tenant shall", LAW, LEASE)
    assert rendered("A", piece, style="inline") == "A tenant shall[1]"
    assert rendered("A", piece, style="inline", cite="all") == "A tenant shall[1][2]"
    assert rendered("A", piece, ".", cite="all") == "A tenant shall [1][2]."


def test_a_phrase_over_the_end_of_a_sentence_is_cited_in_both():
    piece = quote(" the rent. The landlord", LEASE)
    cited = cited_text(written("Pay", piece, " sleeps."), [LEASE, LAW], "sentence", "best")
    assert str(cited) == "Pay the rent [1]. The landlord sleeps [1]."
    assert [citation.text for citation in cited.citations] == ["the rent", "The landlord"]


def test_at_most_three_numbers_in_the_order_of_first_use():
    passages = [Chunk(name, 0, f"the {name} day") for name in "abcd"]
    pieces = [quote(f" the {passages[i].document}", passages[i]) for i in (3, 1, 3, 0, 2)]
    cited = cited_text(written("On", *pieces, "."), passages, "sentence", "best")
    assert str(cited) == "On the d the b the d the a the c [4][2][1]."
    assert [citation.marker for citation in cited.citations] == [4, 2, 4, 1, 3]


def test_typed_markers_are_merged():
    rent = quote(" the rent", LEASE)
    assert rendered("Pay", rent, " [", "2", "]", ".") == "Pay the rent [1][2]."
    assert rendered("Pay", rent, "[1]", ".") == "Pay the rent [1]."
    assert rendered("Pay", rent, " [2, 1]", " now", style="inline") == "Pay the rent[1][2] now"
    assert rendered("Pay now. [2]", " And go.") == "Pay now [2]. And go."
    assert rendered("[2] Pay now.") == "Pay now [2]."
    assert rendered("Pay [2] now.", style="none") == "Pay now."


def test_numbers_of_no_passage_are_dropped():
    assert rendered("Pay [3] the rent [0] now [99].") == "Pay the rent now."


@pytest.mark.parametrize("rest", ["[", " [1", "[1, ", " ["])
def test_the_beginning_of_a_marker_at_the_end_goes(rest):
    assert rendered("Pay", quote(" the rent", LEASE), rest, style="inline") == "Pay the rent[1]"


@pytest.mark.parametrize("style", STYLES)
def test_an_encoded_marker_shows_once(style):
    phrase = MarkedPhrase((1, 2), " the rent[2]", (Span("law", 23, 31),), bare=9)
    piece = Piece(" the rent[2]", (1, 2), 0.0, phrase.cut(phrase.text, (1, 2)))
    cited = cited_text(written("Pay", piece, " now."), [LEASE, LAW], style, "best")
    assert [(c.marker, c.text, c.start) for c in cited.citations] == [(2, "the rent", 23)]
    assert str(cited).count("[2]") == (style != "none")
    assert cited.text == "Pay the rent now."


def test_a_wrapped_line_is_quoted_as_it_is():
    passage = Chunk("d", 3, "a line\nwrapped")
    piece = Piece(" line wrapped", (1, 2), 0, Phrase((1, 2), " line wrapped", (Span("d", 5, 17),)))
    (citation,) = cited_text(written("A", piece), [passage], "sentence", "best").citations
    assert citation.text == "line\nwrapped"


def test_overlapping_passages_of_one_document():
    second = Chunk("lease", LEASE.start + 4, LEASE.text[4:20])
    piece = quote(" tenant shall", LEASE)
    for passages, expected in (([LEASE, second], [1, 2]), ([LAW, second], [2]), ([LAW], [])):
        cited = cited_text(written("A", piece), passages, "inline", "all")
        assert [citation.marker for citation in cited.citations] == expected


def test_what_does_not_match_is_not_cited():
    piece = Piece(" the moon", (1, 2), 0.0, Phrase((1, 2), " the moon", (Span("law", 23, 31),)))
    assert rendered("See", piece, ".") == "See the moon."


@pytest.mark.parametrize(("style", "cite"), [("Inline", "best"), ("inline", "bets")])
def test_unknown_choices_are_refused(style, cite):
    with pytest.raises(OptionError, match="Did you mean"):
        cited_text(written("a"), [], style, cite)


# -- Whatever is written --------------------------------------------------------------------------

words = st.lists(st.sampled_from(["a", "b.", "[1]", "[7]", "c!", "(", "\n", "  "]), max_size=6)


@st.composite
def generations(draw: st.DrawFn) -> tuple[list[Chunk], Generation]:
    source = st.text(alphabet="ab. \n", min_size=3, max_size=12).filter(str.strip)
    passages = [
        Chunk(draw(st.sampled_from("de")), draw(st.integers(0, 5)), text)
        for text in draw(st.lists(source, min_size=1, max_size=4))
    ]
    pieces: list[Piece | str] = []
    for _ in range(draw(st.integers(0, 6))):
        pieces += [" " + word for word in draw(words)]
        passage = draw(st.sampled_from(passages))
        first = draw(st.integers(0, len(passage.text) - 1))
        text = passage.text[first : draw(st.integers(first + 1, len(passage.text)))]
        visible = text.strip()
        if visible:
            start = passage.start + first + text.index(visible)
            span = Span(passage.document, start, start + len(visible))
            copy = draw(st.sampled_from([" ", ""])) + visible.replace("\n", " ")
            pieces.append(Piece(copy, (1, 2), 0.0, Phrase((1, 2), copy, (span,))))
    return passages, written(*pieces)


@given(generations(), st.sampled_from(STYLES), st.sampled_from(CITES))
def test_every_rendering_can_be_checked(case, style, cite):
    passages, generation = case
    cited = cited_text(generation, passages, style, cite)
    assert cited.text == cited.text.strip()
    assert not re.search(r"\[\d+\]", cited.text)
    shown = str(cited)
    assert re.sub(r" ?\[\d+\]", "", shown).split() == cited.text.split()
    assert all(1 <= typed.marker <= len(passages) for typed in cited.typed)
    for one in cited.to_dicts():
        passage = passages[one["marker"] - 1]
        assert passage.document == one["document"]
        own = passage.text[one["start"] - passage.start : one["end"] - passage.start]
        assert own == one["text"]
        assert shown[one["answer_start"] : one["answer_end"]] == own.replace("\n", " ")
    groups = re.findall(r"(?:\[\d+\])+", shown)
    assert all(len(set(g.split("]"))) == len(g.split("]")) for g in groups)
    if style == "sentence":
        assert all(group.count("[") <= 3 for group in groups)
        used = {c.marker for c in cited.citations} | {typed.marker for typed in cited.typed}
        assert {int(n) for n in re.findall(r"\d+", "".join(groups))} <= used
    if style == "none":
        assert shown == cited.text


def test_a_text_without_citations_is_itself():
    assert str(CitedText("As it is.")) == "As it is."


def test_years_and_other_long_numbers_in_brackets_are_text():
    text = "See case [2019] and [1,000] of it."
    assert rendered(text) == text
    assert rendered(f"Pay [{'9' * 5000}] now.").startswith("Pay [999")
