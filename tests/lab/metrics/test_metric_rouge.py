"""ROUGE-L: the example of its paper, cases by hand, and the package that ALCE uses."""

import sys

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.errors import MissingExtra
from univerb.lab.metrics import rouge as module
from univerb.lab.metrics.rouge import Rouge, best_rouge_l, mean_rouge, rouge_l, rouge_words

nltk = pytest.importorskip("nltk")
WORD = st.sampled_from(["a", "b", "c", "running", "runs", "Cats", "don't", "é", "3.5"])
TEXT = st.lists(st.lists(WORD, max_size=7).map(" ".join), max_size=4)


def test_words_are_cut_and_stemmed():
    assert rouge_words("The 2nd runners' RUNNING-shoes, naïve!") == (
        ["the", "2nd", "runner", "run", "shoe", "na", "ve"]
    )
    assert rouge_words("was does") == ["was", "doe"]  # Three letters stay as they are.
    assert rouge_words(" .!") == []


def test_example_of_the_rouge_paper():
    """Section 3.2 there: of w1 to w5 the union over two sentences has four."""
    found = rouge_l(["w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"], ["w1 w2 w3 w4 w5"])
    assert found == pytest.approx((4 / 10, 4 / 5, 2 * 4 / 15))


def test_a_word_is_not_found_more_often_than_it_was_written():
    """Each of two sentences finds the one "b" of the prediction; it counts once."""
    assert rouge_l(["b"], ["b x", "b y"]) == pytest.approx((1.0, 1 / 4, 2 / 5))


def test_order_matters_within_a_sentence_only():
    assert rouge_l(["one two three"], ["three two one"]).f1 == pytest.approx(1 / 3)
    assert rouge_l(["three", "two", "one"], ["one", "two", "three"]).f1 == 1.0


def test_a_line_break_ends_a_sentence():
    assert rouge_l(["two one"], ["one\ntwo"]) == rouge_l(["two one"], ["one", "two"])
    assert rouge_l(["two one"], ["one\ntwo"]).f1 == 1.0


def test_no_words():
    assert rouge_l([], ["a"]) == rouge_l(["a"], ["?"]) == rouge_l([], []) == (0.0, 0.0, 0.0)


def test_best_of_references():
    references = [["red"], ["red green"], ["blue"]]
    assert best_rouge_l(["red green"], references) == Rouge(1.0, 1.0, 1.0)
    assert best_rouge_l(["red"], []) == Rouge(0.0, 0.0, 0.0)


def test_means_are_in_percent_with_an_interval():
    each = [Rouge(0, 0, value) for value in numpy.linspace(0, 1, 101)]
    found = mean_rouge(each)
    assert found.middle == pytest.approx(50, abs=0.5)
    # The mean of 101 such values has the standard error 2.9: 1.96 of them to each side.
    assert found.low == pytest.approx(50 - 5.7, abs=0.6)
    assert found.high == pytest.approx(50 + 5.7, abs=0.6)
    assert mean_rouge(each) == found != mean_rouge(each, seed=1)
    assert mean_rouge([]) == (0.0, 0.0, 0.0)


def test_without_nltk(monkeypatch):
    module._stemmer.cache_clear()
    monkeypatch.setitem(sys.modules, "nltk.stem.porter", None)
    with pytest.raises(MissingExtra, match="nltk"):
        rouge_words("words")


@pytest.fixture(scope="module")
def package():
    """The package that ALCE uses."""
    scorers = pytest.importorskip("rouge_score.rouge_scorer")
    return scorers.RougeScorer(["rougeLsum"], use_stemmer=True)


@settings(max_examples=200)
@given(TEXT, TEXT)
def test_equals_rouge_score(package, prediction, reference):
    expected = package.score("\n".join(reference), "\n".join(prediction))["rougeLsum"]
    assert rouge_l(prediction, reference) == pytest.approx(tuple(expected), abs=1e-12)


def test_equals_rouge_score_on_prose(package):
    prediction = [
        "Two of the most widely known songs were recorded in 1969.",
        "The recordings, however, weren't released until years later!",
    ]
    reference = [
        "The songs were recorded in 1969 and 1970.",
        "They were released later, when the band had already split up.",
        "Both recordings are well-known today.",
    ]
    expected = package.score("\n".join(reference), "\n".join(prediction))["rougeLsum"]
    found = rouge_l(prediction, reference)
    assert found == pytest.approx(tuple(expected), abs=1e-12)
    assert 0.2 < found.f1 < 0.8


def test_mean_is_that_of_rouge_score(package):
    scoring = pytest.importorskip("rouge_score.scoring")
    values = numpy.random.default_rng(0).random(200)
    aggregator = scoring.BootstrapAggregator()
    for value in values:
        aggregator.add_scores({"rougeLsum": scoring.Score(0.0, 0.0, value)})
    theirs = aggregator.aggregate()["rougeLsum"]
    found = mean_rouge([Rouge(0, 0, value) for value in values])
    expected = [100 * own.fmeasure for own in (theirs.mid, theirs.low, theirs.high)]
    assert found == pytest.approx(expected, abs=0.8)
