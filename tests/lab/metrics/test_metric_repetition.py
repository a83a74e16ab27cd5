"""Rep-n and Diversity: the reference values, and what must hold for any text."""

import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics import repetition as module
from univerb.lab.metrics.repetition import SIZES, rep_n, repetition, words

CAT = ("the cat sat on the mat . " * 3).strip()


@pytest.fixture(params=["installed", "missing"])
def spacy_is(request, monkeypatch):
    """With spaCy, and on a machine without it."""
    module._splitter.cache_clear()
    if request.param == "missing":
        real = builtins.__import__

        def no_spacy(name, *rest):
            if name == "spacy":
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", no_spacy)
    else:
        pytest.importorskip("spacy")
    yield request.param
    module._splitter.cache_clear()


def test_reference_values(spacy_is):
    split = words(CAT)
    assert split.splitter.startswith("spacy" if spacy_is == "installed" else "regex")
    found = [round(rep_n(split.tokens, n), 2) for n in SIZES]
    assert found == [65.00, 63.16, 61.11]


def test_words_and_punctuation_are_apart(spacy_is):
    assert words("Well, yes.").tokens == ["Well", ",", "yes", "."]


def test_diversity_is_a_product_of_means():
    first, second = CAT.split(), ["all", "of", "these", "words", "differ"]
    found = repetition([first, second])
    assert found.rep == {n: pytest.approx(rep_n(first, n) / 2) for n in SIZES}
    expected = (1 - 0.325) * (1 - found.rep[3] / 100) * (1 - found.rep[4] / 100)
    assert found.diversity == pytest.approx(expected)


def test_nothing_repeats_nothing():
    assert repetition([]).diversity == repetition([[], ["one"]]).diversity == 1.0


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_counts_n_grams_seen_before(tokens, n):
    seen, again, total = set(), 0, 0
    for place in range(len(tokens) - n + 1):
        gram = tuple(tokens[place : place + n])
        again += gram in seen
        total += 1
        seen.add(gram)
    assert rep_n(tokens, n) == pytest.approx(100 * again / total if total else 0.0)
