"""What passages have of a sentence: its words, what it says, a part of it, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges import FixedJudge, agreeing, refusing
from univerb.applications import support
from univerb.applications.citations import Sentence, find_citations
from univerb.applications.cited_text import split_answer
from univerb.applications.support import supported_sentences
from univerb.documents.chunks import Chunk

LEASE = Chunk("lease", 100, "The quiet tenant pays the monthly rent. Old pipes freeze in winter.")
LAW = Chunk("law", 0, "Nobody believes that old ships sail without engines, but 12 big cats swim.")


CLAIM = "So the quiet tenant pays the monthly rent."
"""Says what LEASE says, nearly in its words."""


def unsure(probability: float, threshold: float = 0.5) -> FixedJudge:
    """A judge who gives everything the same probability."""
    return FixedJudge(lambda *_: probability, threshold)


def judged(text, passages, judge, named=(), cite="best", question=""):
    """Return support and markers of each sentence."""
    sentences = tuple(s._replace(markers=tuple(named)) for s in split_answer(text))
    citations = find_citations(text, sentences, passages, cite)
    done = supported_sentences(text, sentences, citations, passages, question, judge)
    assert [(s.start, s.tail, s.end) for s in done] == [(s.start, s.tail, s.end) for s in sentences]
    return [(s.support, s.markers) for s in done]


@pytest.mark.parametrize(
    "text",
    [
        "The quiet tenant pays the monthly rent.",
        "The quiet tenant pays the monthly rent!",
        "“The quiet  tenant pays the monthly rent”",
        "quiet tenant pays the monthly rent",
        "Old pipes freeze in winter",
    ],
)
def test_a_sentence_that_stands_in_a_passage_is_quoted_and_nobody_is_asked(text):
    judge = refusing()
    assert judged(text, [LAW, LEASE], judge) == [("quoted", (2,))]
    assert not judge.asked


def test_the_judge_that_ships_is_not_loaded_for_quotes(monkeypatch):
    monkeypatch.setattr(support, "default_judge", lambda: pytest.fail("it was loaded"))
    assert judged("Old pipes freeze in winter.", [LEASE], None) == [("quoted", (1,))]


def test_the_judge_that_ships_decides_where_no_other_is_given(monkeypatch):
    monkeypatch.setattr(support, "default_judge", agreeing)
    assert judged(CLAIM, [LEASE], None) == [("supported", (1,))]


@pytest.mark.parametrize(
    "turned",
    [
        "Nobody believes that {}",
        "It is not true that {}",
        "It isn't so that {}",
        "It isn’t so that {}",
        "Unless the roof leaks, {}",
        "They never said that {}",
        "Some ask whether {}",
        "Without a contract, {}",
    ],
)
def test_words_behind_a_negation_or_a_condition_are_not_quoted(turned):
    claim = "old ships sail quickly"
    passage = Chunk("d", 9, f"Big cats swim. {turned.format(claim)}. Old pipes freeze.")
    assert judged(f"{claim}.", [passage], refusing()) == [("unsupported", ())]
    # What the judge says holds, and a turn in another sentence does not count.
    assert judged(f"{claim}.", [passage], agreeing()) == [("supported", (1,))]
    assert judged("Big cats swim.", [passage], refusing()) == [("quoted", (1,))]
    assert judged("Old pipes freeze.", [passage], refusing()) == [("quoted", (1,))]


@pytest.mark.parametrize(
    ("rest", "is_quoted"),
    [
        (", unless the roof leaks", False),
        (", except in May", False),
        (" if Ada asks", False),
        (" each month until May", False),
        (", provided that it is dry", False),
        (" without delay", False),
        (" only in May", False),
        (" on the first day, and only if Ada asks", False),
        (" on the first day of each month", True),
        (", and the landlord keeps the gift", True),
        (". If the roof leaks, Ada comes. Unless it rains", True),
        ("", True),
    ],
)
def test_words_without_the_condition_behind_them_are_not_quoted(rest, is_quoted):
    passage = Chunk("d", 9, f"Only cats swim. The tenant shall pay{rest}. Pipes freeze if cold.")
    expected = ("quoted", (1,)) if is_quoted else ("unsupported", ())
    assert judged("The tenant shall pay.", [passage], refusing()) == [expected]
    # The whole sentence has its condition.
    whole = f"The tenant shall pay{rest}".split(". ")[0]
    assert judged(f"{whole}.", [passage], refusing()) == [("quoted", (1,))]


def test_another_passage_that_says_it_plainly_is_quoted():
    plain = Chunk("plain", 0, "old ships sail without engines")
    text = "old ships sail without engines."
    assert judged(text, [LAW, plain], refusing(), cite="all") == [("quoted", (2,))]


# -- Sentences that are no quotes -----------------------------------------------------------------


def test_only_the_likeliest_passage_is_cited():
    scores = {"lease": 0.7, "law": 0.9, "other": 0.2}
    judge = FixedJudge(lambda premise, _: scores[premise.split("\n")[0].removeprefix("Title: ")])
    passages = [LEASE, Chunk("law", 0, LEASE.text), Chunk("other", 0, LEASE.text)]
    assert judged(CLAIM, passages, judge) == [("supported", (2,))]
    assert judge.asked[0] == (f"Title: lease\n{LEASE.text}", CLAIM)
    assert len(judge.asked) == 3
    # Of equally likely ones the better ranked.
    assert judged(CLAIM, passages, agreeing(), cite="all") == [("supported", (1,))]
    assert judged(CLAIM, passages, unsure(0.2), cite="all") == [("partly", (1,))]


@pytest.mark.parametrize(
    ("probability", "threshold", "support"),
    [
        (0.0, 0.5, "unsupported"),
        (0.09, 0.5, "unsupported"),
        (0.1, 0.5, "partly"),
        (0.49, 0.5, "partly"),
        (0.5, 0.5, "supported"),
        (0.9, 0.95, "partly"),
    ],
)
def test_the_probability_decides_whether_it_is_supported_or_partly(probability, threshold, support):
    markers = () if support == "unsupported" else (1,)
    assert judged(CLAIM, [LEASE], unsure(probability, threshold)) == [(support, markers)]


def test_a_sentence_is_held_against_what_it_copies_then_what_it_names_then_the_best():
    names = ["Bob", "Cleo", "Dora", "Emil", "Finn", "Gus", "Ada", "Hugo", "Ivo"]
    passages = [
        Chunk(f"d{n}", 0, f"The warm bread of baker {name} slowly rises.")
        for n, name in enumerate(names)
    ]
    judge = refusing()
    judged("So the warm bread of baker Ada slowly rises.", passages, judge, named=(5,))
    asked = [premise.split("\n")[0] for premise, _ in judge.asked]
    assert asked == ["Title: d6", "Title: d4", "Title: d0"]


@pytest.mark.parametrize(
    "text",
    [
        "Surely the quiet tenant pays the monthly rent.",
        "The QUIET tenant pays the Monthly rent",
        # A few others stand between them.
        "The quiet tenant now pays the very monthly rent.",
        "The quiet tenant pays the old monthly rent.",
        # The title is part of it.
        "Lease: the quiet tenant gladly pays the monthly rent.",
    ],
)
def test_a_sentence_that_has_the_words_of_its_passage_in_their_order_is_judged(text):
    assert judged(text, [LEASE], agreeing()) == [("supported", (1,))]
    assert judged(text, [LEASE], refusing()) == [("unsupported", ())]


@pytest.mark.parametrize(
    "text",
    [
        # Another order.
        "The monthly rent pays the quiet tenant.",
        "Tenant rent: the old winter freezes quiet pipes.",
        # Two new content words.
        "Surely the quiet tenant gladly pays the monthly rent.",
        # Too many other words, although none is new.
        "And so it is that the quiet tenant pays the rent.",
        # It says next to nothing.
        "The answer is 7.",
        "The tenant does pay.",
        "Yes.",
        "?!",
        # A negation or a condition that the passage does not have.
        "The quiet tenant never pays the monthly rent.",
        "The quiet tenant doesn't pay the monthly rent.",
        "The quiet tenant pays the monthly rent without pipes.",
        "Bread rises by yeast.",
    ],
)
def test_others_are_unsupported_whatever_the_judge_says(text):
    judge = agreeing()
    assert judged(text, [LEASE], judge) == [("unsupported", ())]
    assert not judge.asked


def test_words_of_the_question_are_nothing_new():
    text = "Surely the quiet tenant gladly pays the monthly rent."
    asked = {"question": "Who pays GLADLY?"}
    assert judged(text, [LEASE], agreeing(), **asked) == [("supported", (1,))]
    assert judged("The answer is 7.", [LEASE], agreeing(), question="What is the answer?") == [
        ("unsupported", ())
    ]


def test_a_negation_that_the_passage_has_may_be_judged():
    passage = Chunk("d", 0, "The quiet tenant never pays the monthly rent.")
    text = "So the quiet tenant never pays the monthly rent."
    assert judged(text, [passage], agreeing()) == [("supported", (1,))]


def test_hyphenated_words_are_whole():
    passage = Chunk("d", 0, "An under-proved dough has small dense crumbs inside the loaf.")
    text = "So an over-proved dough has {} dense crumbs inside the loaf."
    assert judged(text.format("small"), [passage], agreeing()) == [("supported", (1,))]
    # It is not what the passage has, and so a second new word is too many.
    assert judged(text.format("large"), [passage], agreeing()) == [("unsupported", ())]


def test_at_most_three_markers():
    same = [Chunk(f"d{n}", 0, LEASE.text) for n in range(6)]
    text = "Old pipes freeze in winter."
    assert judged(text, same, refusing(), cite="all") == [("quoted", (1, 2, 3))]
    assert judged(f"Thus {text}", same, agreeing(), cite="all") == [("supported", (1,))]


def test_each_sentence_is_judged_by_itself():
    text = "Old pipes freeze in winter. Bread rises. The quiet tenant pays the monthly rent."
    assert judged(text, [LEASE], refusing()) == [
        ("quoted", (1,)),
        ("unsupported", ()),
        ("quoted", (1,)),
    ]
    assert supported_sentences("", (), (), (), judge=refusing()) == ()


def test_without_passages_nothing_is_supported():
    assert judged("Old pipes freeze.", [], agreeing()) == [("unsupported", ())]


words = st.lists(
    st.sampled_from(["the", "quiet", "tenant", "pays", "12", "not", "rent.", "winter!", "if"]),
    max_size=12,
).map(" ".join)


@given(words, st.lists(words.filter(bool), max_size=4), st.sampled_from([0.0, 0.3, 1.0]))
def test_markers_stand_on_supported_sentences_only(text, texts, probability):
    passages = [Chunk(f"d{n}", 0, passage) for n, passage in enumerate(texts)]
    for how, markers in judged(text, passages, unsure(probability)):
        assert how in {"quoted", "supported", "partly", "unsupported"}
        assert bool(markers) == (how != "unsupported")
        assert len(set(markers)) == len(markers) <= 3
        assert all(1 <= marker <= len(passages) for marker in markers)
        assert how == "quoted" or len(markers) <= 1
        assert how != "partly" or probability == 0.3
        assert how != "supported" or probability == 1.0


def test_a_sentence_keeps_nothing_of_an_earlier_verdict():
    before = Sentence(0, 12, 13, "quoted", (1,))
    [after] = supported_sentences("Bread rises.", [before], (), [LEASE], judge=refusing())
    assert (after.support, after.markers) == ("unsupported", ())
