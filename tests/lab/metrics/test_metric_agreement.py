"""Agreement and preferences: reference values, and what must not change them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics.agreement import Rates, Tally, agreement

# Fleiss' own kind of table, 14 raters of 10 items with 5 labels; kappa is 0.210.
FLEISS = [
    (0, 0, 0, 0, 14),
    (0, 2, 6, 4, 2),
    (0, 0, 3, 5, 6),
    (0, 3, 9, 2, 0),
    (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0),
    (3, 2, 6, 3, 0),
    (2, 5, 3, 2, 2),
    (6, 5, 2, 1, 0),
    (0, 2, 2, 3, 7),
]


def test_kappa_has_its_reference_values():
    items = [
        [label for label, count in enumerate(counts) for _ in range(count)] for counts in FLEISS
    ]
    ratings = list(zip(*items, strict=True))
    found = agreement(ratings)
    assert found.method == "Fleiss"
    assert found.kappa == pytest.approx(0.210, abs=5e-4)
    assert found.raw == pytest.approx(0.378, abs=5e-4)
    # The textbook's 2 x 2 table: 20 and 15 agree, 5 and 10 do not; kappa is 0.4.
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    found = agreement([first, second])
    assert found.method == "Cohen"
    assert found.kappa == pytest.approx(0.4)
    assert found.raw == pytest.approx(0.7)


labels = st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=12)


@given(labels, st.integers(2, 4))
def test_annotators_who_say_the_same_agree_fully(same, count):
    found = agreement([same] * count)
    assert found.raw == 1.0
    assert found.kappa == (None if len(set(same)) == 1 else pytest.approx(1.0))


@given(st.lists(st.tuples(*[st.sampled_from([-1, 0, 1])] * 3), min_size=1, max_size=12))
def test_agreement_does_not_depend_on_names_and_order(items):
    ratings = list(zip(*items, strict=True))
    renamed = [[{-1: 7, 0: 2, 1: 5}[label] for label in labels] for labels in ratings[::-1]]
    for first, second in ((ratings, renamed), (ratings[:2], renamed[1:])):
        found, other = agreement(first), agreement(second)
        assert found.raw == pytest.approx(other.raw)
        assert found.kappa == (None if other.kappa is None else pytest.approx(other.kappa))
        assert found.kappa is None or -1.0 <= found.kappa <= 1.0 + 1e-12


@given(st.lists(st.integers(-3, 3), max_size=12))
def test_a_tally_counts_signs(values):
    found = Tally.of(values)
    assert found == Tally.of([-value for value in values])[::-1]
    assert found.total == len(values) and found.no_preference == values.count(0)
    assert sum(found.rates) == pytest.approx(1.0 if values else 0.0)
    assert found.to_dict() == {"counts": found._asdict(), "rates": found.rates._asdict()}
    assert Tally(2, 1, 1).rates == Rates(0.5, 0.25, 0.25)
