"""The judge of citations that ships with the package."""

import json
from pathlib import Path

from univerb.entailment.scorers import DEFAULT_SCORER, load_entailment

ROOT = Path(__file__).parents[2]


def test_it_ships_small_and_says_what_it_is_worth():
    folder = ROOT / "src/univerb/assets/entailment" / DEFAULT_SCORER
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25e6
    about = load_entailment().about
    assert about.accuracies["SNLI test, 3 labels"] >= 78.0
    assert {"WiCE test, balanced", "ExpertQA test, balanced"} <= set(about.accuracies)
    report = json.loads((ROOT / "recipes/nli/results/entailment.json").read_text(encoding="utf-8"))
    measured = report[about.name]["accuracy, int8 (the scorer that is used)"]
    assert measured == about.accuracies


def test_its_check_reached_what_a_judge_must_reach():
    """On questions that nothing was chosen on; the command stands in the recipe's README."""
    report = json.loads((ROOT / "recipes/nli/results/entailment.json").read_text(encoding="utf-8"))
    figures = report[DEFAULT_SCORER]
    assert figures["threshold"] == load_entailment().about.threshold
    shares = figures["percent supported, sentences of ASQA's passages"]["questions 40-199"]
    assert shares["verbatim"]["n"] >= 500 and shares["verbatim"]["low"] >= 95.0
    assert shares["by another question's passage"]["n"] >= 500
    assert shares["by another question's passage"]["high"] <= 10.0
    control = figures["leading sentences of documents 1 and 2, cited"]["questions 40-199, judge"]
    assert min(control["Citation_rec"], control["Citation_prec"]) >= 95.0


PASSAGE = """Title: Observatory
The observatory stands on a hill above the town. It was founded in 1889 by the widow of a slate
merchant, who had taught herself astronomy from borrowed books. The first telescope came by ship.
A storm destroyed its dome in 1903. The town paid for a new one, and the widow's daughter ran the
house until the war. Today a society of amateurs opens it every Friday."""


def test_it_knows_sentences_in_a_long_passage():
    """Version 0.1 rejected most sentences of their own passage."""
    judge = load_entailment()
    supported = [
        "A storm destroyed its dome in 1903.",
        "It was founded in 1889 by the widow of a slate merchant.",
        "The observatory was founded in 1889 by the widow of a slate merchant.",
        "Today amateurs open it every Friday.",
    ]
    wrong = ["A storm destroyed its dome in 1913.", "The river carries barges to the sea."]
    assert [judge((PASSAGE,), claim) for claim in supported + wrong] == [True] * 4 + [False] * 2


def test_it_tells_support_from_none():
    premise = "Title: Rent\nThe tenant shall pay the rent on the first day of each month."
    claims = ["The rent is paid monthly by the tenant.", "The landlord sold the house in 1990."]
    assert load_entailment().entails([(premise, claim) for claim in claims]) == [True, False]
