"""What `univerb lab answers` says of answers, on records made by hand and by a tiny LM."""

import csv
import dataclasses

import pytest
import yaml

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.applications.answer import NOT_FOUND
from univerb.errors import OptionError
from univerb.lab.answers import run
from univerb.lab.answers.cases import AnswerCase, asqa_cases, own_cases
from univerb.lab.answers.faults import citation_faults
from univerb.lab.answers.marker_sheet import marker_id, read_marker_sheet, write_marker_sheet
from univerb.lab.answers.report import plot_answers, right
from univerb.lab.answers.run import measure_answers
from univerb.lab.answers.systems import (
    LEADING,
    RETRIEVED,
    AnswerRecord,
    Marker,
    leading,
    retrieved,
)
from univerb.lab.protocols.asqa_questions import AsqaDocument, AsqaQuestion, SubQuestion
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

LEASE = Document("The rent is 940 per month. It is due on the fifth day.", "lease")
SHIP = Document("The ship was launched in 1905. She was 61.5 metres long.", "ship")
CASE = AnswerCase("How much is the rent?", (LEASE, SHIP), (("940",), ("fifth day", "day five")))


def record(text: str, case: AnswerCase = CASE) -> AnswerRecord:
    return AnswerRecord("write", case, text, text, ("quoted",), (), (), ())


@pytest.mark.parametrize(
    ("text", "words", "share"),
    [
        ("It is 940.", None, 0.5),
        ("It is 940, on the FIFTH day", None, 1.0),
        ("It is 940, on day five", 3, 0.5),
        ("It is much", None, 0.0),
    ],
)
def test_right_is_the_share_of_what_was_asked(text, words, share):
    assert right(record(text), words) == share


def test_leading_sentences_come_from_each_document_in_turn():
    control = leading(CASE, 15)
    assert control.text == ("The rent is 940 per month. The ship was launched in 1905. It is due")
    assert [marker.document for marker in control.markers] == ["lease", "ship", "lease"]
    assert control.system == LEADING and set(control.supports) == {"quoted"}
    assert leading(CASE, 0).text == ""
    assert leading(CASE, 99).text.split() == [
        *["The", "rent", "is", "940", "per", "month."],
        *["The", "ship", "was", "launched", "in", "1905."],
        *["It", "is", "due", "on", "the", "fifth", "day."],
        *["She", "was", "61.5", "metres", "long."],
    ]


def test_retrieval_alone_answers_with_what_is_nearest_to_the_question(without_embedder):
    control = retrieved(AnswerCase("How long was the ship?", (LEASE, SHIP), ()), 6)
    assert control.text == "The ship was launched in 1905." and control.system == RETRIEVED
    [marker] = control.markers
    assert marker.context == "⟦The ship was launched in 1905.⟧ She was 61.5 metres long."


def test_an_answer_that_found_nothing_does_not_shorten_the_others():
    found, nothing = record("It is 940, on day five"), record(NOT_FOUND)
    figures, _ = run._figures([[found], [nothing]], {})
    assert [each.right_cut for each in figures[:2]] == [1.0, 0.0]
    assert [each.not_found for each in figures[:2]] == [0, 1]
    assert figures[1].sentences == 0


# -- The checker ----------------------------------------------------------------------------------

TEXTS = {"lease": LEASE.text, "ship": SHIP.text}


def cited(text: str, document: str, said: str, source: str | None = None) -> dict:
    """An answer with one citation; its source is where the document has those words."""
    there = source or said
    start, at = TEXTS[document].index(there), text.index(said)
    citation = dict(document=document, start=start, end=start + len(there), text=there)
    return {
        "text": text,
        "citations": [citation | {"answer_start": at, "answer_end": at + len(said)}],
    }


def faults(*given) -> list[str]:
    return list(citation_faults(cited(*given), TEXTS))


