"""ROUGE-L: the example of its paper, and cases by hand."""

import sys

import numpy
import pytest

from univerb.errors import MissingExtra
from univerb.lab.metrics import rouge as module
from univerb.lab.metrics.rouge import mean_rouge, rouge_l

pytest.importorskip("rouge_score")


def test_example_of_the_rouge_paper():
    """Section 3.2 there: of w1 to w5 the union over two sentences has four."""
    prediction = ["w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"]
    assert rouge_l(prediction, [["w1 w2 w3 w4 w5"]]) == pytest.approx(2 * 4 / 15)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        (["the runners' RUNNING-shoes!"], ["The runner runs, shoe"], 1.0),  # Stemmed.
        (["was does"], ["wa doe"], 1 / 2),  # Three letters stay as they are.
        (["b"], ["b x", "b y"], 2 / 5),  # Found in two sentences, written once: counts once.
        (["one two three"], ["three two one"], 1 / 3),  # Order matters within a sentence only.
        (["three", "two", "one"], ["one", "two", "three"], 1.0),
        (["two one"], ["one\ntwo"], 1.0),  # A line break ends a sentence.
        ([], ["a"], 0.0),
        (["a"], ["?"], 0.0),
    ],
)
def test_cases(prediction, reference, expected):
    assert rouge_l(prediction, [reference]) == pytest.approx(expected)


def test_best_of_references():
    assert rouge_l(["red green"], [["red"], ["red green"], ["blue"]]) == 1.0
    assert rouge_l(["red"], []) == 0.0


def test_mean_is_that_of_rouge_score():
    scoring = pytest.importorskip("rouge_score.scoring")
    values = numpy.random.default_rng(0).random(200).tolist()
    aggregator = scoring.BootstrapAggregator()
    for value in values:
        aggregator.add_scores({"rougeLsum": scoring.Score(0.0, 0.0, value)})
    expected = 100 * aggregator.aggregate()["rougeLsum"].mid.fmeasure
    assert mean_rouge(values) == pytest.approx(expected, abs=0.8)
    assert mean_rouge(values) == mean_rouge(values) != mean_rouge(values, seed=1)
    assert mean_rouge([]) == 0.0


def test_without_rouge_score(monkeypatch):
    module._scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtra, match="rouge-score"):
        rouge_l(["words"], [["words"]])
