"""The judge of citations that ships with the package."""

import json
from pathlib import Path

from univerb.lab.judging.entailment import DEFAULT_SCORER, load_entailment

ROOT = Path(__file__).parents[3]


def test_it_ships_small_and_says_what_it_is_worth():
    folder = ROOT / "src/univerb/assets/entailment" / DEFAULT_SCORER
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25e6
    about = load_entailment().about
    assert about.accuracies["SNLI test, 3 labels"] >= 78.0
    assert {"WiCE test, balanced", "ExpertQA test, balanced"} <= set(about.accuracies)
    report = json.loads((ROOT / "recipes/nli/results/entailment.json").read_text(encoding="utf-8"))
    measured = report[about.name]["accuracy, int8 (the scorer that is used)"]
    assert measured == about.accuracies


def test_it_tells_support_from_none():
    premise = "Title: Rent\nThe tenant shall pay the rent on the first day of each month."
    claims = ["The rent is paid monthly by the tenant.", "The landlord sold the house in 1990."]
    assert load_entailment().entails([(premise, claim) for claim in claims]) == [True, False]
