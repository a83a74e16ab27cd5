"""What kind of answer a question asks for."""

import pytest

from univerb.applications.question_types import answer_fit, has_words


@pytest.mark.parametrize(
    ("question", "fitting", "other"),
    [
        ("When is the rent due?", "It is due on day 5.", "It is due soon."),
        ("How long may films be kept?", "For a week.", "For a while."),
        ("how many cats are there?", "There are nine.", "There are some."),
        ("In which year was it built?", "It was built in 1932.", "It was built by hand."),
        ("When is laundry done?", "It is done on weekdays.", "It is done by machine."),
        ("When does it open?", "It opens in spring.", "It may open soon."),
        ("Since when must I pay?", "Pay from May on.", "You may pay."),
        ("Until what time is it open?", "It closes at noon.", "It closes."),
        ("How often do they meet?", "They meet daily.", "They meet here."),
        ("At what temperature is it baked?", "Bake at 220 degrees.", "Bake it on Sundays."),
        ("According to the lease, when is it due?", "It is due on day 5.", "It is due."),
        ("How many guests may stay?", "Up to fourteen may stay.", "They may stay for a day."),
        ("Who wrote it?", "It was written by Ada Lovelace.", "It was written by a friend."),
        ("Where does Ada live?", "She lives in Paris.", "Every day, Ada lives there."),
        ("Where is the key?", "The key is in the drawer.", "The key is lost."),
        ("where do bicycles belong", "They belong into the shed.", "They are kept in 2026."),
        ("Who is Ada?", "She is, with Babbage, an inventor.", "Here is Ada again."),
    ],
)
def test_numbers_and_names_that_are_asked_for(question, fitting, other):
    assert (answer_fit(question, fitting), answer_fit(question, other)) == (1.0, -1.0)


@pytest.mark.parametrize(
    "question",
    [
        "Why is it so?",
        "What is bread?",
        "Is it whole?",
        "What happens when the rent is late?",
        "When the rent is late, what happens?",
        "Do I pay if I live where it was built?",
        "",
    ],
)
def test_a_question_for_anything_is_open(question):
    assert answer_fit(question, "It was built in 1932.") == answer_fit(question, "") == 0.0


@pytest.mark.parametrize(
    ("question", "text", "is_there"),
    [
        ("Who sweeps the stairs?", "The caretaker must sweep our Stairs.", True),
        ("Who must pay the fee?", "Whoever is late pays fees.", True),
        ("Who founded the library?", "The library lends books.", False),
        ("Who is it?", "It is a friend.", True),
    ],
)
def test_a_text_that_has_the_words_of_a_question(question, text, is_there):
    assert has_words(question, text) == is_there