def test_true_citations_have_no_fault():
    assert not faults("So the ship was launched in 1905.", "ship", "ship was launched in 1905")
    assert not faults("940 per month", "lease", "940 per month")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("It is due on Monday", "lease", "It is due on", "It is due o"), "is not what"),
        (("It is on the sea", "lease", "on the"), "glue"),
        (("It is a day", "lease", "day"), "single common word"),
        (("She was 61 metres", "ship", "was 61"), "cut out of"),
        (("in 1905", "ship", "in 190"), "cut out of"),
        (("a launch", "ship", "launch"), "cut out of"),
        (("The ship was 9405 long", "lease", "940"), "cut out of"),
    ],
)
def test_each_fault_is_found(given, fault):
    assert any(fault in found for found in faults(*given))


@pytest.mark.parametrize(
    ("source", "said", "is_cut"),
    [
        ("It costs 1 500 euros", "500 euros", True),
        ("It costs 1\u202f500 euros", "500 euros", True),
        ("It costs 1\xa0500 000 euros", "500 000 euros", True),
        ("It costs 1 500 euros", "1 500 euros", False),
        ("In 2013 500 ships sank", "500 ships sank", False),
        ("It has 10^12 stars", "12 stars", True),
        ("It has 10^12 stars", "10^12 stars", False),
        ("Then § 12 (3) applies now", "3) applies now", True),
        ("Then § 12 (3) applies now", "§ 12", True),
        ("Then § 12 (3) applies now", "12 (3) applies", True),
        ("Then § 12 (3) applies now", "§ 12 (3) applies", False),
        ("See clause 12 (a) now", "clause 12", True),
        ("房东每年检查屋顶", "每年检查", False),
        ("ผู้เช่าต้องจ่ายค่าเช่า", "ต้องจ่าย", False),
        ("東京tower", "tower", False),
    ],
)
def test_numbers_of_several_parts_are_cut_and_scripts_without_spaces_are_not(source, said, is_cut):
    at = source.index(said)
    place = {"document": "d", "start": at, "end": at + len(said), "text": said}
    citation = place | {"answer_start": 0, "answer_end": len(said)}
    found = list(citation_faults({"text": said, "citations": [citation]}, {"d": source}))
    assert any("cut out of" in each for each in found) == is_cut


@pytest.mark.parametrize(("said", "is_common"), [("tower", True), ("b2013", False), ("塔b", False)])
def test_a_number_or_a_character_that_is_a_word_is_no_single_common_word(said, is_common):
    place = {"document": "d", "start": 0, "end": len(said), "text": said}
    citation = place | {"answer_start": 0, "answer_end": len(said)}
    found = list(citation_faults({"text": said, "citations": [citation]}, {"d": said}))
    assert any("single common word" in each for each in found) == is_common


# -- Questions ------------------------------------------------------------------------------------


def test_questions_of_a_file(tmp_path):
    path = tmp_path / "questions.yaml"
    path.write_text(yaml.safe_dump([{"question": "Why?", "answers": ["x"]}, {"question": "Who?"}]))
    answerable, other = own_cases(path, [LEASE])
    assert answerable == AnswerCase("Why?", (LEASE,), (("x",),))
    assert other.right == ()


@pytest.mark.parametrize(
    "content", ["[", "[]", "- answers: [x]", "question: Why?", "- {question: 1}"]
)
def test_a_file_of_other_content_is_refused(tmp_path, content):
    path = tmp_path / "questions.yaml"
    path.write_text(content)
    with pytest.raises(OptionError, match="is no list of questions|has no questions"):
        own_cases(path, [LEASE])


def test_asqa_keeps_its_sub_questions_and_tells_documents_apart():
    question = AsqaQuestion(
        question="Who?",
        documents=(AsqaDocument(title="A", text="one"), AsqaDocument(title="A", text="two")),
        sub_questions=(SubQuestion(question="Who first?", answers=("x", "y")),),
        long_answers=(),
    )
    [case] = asqa_cases([question])
    assert case.right == (("x", "y"),)
    assert len({document.name for document in case.documents}) == 2


# -- The sheet ------------------------------------------------------------------------------------

