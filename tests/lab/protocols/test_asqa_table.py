"""The ASQA table of a run: rows beside the paper's, what is said about it, and killed runs."""

import json
import re
from pathlib import Path

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.errors import DocumentError, OptionError
from univerb.lab.judging.entailment import Entailment, Scorer
from univerb.lab.protocols.asqa import SYSTEMS, AsqaProtocol
from univerb.lab.protocols.asqa_table import asqa_run
from univerb.lab.tables.comparison import compare
from univerb.lab.tables.measured import read_run, run_to_dict
from univerb.lab.tables.paper import paper_table
from univerb.lab.tables.rendering import latex, markdown, to_json
from univerb.modeling.dynamic import DynamicLM

HOW = AsqaProtocol(
    parser="rules", decoding={"mode": "atomic", "phrase_bias": 900.0, "max_tokens": 16}
)


class Lexical(Entailment):
    """Entailed if the premise has every word."""

    about = Scorer("lexical", 0.5, {"SNLI test": 61.25, "WiCE test": 70.0})

    def probabilities(self, pairs):
        return [
            float(set(claim.lower().split()) <= set(premise.lower().split()))
            for premise, claim in pairs
        ]


def make_lm(seed: int = 0) -> DynamicLM:
    model = make_llama(seed=seed)
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()))


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return make_lm()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """Three questions, in ALCE's shape."""
    items = [
        {
            "question": f"When shall tenant {number} pay the rent?",
            "qa_pairs": [{"question": "When?", "short_answers": ["the tenant", "first day"]}],
            "annotations": [{"long_answer": "On the first day of each month."}] * 2,
            "docs": [
                {"title": "Lease", "text": TEXT},
                {"title": "Lease", "text": f"The rent {number} is due. The tenant shall pay."},
                {"title": "Ships", "text": "Ships sail across the wide sea."},
            ],
        }
        for number in range(3)
    ]
    file = tmp_path_factory.mktemp("asqa") / "questions.json"
    file.write_text(json.dumps(items))
    return file


@pytest.fixture(scope="module")
def run(lm, path):
    return asqa_run(lm, path, Lexical(), protocol=HOW, limit=2)


def test_rows_stand_beside_the_papers(run):
    table = paper_table("asqa")
    comparison = compare(run, table)
    beside = {row.name: (row.section, row.stands_for) for row in comparison.rows}
    assert beside == {
        "bare LM": ("", "TinyLlama"),
        "n-gram phrases": ("Ours", "w/ n-grams"),
        "parsed phrases": ("Ours", "w/ parsing"),
        "without phrases": ("Ours", "w/o phrases"),
        "n-gram phrases, inline": ("Ours", "w/ n-grams"),
        "parsed phrases, inline": ("Ours", "w/ parsing"),
    }
    bare = next(line for line in comparison.lines if line.row == "bare LM")
    assert bare.paper == 0.62 and bare.standing == "no"
    assert any("NLI: lexical here" in reason for reason in comparison.reasons)
    assert any("data: asqa, questions here" in reason for reason in comparison.reasons)
    assert "QA-EM" not in run.rows[0].cells and "str-EM" in run.rows[0].cells
    assert run.rows[0].cells["Phrase share"].value == 0.0
    assert run.rows[1].cells["Phrase share"].value > 50.0
    for text in (markdown(comparison), latex(comparison)):
        assert "SNLI test 61.2" in text
    assert read_run(to_json(comparison)) == run


def test_the_run_says_what_it_was_made_with(run):
    setup = run.setup
    assert (setup.n, setup.documents, setup.shots, setup.budget) == (2, 3, 1, 16)
    assert (setup.nli, setup.reader, setup.training) == ("lexical", "", "none")
    notes = "\n".join(run.notes)
    assert "NLI lexical (SNLI test 61.2 %, WiCE test 70.0 %)" in notes
    assert "The LM is frozen" in notes
    assert run.facts["sentences"] == "pysbd" and "rules" in run.facts["phrases"]


def test_differences_to_the_bare_lm_are_those_of_the_table(run):
    cells = {row.name: row.cells for row in run.rows}
    found = re.search(
        r"n-gram phrases minus bare LM, with 90% intervals .*?: Citation_rec (\S+) \((\S+) to "
        r"(\S+)\), Citation_prec (\S+) .* Rouge-L \S+ .* str-EM (\S+) \(",
        "\n".join(run.notes),
    )
    assert found
    recall, low, high, precision, exact = map(float, found.groups())
    for value, name in ((recall, "Citation_rec"), (precision, "Citation_prec"), (exact, "str-EM")):
        own, bare = cells["n-gram phrases"][name].value, cells["bare LM"][name].value
        assert value == pytest.approx(own - bare, abs=0.006)
    assert low <= recall <= high


def test_a_reader_fills_the_columns_of_the_paper(lm, path):
    def reader(questions, context):
        return ["First Day!" for _ in questions]

    given = {"protocol": HOW, "limit": 1, "systems": SYSTEMS[:1]}
    run = asqa_run(lm, path, Lexical(), reader=reader, reader_name="always", **given)
    [row] = run.rows
    assert (row.cells["QA-EM"].value, row.cells["QA-F1"].value) == (100.0, 100.0)
    assert run.setup.reader == "always"
    with pytest.raises(OptionError, match="come together"):
        asqa_run(lm, path, Lexical(), reader=reader, **given)


def test_a_fine_tuned_lm_needs_the_bare_one(lm, path):
    given = {"protocol": HOW, "limit": 1, "training": "wikitext-103"}
    with pytest.raises(OptionError, match="Give it as `bare`"):
        asqa_run(lm, path, Lexical(), **given)
    run = asqa_run(lm, path, Lexical(), bare=make_lm(5), **given)
    bare, other = run.rows[0], run.rows[3]
    assert bare.setup and bare.setup.training == "none" and other.setup is None
    assert bare.cells != other.cells
    assert not any("frozen" in note for note in run.notes)


def test_a_limit_beyond_the_file_takes_all(lm, path):
    seen = []
    run = asqa_run(
        lm, path, Lexical(), protocol=HOW, limit=99, progress=lambda *own: seen.append(own)
    )
    assert run.setup.n == 3
    # Three answers of each question are written, six are judged.
    assert seen == [(done, 27) for done in range(1, 28)]


def test_a_missing_file_is_said(lm, tmp_path):
    with pytest.raises(DocumentError, match="there is no file"):
        asqa_run(lm, tmp_path / "none.json.gz", Lexical())


def test_killed_at_any_point_a_run_ends_with_the_same_table(lm, path, tmp_path):
    given = {"protocol": HOW, "limit": 2, "systems": SYSTEMS[:4]}
    expected = run_to_dict(asqa_run(lm, path, Lexical(), **given))
    for point in range(1, 15):

        def kill(done, total, point=point):
            assert total == 14
            if done == point:
                raise KeyboardInterrupt

        folder = tmp_path / str(point)
        with pytest.raises(KeyboardInterrupt):
            asqa_run(lm, path, Lexical(), progress=kill, folder=folder, **given)
        again = asqa_run(lm, path, Lexical(), folder=folder, **given)
        assert run_to_dict(again) == expected
