"""ASQA's questions: what is read of ALCE's files, which ones, and what is refused."""

import gzip
import json

import pytest

from univerb.errors import DocumentError, OptionError
from univerb.lab.protocols.asqa_questions import (
    AsqaDocument,
    AsqaQuestion,
    LongAnswer,
    SubQuestion,
    read_questions,
)


def raw(number, documents=4):
    """Return a question as ALCE's file has it, with more than is read."""
    return {
        "id": str(number),
        "question": f"Question {number}?",
        "qa_pairs": [{"question": "When?", "short_answers": ["now", "today"], "wikipage": "W"}],
        "annotations": [{"long_answer": "Now.", "knowledge": []}, {"long_answer": "Today."}],
        "docs": [
            {"title": f"T{n}", "text": f"Text {n} of {number}.", "sources": []}
            for n in range(documents)
        ],
    }


def write_json(path, content):
    text = json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["questions.json", "questions.json.gz"])
def test_questions_are_read_with_their_first_documents(tmp_path, name):
    [question] = read_questions(write_json(tmp_path / name, [raw(7)]))
    assert question == AsqaQuestion(
        question="Question 7?",
        documents=tuple(AsqaDocument(title=f"T{n}", text=f"Text {n} of 7.") for n in range(3)),
        sub_questions=(SubQuestion(question="When?", answers=("now", "today")),),
        long_answers=(LongAnswer(text="Now."), LongAnswer(text="Today.")),
    )


def test_a_limit_spreads_over_the_file(tmp_path):
    path = write_json(tmp_path / "questions.json", [raw(number) for number in range(10)])
    expected = {1: [0], 3: [0, 3, 6], 4: [0, 2, 5, 7], 99: range(10), None: range(10)}
    for limit, numbers in expected.items():
        asked = [each.question for each in read_questions(path, limit)]
        assert asked == [f"Question {number}?" for number in numbers]


def test_a_range_is_all_that_is_chosen_from(tmp_path):
    path = write_json(tmp_path / "questions.json", [raw(number) for number in range(10)])

    def asked(*arguments):
        return [int(each.question[9]) for each in read_questions(path, *arguments)]

    assert asked(None, 3, 4) == [4, 5, 6, 7, 8, 9]
    assert asked(3, 3, 4) == [4, 6, 8]
    assert asked(None, 3, 2, 4) == [2, 3, 4]
    assert asked(None, 3, 8, 99) == [8, 9]
    for first, last in ((10, None), (5, 4)):
        with pytest.raises(OptionError, match="has questions 0 to 9.*Give another range"):
            asked(None, 3, first, last)


def test_keys_tell_questions_and_documents_apart():
    whole = AsqaQuestion.model_validate(raw(0))
    changed = [
        whole,
        whole.model_copy(update={"question": "Another?"}),
        whole.model_copy(update={"documents": whole.documents[:3]}),
        whole.model_copy(update={"documents": whole.documents[::-1]}),
    ]
    assert len({each.key for each in changed}) == len(changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "has no questions"),
        ({"data": []}, "the file: Input should be a valid"),
        ([{"question": "Why?"}], r"0\.docs: Field required"),
        (["Why?"], "0: Input should be"),
        ([raw(0), raw(1, documents=2)], "question 1 .* has 2 documents; 3 are to be shown"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(DocumentError, match=message):
        read_questions(write_json(tmp_path / "questions.json", content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DocumentError, match=r"does not exist.*asqa_eval_gtr_top100"):
        read_questions(tmp_path / "missing.json.gz")
    whole = write_json(tmp_path / "cut.json.gz", [raw(n) for n in range(50)]).read_bytes()
    contents = {"torn.json": b'[{"question": ', "torn.json.gz": b"[{", "cut.json.gz": whole[:-20]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DocumentError, match=r"Give a file in the format of ALCE's"):
            read_questions(tmp_path / name)
    with pytest.raises(OptionError, match="limit is 0"):
        read_questions(tmp_path / "missing.json", 0)
