"""What kind of answer a question asks for."""

import pytest

from univerb.applications.question_types import answer_fit


@pytest.mark.parametrize(
    ("question", "fitting", "other"),
    [
        ("When is the rent due?", "It is due on day 5.", "It is due soon."),
        ("How long may films be kept?", "For a week.", "For a while."),
        ("how many cats are there?", "There are nine.", "There are some."),
        ("In which year was it built?", "It was built in 1932.", "It was built by hand."),
        ("Who wrote it?", "It was written by Ada Lovelace.", "It was written by a friend."),
        ("Where does Ada live?", "She lives in Paris.", "Every day, Ada lives there."),
        ("Who is Ada?", "She is, with Babbage, an inventor.", "Here is Ada again."),
    ],
)
def test_numbers_and_names_that_are_asked_for(question, fitting, other):
    assert (answer_fit(question, fitting), answer_fit(question, other)) == (1.0, -1.0)


@pytest.mark.parametrize("question", ["Why is it so?", "What is bread?", "Is it whole?", ""])
def test_a_question_for_anything_is_open(question):
    assert answer_fit(question, "It was built in 1932.") == answer_fit(question, "") == 0.0
