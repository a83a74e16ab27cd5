"""From what an LM wrote to a text with markers: what is typed, cut, cited and shown."""

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges import FixedJudge, agreeing, refusing
from univerb.applications.citable_phrases import MarkedPhrase
from univerb.applications.citations import Cite, Style
from univerb.applications.cited_text import cited_text, split_answer
from univerb.decoding.results import Generation, Piece, Stats
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError
from univerb.phrase import Phrase, Span

LEASE = Chunk("lease", 100, "The quiet tenant pays the monthly rent. The landlord keeps it dry.")
LAW = Chunk("law", 0, "Every quiet tenant pays the monthly rent on Sundays! Who else?")
STYLES, CITES = get_args(Style), get_args(Cite)


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


def copied(*pieces: Piece | str, style: Style = "sentence", cite: Cite = "best") -> str:
    """A text whose markers say where its words were copied from."""
    return str(cited_text(written(*pieces), [LEASE, LAW], style, cite, support=False))


def supported(
    *pieces: Piece | str,
    style: Style = "sentence",
    cite: Cite = "best",
    judge: FixedJudge | None = None,
) -> str:
    """A text whose markers say what supports its sentences."""
    judge = judge or refusing()
    return str(cited_text(written(*pieces), [LEASE, LAW], style, cite, judge=judge))


# -- Where words were copied from -----------------------------------------------------------------


def test_markers_stand_before_the_final_punctuation():
    text = "The quiet tenant really pays the monthly rent."
    assert copied(text) == "The quiet tenant really pays the monthly rent [1]."
    assert copied(text, style="none") == text


@pytest.mark.parametrize("end", [".", "!", "?!", '."', ".)", "", "…", "。"])
def test_any_final_punctuation(end):
    text = "So the quiet tenant pays on Sundays"
    assert copied(text + end, cite="best") == f"{text} [1][2]{end}"


def test_inline_markers_stand_after_each_stretch():
    text = "A quiet tenant sings on Sundays."
    assert copied(text, style="inline") == "A quiet tenant[1] sings on Sundays[2]."
    assert copied(text, style="inline", cite="all") == "A quiet tenant[1][2] sings on Sundays[2]."


def test_the_best_passage_or_all():
    text = "A quiet tenant."
    assert copied(text) == "A quiet tenant [1]."
    assert copied(text, cite="all") == "A quiet tenant [1][2]."


def test_a_phrase_says_which_passage_was_meant():
    assert copied("A", quote(" quiet tenant", LAW), ".") == "A quiet tenant [2]."
    assert copied("A", quote(" quiet tenant", LAW, LEASE), ".") == "A quiet tenant [1]."


def test_adjacent_phrases_of_one_place_are_one_citation():
    pieces = [quote(" quiet tenant", LAW), quote(" pays the monthly", LAW), quote(" rent", LEASE)]
    cited = cited_text(written("A", *pieces, "."), [LEASE, LAW], support=False)
    [citation] = cited.citations
    assert (citation.marker, citation.text) == (2, "quiet tenant pays the monthly rent")


def test_a_phrase_over_the_end_of_a_sentence_is_cited_in_both():
    passage = Chunk("d", 0, "Old pipes freeze. The old pump runs dry.")
    pieces = written("Pay: ", quote("Old pipes freeze. The old pump", passage), " sings.")
    cited = cited_text(pieces, [passage], support=False)
    assert str(cited) == "Pay: Old pipes freeze [1]. The old pump sings [1]."
    assert [citation.text for citation in cited.citations] == ["Old pipes freeze", "The old pump"]


def test_at_most_three_numbers_in_the_order_of_first_use():
    passages = [Chunk(name, 0, f"one {name} stone") for name in ("red", "blue", "green", "grey")]
    text = "One grey stone, blue stone, grey stone, red stone, green stone."
    cited = cited_text(written(text), passages, support=False)
    assert str(cited) == f"{text[:-1]} [4][2][1]."
    assert [citation.marker for citation in cited.citations] == [4, 2, 4, 1, 3]


def test_typed_markers_are_merged():
    assert copied("A quiet tenant", " [", "2", "]", ".") == "A quiet tenant [1][2]."
    assert copied("A quiet tenant", "[1]", ".") == "A quiet tenant [1]."
    assert copied("A quiet tenant", " [2, 1]", " now", style="inline") == "A quiet tenant[1][2] now"
    assert copied("Pay now. [2]", " And go.") == "Pay now [2]. And go."
    assert copied("[2] Pay now.") == "Pay now [2]."
    assert copied("Pay [2] now.", style="none") == "Pay now."


