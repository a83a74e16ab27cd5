"""The ASQA table: rows beside the paper's, what is noted about it, and killed runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.entailment.scorers import Entailment, Scorer
from univerb.errors import DocumentError, OptionError
from univerb.lab.protocols.asqa_answers import SYSTEMS, AnswerRunner, AsqaProtocol
from univerb.lab.protocols.asqa_questions import read_questions
from univerb.lab.protocols.asqa_table import asqa_table
from univerb.lab.protocols.experiment import Experiment
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.lab.protocols.paper_tables import Resources, make_reports
from univerb.lab.tables.paper import paper_table
from univerb.lab.tables.paper_comparison import compare_with_paper
from univerb.lab.tables.table_report import Report
from univerb.modeling.dynamic import DynamicLM

PROTOCOL = AsqaProtocol(
    first=0,
    parser="rules",
    decoding={"mode": "atomic", "phrase_bias": 900.0, "max_tokens": 12},
)


class Lexical(Entailment):
    """Entailed if the premise has every word."""

    about = Scorer("lexical", 0.5, {"SNLI test": 61.25, "WiCE test": 70.0})

    def probabilities(self, pairs):
        return [
            float(set(claim.lower().split()) <= set(premise.lower().split()))
            for premise, claim in pairs
        ]


class Reader:
    """Always gives the same answer."""

    name = "always"

    def answers(self, questions):
        return ["First Day!" for _ in questions]


def make_lm(seed: int = 0) -> DynamicLM:
    model = make_llama(seed=seed)
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> Experiment:
    lm = make_lm()
    return Experiment(
        lm=lm,
        scorer=TextScorer.of(lm),
        data=None,
        open_corpus=lambda name: None,
        folder=tmp_path_factory.mktemp("kept"),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """Three questions, in ALCE's format."""
    questions = [
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
    file.write_text(json.dumps(questions))
    return file


@pytest.fixture(scope="module")
def result(experiment, path):
    return asqa_table(experiment, path, Lexical(), protocol=PROTOCOL, limit=2)


def test_rows_stand_beside_the_papers(result):
    comparison = compare_with_paper(result, paper_table("asqa"))
    assert {row.name: (row.section, row.paper_row) for row in comparison.rows} == {
        "bare LM": ("", "TinyLlama"),
        "n-gram phrases": ("Ours", "w/ n-grams"),
        "parsed phrases": ("Ours", "w/ parsing"),
        "without phrases": ("Ours", "w/o phrases"),
        "leading sentences, cited": ("", ""),
    }
    bare = next(cell for cell in comparison.cells if cell.row == "bare LM")
    assert bare.paper == 0.62 and bare.comparability == "no"
    assert any("NLI: lexical here" in reason for reason in comparison.reasons)
    assert any("data: asqa, questions here" in reason for reason in comparison.reasons)
    assert "QA-EM" not in result.rows[0].cells and "str-EM" in result.rows[0].cells
    assert result.rows[0].cells["Phrase share"].value == 0.0
    assert result.rows[1].cells["Phrase share"].value > 50.0
    report = Report("asqa", comparison)
    for text in (report.markdown(), report.latex()):
        assert "SNLI test 61.2" in text


def test_cited_leading_sentences_are_a_row_that_a_good_judge_scores_high(result):
    control = result.rows[-1].cells
    assert (control["Citation_rec"].value, control["Citation_prec"].value) == (100.0, 100.0)
    assert (control["Cited sentences"].value, control["Phrase share"].value) == (100.0, 0.0)


def test_the_table_says_what_it_was_made_with(result):
    setup = result.setup
    assert (setup.n, setup.documents, setup.shots, setup.budget) == (2, 3, 1, 12)
    assert (setup.nli, setup.reader, setup.training) == ("lexical", "", "none")
    notes = "\n".join(result.notes)
    assert "NLI lexical (SNLI test 61.2 %, WiCE test 70.0 %)" in notes
    assert "The LM is frozen" in notes
    assert result.facts["sentences"] == "pysbd" and "rules" in result.facts["phrases"]


def test_differences_to_the_bare_lm_are_those_of_the_table(result):
    cells = {row.name: row.cells for row in result.rows}
    found = re.search(
        r"n-gram phrases minus bare LM, with 90% intervals .*?: Citation_rec (\S+) \((\S+) to "
        r"(\S+)\), Citation_prec (\S+) .* Rouge-L \S+ .* str-EM (\S+) \(",
        "\n".join(result.notes),
    )
    assert found
    recall, low, high, precision, exact = map(float, found.groups())
    for value, name in ((recall, "Citation_rec"), (precision, "Citation_prec"), (exact, "str-EM")):
        ours, bare = cells["n-gram phrases"][name].value, cells["bare LM"][name].value
        assert value == pytest.approx(ours - bare, abs=0.006)
    assert low <= recall <= high


def test_a_reader_fills_the_columns_of_the_paper(experiment, path):
    result = asqa_table(
        experiment,
        path,
        Lexical(),
        reader=Reader(),
        protocol=PROTOCOL,
        limit=1,
        systems=SYSTEMS[:1],
    )
    row = result.rows[0]
    assert (row.cells["QA-EM"].value, row.cells["QA-F1"].value) == (100.0, 100.0)
    assert result.setup.reader == "always"


def test_a_fine_tuned_lm_needs_the_bare_one(experiment, path):
    tuned, options = replace(experiment, training="wikitext-103"), {"protocol": PROTOCOL}
    with pytest.raises(OptionError, match="Name it with --bare"):
        asqa_table(tuned, path, Lexical(), **options)
    result = asqa_table(replace(tuned, bare=make_lm(5)), path, Lexical(), limit=1, **options)
    bare, other = result.rows[0], result.rows[3]
    assert bare.setup and bare.setup.training == "none" and other.setup is None
    assert bare.cells != other.cells
    assert not any("frozen" in note for note in result.notes)


def test_an_instruct_model_is_asked_in_its_chat_template(experiment, path):
    lm = make_lm()
    lm.hf_tokenizer.chat_template = (
        "{% for message in messages %}<user>{{ message['content'] }}</user>{% endfor %}<answer>"
    )
    answers = {}
    for chat in (None, True, False):
        protocol = replace(PROTOCOL, chat=chat)
        questions = read_questions(path, 1)
        [answers[chat]] = AnswerRunner(lm, protocol, systems=SYSTEMS[:1]).run(questions).values()
    assert answers[None] == answers[True] != answers[False]
    assert AsqaProtocol().chat is None
    asked = replace(experiment, lm=lm)
    for chat, prompt in ((None, "chat template"), (False, "plain")):
        protocol = replace(PROTOCOL, chat=chat)
        result = asqa_table(asked, path, Lexical(), protocol=protocol, limit=1, systems=SYSTEMS[:1])
        assert result.facts["prompt"] == prompt
    assert (
        asqa_table(experiment, path, Lexical(), protocol=PROTOCOL, limit=1).facts["prompt"]
        == "plain"
    )


def test_questions_for_development_are_left_out(experiment, path):
    with pytest.raises(OptionError, match="has questions 0 to 2, none of them from 40 on"):
        asqa_table(experiment, path, Lexical())
    protocol = replace(PROTOCOL, first=1)
    result = asqa_table(experiment, path, Lexical(), protocol=protocol, systems=SYSTEMS[:1])
    assert result.setup.n == 2
    assert result.facts["questions"] == "spread over those from number 1 to the last of the file"


def test_the_file_and_the_settings_are_those_that_were_given(experiment, path, tmp_path):
    protocol = replace(PROTOCOL, shots=0, documents=2, encode_marker=True)
    resources = Resources(
        results=tmp_path, entailment=Lexical, asqa_file=path, asqa=protocol, questions=1
    )
    [report] = make_reports(experiment, "asqa", resources)
    setup = report.comparison.result.setup
    assert (setup.shots, setup.documents, setup.n) == (0, 2, 1)
    assert "encode_marker True" in report.comparison.result.facts["options"].replace(": ", " ")


def test_a_missing_file_is_said(experiment, tmp_path):
    with pytest.raises(DocumentError, match="does not exist"):
        asqa_table(experiment, tmp_path / "none.json.gz", Lexical())


def test_killed_at_any_point_a_run_ends_with_the_same_table(experiment, path, result, tmp_path):
    """Six answers are generated, ten are scored."""
    for point in (1, 6, 7, 16):
        calls = []

        def stop(stage, done, total, calls=calls, point=point):
            calls.append(stage)
            if len(calls) == point:
                raise KeyboardInterrupt

        killed = replace(experiment, folder=tmp_path / str(point))
        with pytest.raises(KeyboardInterrupt):
            asqa_table(replace(killed, progress=stop), path, Lexical(), protocol=PROTOCOL, limit=2)
        assert asqa_table(killed, path, Lexical(), protocol=PROTOCOL, limit=2) == result
