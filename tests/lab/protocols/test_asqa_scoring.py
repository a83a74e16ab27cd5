"""Scores of answers to ASQA, worked out by hand."""

from collections import Counter

import pytest
from rouge_score.rouge_scorer import RougeScorer

from univerb.documents.sentences import splitter_named
from univerb.lab.protocols.asqa_answers import BARE, SYSTEMS, AsqaAnswer
from univerb.lab.protocols.asqa_questions import AsqaQuestion
from univerb.lab.protocols.asqa_scoring import (
    Judges,
    SystemScores,
    leading_sentences,
    score_all,
    score_answer,
)

ZOO = AsqaQuestion.model_validate(
    {
        "question": "What do animals do?",
        "docs": [
            {"title": "Cats", "text": "Cats purr loudly."},
            {"title": "Dogs", "text": "Dogs bark at night."},
            {"title": "Cows", "text": "Cows moo."},
        ],
        "qa_pairs": [
            {"question": "Who purrs?", "short_answers": ["cats", "a cat"]},
            {"question": "Who sings?", "short_answers": ["whales"]},
        ],
        "annotations": [
            {"long_answer": "Whales sing."},
            {"long_answer": "Cats purr, and dogs bark at night. Cows moo."},
        ],
    }
)


class Reader:
    """Gives the same answers to all questions, and remembers what it was shown."""

    name = "reader"

    def __init__(self, *answers):
        self._answers, self.shown = answers, []

    def answers(self, questions):
        self.shown += questions
        return list(self._answers)


def contains(passages: tuple[str, ...], claim: str) -> bool:
    """Entailed if the passages have every word."""
    words = " ".join(passages).lower().replace(".", " ").split()
    return set(claim.lower().strip(".").split()) <= set(words)


JUDGES = Judges(contains, splitter_named("pysbd"))


@pytest.mark.parametrize(
    ("text", "recall", "precision", "cited"),
    [
        ("Cats purr.", 0.0, 0.0, 0.0),
        ("Cats purr [1].", 1.0, 1.0, 1.0),
        # Behind the full stop, as LMs like to type: for the sentence that ends there.
        ("Cats purr.[1] Dogs bark.[2]", 1.0, 1.0, 1.0),
        ("Cats purr. [1] Dogs bark. [1][2]. Fish swim.", 2 / 3, 2 / 3, 2 / 3),
        ("[1] Cats purr.", 1.0, 1.0, 1.0),
        ("Cats purr [2].", 0.0, 0.0, 1.0),
        # A number that points nowhere: not supported, and no citation that counts.
        ("Cats purr [1][9]. Dogs bark [2].", 0.5, 1.0, 1.0),
        # Neither passage alone says it, so both are needed.
        ("Cats bark loudly [1][2].", 1.0, 1.0, 1.0),
        # The third is not needed.
        ("Cats bark loudly [1][2][3].", 1.0, 2 / 3, 1.0),
        # A fourth citation does not count.
        ("Cats purr [1][1][1][3].", 1.0, 1.0, 1.0),
        ("Cats purr [1]. Dogs bark [1][2]. Birds sing [9]. Fish swim.", 0.5, 2 / 3, 0.75),
        # Only the first line is judged.
        ("\n Cats purr [1].<|im_end|>\nDogs fly.", 1.0, 1.0, 1.0),
    ],
)
def test_citations_by_hand(text, recall, precision, cited):
    scores = score_answer(ZOO, text, 0.25, JUDGES)
    names = ("Citation_rec", "Citation_prec", "Cited sentences", "Phrase share")
    expected = (recall, precision, cited, 0.25)
    assert [scores[name] / 100 for name in names] == pytest.approx(expected)


def test_the_first_sentences_are_cited():
    cats, dogs, _ = ZOO.documents
    longer = cats.model_copy(update={"text": "Cats  purr loudly. They sleep."})
    asked = ZOO.model_copy(update={"documents": (longer, dogs)})
    text = leading_sentences(asked, JUDGES.split)
    assert text == "Cats purr loudly [1]. Dogs bark at night [2]."
    assert score_answer(asked, text, 0.0, JUDGES)["Citation_prec"] == 100.0


def test_the_other_scores_by_hand():
    text = "Cats purr [1]. Dogs bark [1][2]. Whales, too [9].\nA second line."
    reader = Reader("The Cats", "dogs")
    scores = score_answer(ZOO, text, 0.0, JUDGES._replace(reader=reader))
    plain = "Cats purr. Dogs bark. Whales, too."
    assert reader.shown == [("Who purrs?", plain), ("Who sings?", plain)]
    assert (scores["str-EM"], scores["Words"]) == (100.0, 6)
    assert (scores["QA-EM"], scores["QA-F1"]) == (50.0, 50.0)
    scorer = RougeScorer(["rougeLsum"], use_stemmer=True)
    lines = "Cats purr.\nDogs bark.\nWhales, too."
    references = ("Whales sing.", "Cats purr, and dogs bark at night.\nCows moo.")
    each = [scorer.score(reference, lines)["rougeLsum"].fmeasure for reference in references]
    assert scores["Rouge-L"] == pytest.approx(100 * max(each)) and each[0] < each[1]
    assert "QA-EM" not in score_answer(ZOO, text, 0.0, JUDGES)


def test_an_empty_answer_counts_but_not_for_citations():
    reader = Reader("", "")
    judges = JUDGES._replace(reader=reader)
    nothing = score_answer(ZOO, "  \n", 0.0, judges)
    zero = ("str-EM", "QA-EM", "QA-F1", "Rouge-L", "Words", "Phrase share")
    assert nothing == dict.fromkeys(zero, 0.0)
    assert {text for _, text in reader.shown} == {" "}, "a reader cannot read an empty text"
    full = score_answer(ZOO, "Cats purr [1].", 0.5, judges)
    both = SystemScores(BARE, (nothing, full))
    assert both.empty == 1
    means = both.means()
    assert (means["Citation_rec"], means["Citation_prec"]) == (100.0, 100.0)
    assert (means["str-EM"], means["Words"], means["Phrase share"]) == (25.0, 1.0, 25.0)
    assert set(means) == set(full)
    assert "Citation_rec" not in SystemScores(BARE, (nothing,)).means()


def test_every_pair_is_judged_once_and_systems_by_their_own_markers():
    asked: Counter = Counter()

    def entails(passages, claim):
        asked[passages, claim] += 1
        return contains(passages, claim)

    texts = {"typed": "Cats purr.", "sentence": "Cats purr [1]."}
    answers = {system.name: [AsqaAnswer(texts, 0.5)] * 2 for system in SYSTEMS}
    seen = []
    found = score_all(
        [ZOO, ZOO], answers, SYSTEMS, Judges(entails, JUDGES.split), lambda *own: seen.append(own)
    )
    assert set(asked.values()) == {1}
    assert seen == [(done, 8) for done in range(1, 9)]
    recalls = {own.system.name: own.means().get("Citation_rec") for own in found}
    assert recalls == {own.name: 0.0 if own is BARE else 100.0 for own in SYSTEMS}