def test_a_typed_marker_inside_a_copied_stretch_stands_behind_it():
    assert copied("A quiet [2] tenant sings.", style="inline") == "A quiet tenant[2][1] sings."


def test_numbers_of_no_passage_are_dropped():
    assert copied("A quiet tenant [3] sings [0] now [99].") == "A quiet tenant sings now [1]."


@pytest.mark.parametrize("rest", ["[", " [1", "[1, ", " ["])
def test_the_beginning_of_a_marker_at_the_end_goes(rest):
    assert copied("A quiet tenant", rest, style="inline") == "A quiet tenant[1]"


@pytest.mark.parametrize("is_judged", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_an_encoded_marker_shows_once(style, is_judged):
    text = " quiet tenant[2]"
    phrase = MarkedPhrase((1, 2), text, (Span("law", 6, 18),), bare=13)
    piece = Piece(text, (1, 2), 0.0, phrase.cut(text, (1, 2)))
    pieces = written("A", piece, " sings rent on Sundays.")
    cited = cited_text(pieces, [LEASE, LAW], style, support=is_judged, judge=agreeing())
    first = cited.citations[0]
    assert (first.marker, first.text, first.start) == (2, "quiet tenant", 6)
    markers = {"none": 0, "sentence": 1, "inline": 2}
    assert str(cited).count("[2]") == markers[style]
    assert cited.text == "A quiet tenant sings rent on Sundays."


def test_a_wrapped_line_is_quoted_as_it_is():
    passage = Chunk("d", 3, "a long\nline wrapped")
    [citation] = cited_text(written("A long line wrapped"), [passage], support=False).citations
    assert citation.text == "long\nline wrapped"


def test_overlapping_passages_of_one_document():
    second = Chunk("lease", LEASE.start + 4, LEASE.text[4:20])
    for passages, expected in (([LEASE, second], [1, 2]), ([LAW, second], [1, 2]), ([LAW], [1])):
        cited = cited_text(written("A quiet tenant"), passages, "inline", "all", support=False)
        assert [citation.marker for citation in cited.citations] == expected


def test_a_phrase_that_its_source_does_not_have_is_not_cited():
    piece = Piece(" the blue moon", (1, 2), 0.0, Phrase((1, 2), "x", (Span("law", 23, 31),)))
    assert copied("See", piece, ".") == "See the blue moon."


@pytest.mark.parametrize(("style", "cite"), [("Inline", "best"), ("inline", "bets")])
def test_unknown_choices_are_refused(style, cite):
    with pytest.raises(OptionError, match="Did you mean"):
        cited_text(written("a"), [], style, cite)


def test_years_and_other_long_numbers_in_brackets_are_text():
    text = "See case [2019] and [1,000] of it."
    assert copied(text) == text
    assert copied(f"Pay [{'9' * 5000}] now.").startswith("Pay [999")


# -- What supports it -----------------------------------------------------------------------------


def test_markers_stand_on_supported_sentences_only():
    text = "The quiet tenant pays the monthly rent. Bread rises. Thus the landlord keeps it dry."
    first, second, third = text.split(". ")
    assert supported(text) == f"{first} [1]. {second}. {third}"
    assert supported(text, style="none") == text
    assert supported(text, judge=agreeing()) == f"{first} [1]. {second}. {third[:-1]} [1]."
    unsure = FixedJudge(lambda *_: 0.3)
    assert supported(text, judge=unsure) == supported(text, judge=agreeing())


def test_inline_marks_the_copied_stretches_of_what_is_supported():
    pieces = ("Every quiet tenant sings on Sundays.", " Bread rises.")
    agreed = supported(*pieces, style="inline", judge=agreeing())
    assert agreed == "Every quiet tenant[2] sings on Sundays[2]. Bread rises."
    assert supported(*pieces, style="inline") == "".join(pieces)
    # What was copied from others than the passage that supports it is not marked.
    pieces = ("The quiet tenant pays the monthly rent on mondays.",)
    twin = LAW.text.replace("Sundays", "mondays").replace("rent", "fee")
    passages = [LEASE, Chunk("twin", 0, twin)]
    for marker in (1, 2):
        judge = FixedJudge(lambda premise, _, n=marker: float(("twin" in premise) == (n == 2)))
        shown = str(cited_text(written(*pieces), passages, "inline", judge=judge))
        assert set(re.findall(r"\d", shown)) == {str(marker)}


def test_all_passages_that_support_a_sentence_are_marked_if_all_are_asked_for():
    text = "So the quiet tenant pays the monthly rent."
    assert supported(text, judge=agreeing()) == f"{text[:-1]} [1]."
    assert supported(text, judge=agreeing(), cite="all") == f"{text[:-1]} [1][2]."


@pytest.mark.parametrize("style", STYLES)
def test_citations_say_whether_their_marker_is_shown(style):
    text = "The quiet tenant pays the monthly rent. Bread of the quiet tenant rises."
    cited = cited_text(written(text), [LEASE], style, judge=refusing())
    shown = [one["shown"] for one in cited.to_dicts()]
    assert shown == [cited.is_shown(citation) for citation in cited.citations]
    assert shown == [style != "none", False]


def test_what_the_lm_typed_is_looked_at_but_not_believed():
    text = "The big ships sail fast [2]."
    assert supported(text, judge=agreeing()) == "The big ships sail fast."
    many = [Chunk(f"d{n}", 0, "So the big ships sail on.") for n in range(9)]
    judge = refusing()
    typed = cited_text(written("Big ships do sail on [8]."), many, judge=judge).typed
    assert any(premise.startswith("Title: d7") for premise, _ in judge.asked)
    assert [marker.marker for marker in typed] == [8]


def test_the_words_of_the_question_are_known_to_the_judged():
    text = written("Gladly the quiet tenant silently pays the monthly rent.")
    for question, expected in (("", ""), ("Who pays gladly?", " [1]")):
        cited = cited_text(text, [LEASE], question=question, judge=agreeing())
        assert str(cited) == f"{text.text[:-1]}{expected}."


def test_a_text_can_be_cut():
    text = "The quiet tenant pays the monthly rent. The landlord keeps"
    cited = cited_text(written(text), [LEASE], judge=refusing(), end=text.index(" The land"))
    assert str(cited) == "The quiet tenant pays the monthly rent [1]."
    pieces = written(quote("The quiet tenant", LEASE), quote(" pays the monthly rent", LEASE))
    cited = cited_text(pieces, [LEASE], judge=refusing(), end=len("The quiet tenant pays"))
    assert cited.text == "The quiet tenant pays"
    assert [c.text for c in cited.citations] == ["The quiet tenant pays"]


def test_sentences_end_before_their_final_punctuation():
    text = "Ships sail!  “Do they?” Yes"
    sentences = [(text[s.start : s.tail], text[s.start : s.end]) for s in split_answer(text)]
    expected = [("Ships sail", "Ships sail!"), ("“Do they", "“Do they?”"), ("Yes", "Yes")]
    assert sentences == expected


# -- Whatever is written --------------------------------------------------------------------------

words = st.lists(
    st.sampled_from(["red", "b.", "[1]", "[7]", "[2, 1]", "fox!", "(", "\n", "  ", "not"]),
    max_size=6,
)


@st.composite
def generations(draw: st.DrawFn) -> tuple[list[Chunk], Generation]:
    source = st.lists(
        st.sampled_from(["red", "fox", "runs.", "not", "1,500", "co-op", "\n", "été"]), min_size=2
    ).map(" ".join)
    passages = [
        Chunk(draw(st.sampled_from("de")), draw(st.integers(0, 5)), text)
        for text in draw(st.lists(source.filter(str.strip), min_size=1, max_size=4))
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


@settings(max_examples=300)
@given(
    generations(),
    st.sampled_from(STYLES),
    st.sampled_from(CITES),
    st.sampled_from([None, 0.0, 1.0]),
    st.none() | st.integers(0, 40),
)
def test_every_rendering_can_be_checked(case, style, cite, probability, end):
    passages, generation = case
    cited = cited_text(
        generation,
        passages,
        style,
        cite,
        support=probability is not None,
        judge=FixedJudge(lambda *_: probability),
        end=end,
    )
    assert cited.text == cited.text.strip()
    assert not re.search(r"\[\d+\]", cited.text)
    shown = str(cited)
    assert re.sub(r" ?\[\d+\]", "", shown).split() == cited.text.split()
    assert "".join(run.text for run in cited.runs()) == shown
    assert all(1 <= typed.marker <= len(passages) for typed in cited.typed)
    for one in cited.to_dicts():
        passage = passages[one["marker"] - 1]
        assert passage.document == one["document"]
        own = passage.text[one["start"] - passage.start : one["end"] - passage.start]
        assert own == one["text"]
        assert shown[one["answer_start"] : one["answer_end"]].split() == own.split()
    groups = re.findall(r"(?:\[\d+\])+", shown)
    shown_markers = {int(number) for number in re.findall(r"\d+", "".join(groups))}
    assert shown_markers <= set(range(1, len(passages) + 1))
    if probability is not None:
        assert shown_markers <= {m for s in cited.sentences for m in s.markers}
    if style == "sentence":
        assert all(group.count("[") <= 3 for group in groups)
        assert all(len(set(g.split("]"))) == len(g.split("]")) for g in groups)
    if style == "none":
        assert shown == cited.text
