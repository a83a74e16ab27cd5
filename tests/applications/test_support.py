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
    done = supported_sentences(text, sentences, citations, passages, question, judge, cite)
    assert [(s.start, s.tail, s.end) for s in done] == [(s.start, s.tail, s.end) for s in sentences]
    return [(s.support, s.markers) for s in done]


@pytest.mark.parametrize(
    "text",
    [
        "The quiet tenant pays the monthly rent.",
        "The quiet tenant pays the monthly rent!",
        "“The quiet  tenant pays the monthly rent”",
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
        "It is false that {}",
        "Few people think that {}",
    ],
)
def test_words_behind_a_negation_or_a_condition_are_not_quoted(turned):
    claim = "old ships sail quickly"
    passage = Chunk("d", 9, f"Big cats swim. {turned.format(claim)}. Old pipes freeze.")
    assert judged(f"{claim}.", [passage], agreeing()) == [("unsupported", ())]
    # A turn in another sentence does not count.
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
        (" no rent, but a fee", False),
        (" the rent, not a fee", True),
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


@pytest.mark.parametrize(
    ("before", "is_quoted"),
    [
        ("Some say ", False),
        ("The landlord (or agent) ", False),
        ("As Ada said, ", True),
        ("Ada said: “", True),
        ("2. Rent. ", True),
        ("(a) ", True),
        ("12. ", True),
        ("\n\n- ", True),
        ("Rent\n\n", True),
    ],
)
def test_a_quote_begins_where_a_sentence_or_a_clause_does(before, is_quoted):
    passage = Chunk("d", 9, f"Big cats swim. {before}the tenant pays rent in May. It rains.")
    expected = ("quoted", (1,)) if is_quoted else ("unsupported", ())
    assert judged("the tenant pays rent in May.", [passage], refusing()) == [expected]


def test_sentences_of_scripts_without_spaces_are_quoted():
    lease = Chunk("d", 0, "房东每年检查屋顶。租户应在每月第五天支付租金。")
    for text in ("租户应在每月第五天支付租金。", "房东每年检查屋顶"):
        assert judged(text, [lease], refusing()) == [("quoted", (1,))]
    assert judged("检查屋顶。", [lease], refusing()) == [("unsupported", ())]
    assert judged("租户应在每月第五天不支付租金。", [lease], agreeing()) == [("unsupported", ())]


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
    assert judged(CLAIM, passages, agreeing()) == [("supported", (1,))]
    assert judged(CLAIM, passages, unsure(0.2)) == [("partly", (1,))]


def test_all_that_pass_are_cited_where_all_are_asked_for():
    scores = {"lease": 0.2, "law": 0.9, "other": 0.5}
    judge = FixedJudge(lambda premise, _: scores[premise.split("\n")[0].removeprefix("Title: ")])
    passages = [LEASE, *(Chunk(name, 0, LEASE.text) for name in ("law", "other"))]
    assert judged(CLAIM, passages, judge, cite="all") == [("supported", (2, 3))]
    assert judged(CLAIM, passages, unsure(0.2), cite="all") == [("partly", (1, 2, 3))]
    assert judged(CLAIM, [*passages, LEASE], agreeing(), cite="all") == [("supported", (1, 2, 3))]


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
    names = ["bob", "cleo", "dora", "emil", "finn", "gus", "ada", "hugo", "ivo"]
    passages = [
        Chunk(f"d{n}", 0, f"The warm bread of baker {name} slowly rises.")
        for n, name in enumerate(names)
    ]
    judge = refusing()
    judged("So the warm bread of baker ada slowly rises.", passages, judge, named=(5,))
    asked = [premise.split("\n")[0] for premise, _ in judge.asked]
    assert asked == ["Title: d6", "Title: d4", "Title: d0"]


