"""The check of the judge of citations: what it asks, and what it writes."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tiny_nli import make_classifier, make_pair_tokenizer, write_nli
from univerb.documents.sentences import splitter_named
from univerb.entailment.cross_encoder import read_cross_encoder
from univerb.lab.protocols.asqa_questions import read_questions

# The recipe's files import each other as scripts do.
sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "nli"))

import check  # noqa: E402
from asqa_cases import CHANGED, FALSE, cases  # noqa: E402
from nli_export import write_cross_encoder  # noqa: E402

PASSAGE = (
    "It was built (by hand) in 1990 by two men, and then sold. It stood {} for many more years."
)


@pytest.fixture(scope="module")
def asqa(tmp_path_factory) -> Path:
    questions = [
        {
            "question": "Who?",
            "qa_pairs": [],
            "annotations": [{"long_answer": "A."}],
            "docs": [
                {"title": f"House {n}", "text": PASSAGE.format(f"{place} {number}")}
                for n, place in enumerate(("here", "there", "nowhere"))
            ],
        }
        for number in range(42)
    ]
    path = tmp_path_factory.mktemp("asqa") / "asqa.json"
    path.write_text(json.dumps(questions))
    return path


def test_cases_are_sentences_of_passages_in_all_ways(asqa):
    drawn = list(cases(read_questions(asqa), splitter_named("pysbd"), 40))
    assert drawn == list(cases(read_questions(asqa), splitter_named("pysbd"), 40))
    kinds = Counter(kind for kind, _, _ in drawn)
    assert kinds["verbatim"] == kinds["by another question's passage"] == 40
    assert {*CHANGED, *FALSE} <= set(kinds)
    claims = {kind: claim for kind, _, claim in drawn if "built" in claim and "stood" not in claim}
    first = "It was built (by hand) in 1990 by two men, and then sold."
    assert claims["verbatim"] == first
    assert claims["without its parenthesis"] == first.replace(" (by hand)", "")
    assert claims["negated"] == first.replace("was", "was not")
    assert claims["with another year"] == first.replace("1990", "1983")
    assert claims["without its last clause"] == first.replace(", and then sold", "")
    assert claims["title for its pronoun"].startswith("House ")
    for kind, passage, claim in drawn:
        if kind == "verbatim":
            assert claim in passage
        if kind == "by another passage of the question":
            assert claim not in passage


def test_the_check_writes_figures_and_card(asqa, tmp_path):
    nli, scorer, results = write_nli(tmp_path / "nli"), tmp_path / "scorer", tmp_path / "r.json"
    about = {"name": "tiny", "trained_on": "nothing", "max_length": 48, "threshold": 0.5}
    write_cross_encoder(scorer, make_classifier(), make_pair_tokenizer(), **about)
    results.write_text(json.dumps({"tiny": {"kept": 1}}))
    options = {"--data": nli, "--asqa": asqa, "--scorer": scorer, "--results": results}
    options |= {"--count": 24, "--threads": 1}
    check.main([str(part) for option in options.items() for part in option])
    figures = json.loads(results.read_text())["tiny"]
    card = read_cross_encoder(scorer).card
    assert figures["kept"] == 1 and figures["threshold"] == card.threshold
    assert figures["accuracy, int8 (the scorer that is used)"] == card.accuracies
    shares = figures["percent supported, sentences of ASQA's passages"]
    for part in ("questions 0-39", "questions 40-41"):
        verbatim = shares[part]["verbatim"]
        assert verbatim["n"] == 24 and verbatim["supported"] == 100.0 > verbatim["low"] > 60.0
        assert shares[part]["with another year"]["supported"] == 0.0
        control = figures["leading sentences of documents 1 and 2, cited"][f"{part}, judge"]
        assert control["Citation_rec"] == control["Citation_prec"] == 100.0