MARKERS = [Marker("Why?", f"Sentence {n}.", "lease", "=1+1 is what it says") for n in range(6)]


def test_a_sheet_names_no_system_and_has_each_marker_once(tmp_path):
    path = tmp_path / "sheet.csv"
    assert write_marker_sheet(path, [*MARKERS, *MARKERS]) == 6
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["item"] for row in rows} == {marker_id(marker) for marker in MARKERS}
    assert [row["sentence"] for row in rows] != [marker.sentence for marker in MARKERS]
    assert all(row["passage"].startswith("'=") and row["supports"] == "" for row in rows)


def test_verdicts_are_read_back(tmp_path):
    path = tmp_path / "sheet.csv"
    write_marker_sheet(path, MARKERS)
    with pytest.raises(OptionError, match="row 2 .* Fill the column 'supports'"):
        read_marker_sheet(path)
    path.write_text(path.read_text().replace(',""', ',"Yes "'))
    assert read_marker_sheet(path) == {marker_id(marker): "yes" for marker in MARKERS}
    # What somebody has filled in is kept, and never mixed with other markers.
    assert write_marker_sheet(path, MARKERS) == 6 and read_marker_sheet(path)
    with pytest.raises(OptionError, match="other answers"):
        write_marker_sheet(path, MARKERS[:3])


# -- The whole ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    model = make_llama()
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()))


@pytest.fixture
def sets() -> dict[str, list[AnswerCase]]:
    lease = Document(TEXT, "lease")
    return {
        "own": [
            AnswerCase("When shall the tenant pay the rent?", (lease,), (("day",),)),
            AnswerCase("Which premises does the landlord keep?", (lease,), (("premises",),)),
            AnswerCase("Who is the king?", (lease,), ()),
        ]
    }


def test_a_run_resumes_and_counts_what_was_judged(lm, sets, tmp_path, without_embedder):
    options = {"max_tokens": 8}
    told = []
    first = measure_answers(
        lm, sets, ["quote", "write"], options, tmp_path, progress=lambda *at: told.append(at)
    )
    assert told[-1] == (6, 6)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    verdicts = {marker_id(marker): "yes" for marker in first.markers}
    again = measure_answers(lm, sets, ["quote", "write"], options, tmp_path, verdicts)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept
    assert again.answers == first.answers
    names = [figures.name for figures in again.figures["own"]]
    assert names == ["quote", "write", LEADING, RETRIEVED]
    for figures in again.figures["own"][:2]:
        assert figures.questions == 2 and figures.unanswerable == 1
        assert figures.supporting in (None, 1.0) and not figures.faults
    plain = [dataclasses.replace(f, verdicts={}) for f in again.figures["own"]]
    assert plain == [dataclasses.replace(f, verdicts={}) for f in first.figures["own"]]


def test_questions_that_nothing_answers_are_counted_too(lm, sets, without_embedder):
    report = measure_answers(lm, {"own": sets["own"][2:]}, ["quote"], {"max_tokens": 8})
    assert report.figures["own"][0].unanswerable == 1
    assert "| quote" in report.markdown()


def test_answers_of_other_retrieval_are_not_taken(lm, sets, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "default_embedder", lambda: None)
    without = run._key(lm, ["quote"], {})
    monkeypatch.setattr(run, "default_embedder", object)
    assert run._key(lm, ["quote"], {}) != without
    monkeypatch.setattr(run, "product_code", lambda: "other")
    assert run._key(lm, ["quote"], {}) != without


def test_the_report_shows_every_answer(lm, sets, tmp_path, without_embedder):
    pytest.importorskip("matplotlib")
    report = measure_answers(lm, sets, ["quote"], {"max_tokens": 8})
    page = report.markdown("univerb lab answers")
    for case in sets["own"]:
        assert case.question in page
    assert "| quote" in page and f"| {LEADING}" in page
    assert len(report.to_dict()["answers"]["own"]) == 9
    plot_answers(tmp_path / "answers.png", report)
    assert (tmp_path / "answers.png").stat().st_size > 1000