@pytest.mark.parametrize(
    "text",
    [
        "Surely the quiet tenant pays the monthly rent.",
        "The QUIET tenant pays the Monthly rent",
        # A few others stand between them.
        "The quiet tenant now pays the very monthly rent.",
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
        # A word that the passage has elsewhere.
        "The quiet tenant pays the old monthly rent.",
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


MEDICINE = "Do not give this medicine to children under twelve years."


@pytest.mark.parametrize(
    ("source", "claim"),
    [
        (MEDICINE, "Give this medicine to children under twelve years."),
        (MEDICINE, "Do give this medicine to children under twelve years."),
        ("The tenant must not keep a dog in the flat.", "The tenant must keep a dog in the flat."),
        ("The tenant cannot keep a dog in the flat.", "The tenant must keep a dog in the flat."),
        ("The tenant can't keep a dog in the flat.", "The tenant can keep a dog in the flat."),
        ("The tenant can keep a dog in the flat.", "The tenant cannot keep a dog in the flat."),
        (
            "The tenant is not obliged to repair the roof",
            "The tenant is obliged to repair the roof",
        ),
        ("The tenant may leave if the roof leaks badly.", "So the tenant may leave the roof."),
        (
            "The deposit is returned within thirty days.",
            "The deposit is returned within sixty days.",
        ),
        ("The deposit is returned within 30 days.", "The deposit is returned within 60 days."),
        (
            "Pay the rent within thirty days and the fee within sixty days.",
            "Pay the rent within sixty days.",
        ),
        (
            "Take it at least one hour before breakfast with water.",
            "Take it at least one hour after breakfast with water.",
        ),
        (
            "Take it at least one hour before breakfast with water.",
            "Take it at most one hour before breakfast with water.",
        ),
        ("The fee is due in March, not in May.", "The fee is due in May."),
        ("The fee is due in March, not in May.", "The fee is due in May, not in March."),
        ("The yearly fee is due in March.", "The yearly fee is due in April."),
        ("The big ship was built in Bergen.", "The big ship was built in Oslo."),
        ("The tenant may repair the old roof.", "The tenant must repair the old roof."),
        (
            "The tenant shall pay the landlord the whole rent on the first day.",
            "The landlord shall pay the tenant the whole rent on the first day.",
        ),
        ("The tenant failed to pay the rent in time.", "The tenant did pay the rent in time."),
        (
            "The tenant pays the agent rather than the landlord.",
            "The tenant pays the agent and the landlord.",
        ),
    ],
)
def test_a_claim_that_changes_what_its_passage_says_is_unsupported_whatever_the_judge_says(
    source, claim
):
    passage = Chunk("d", 0, f"Cats never swim. {source} Old pipes freeze.")
    question = f"Is it true? {claim}"
    assert judged(claim, [passage], agreeing(), question=question) == [("unsupported", ())]


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
    passage = Chunk("d", 0, "A well-proved dough has small dense crumbs inside the loaf.")
    text = "So a badly-proved dough has {} dense crumbs inside the loaf."
    assert judged(text.format("small"), [passage], agreeing()) == [("supported", (1,))]
    # It is not what the passage has, and so a second new word is too many.
    assert judged(text.format("large"), [passage], agreeing()) == [("unsupported", ())]


def test_at_most_three_markers():
    same = [Chunk(f"d{n}", 0, LEASE.text) for n in range(6)]
    text = "Old pipes freeze in winter."
    assert judged(text, same, refusing(), cite="all") == [("quoted", (1, 2, 3))]
    assert judged(f"Thus {text}", same, agreeing(), cite="all") == [("supported", (1, 2, 3))]


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
        assert how != "partly" or probability == 0.3
        assert how != "supported" or probability == 1.0


def test_a_sentence_keeps_nothing_of_an_earlier_verdict():
    before = Sentence(0, 12, 13, "quoted", (1,))
    [after] = supported_sentences("Bread rises.", [before], (), [LEASE], judge=refusing())
    assert (after.support, after.markers) == ("unsupported", ())
