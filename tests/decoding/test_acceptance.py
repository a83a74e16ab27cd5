"""A draft is as long as it is expected to pay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.decoding.acceptance import AcceptanceRates, best_length
from univerb.engines.row_costs import RowCosts

FREE = RowCosts({1: 1.0, 32: 1.0})
DEAR = RowCosts({1: 1.0, 2: 2.0, 32: 32.0})


@given(
    st.lists(st.floats(0, 1), max_size=12),
    st.lists(st.floats(0.01, 3), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_the_best_length_is_that_of_all_lengths(rates, steps, batch_size):
    costs = RowCosts({1: 1.0} | {2 + 8 * i: 1.0 + sum(steps[: i + 1]) for i in range(4)})

    def value(count):
        reached, expected = 1.0, 1.0
        for rate in rates[:count]:
            reached *= rate
            expected += reached
        return expected * batch_size / costs((1 + count) * batch_size)

    count, best = best_length(rates, len(rates), costs, 1, batch_size)
    values = [value(n) for n in range(len(rates) + 1)]
    assert best == pytest.approx(values[count])
    if count:
        assert best == pytest.approx(max(values)) and best > 1.02 * values[0]
    else:
        assert max(values) <= 1.04 * values[0]


def test_rows_that_cost_a_pass_are_never_drafted_and_free_ones_always():
    assert best_length([0.99] * 31, 31, DEAR, 1, 1)[0] == 0
    assert best_length([0.2] * 31, 31, FREE, 1, 1)[0] > 3
    assert best_length([0.9] * 31, 5, FREE, 1, 1)[0] == 5, "no longer than there is room"


def test_a_source_that_was_wrong_is_believed_less_and_the_others_as_before():
    rates = AcceptanceRates()
    before = {s: list(rates.expected(s, 2))[:3] for s in ("documents", "text")}
    for _ in range(20):
        rates.update("documents", 2, drafted=4, accepted=0)
    after = list(rates.expected("documents", 2))[:3]
    assert after[0] < 0.2 < before["documents"][0]
    assert after[1:] == before["documents"][1:], "nothing is known of longer matches"
    assert list(rates.expected("text", 2))[:3] == before["text"]


def test_every_token_counts_where_it_was_tried():
    rates = AcceptanceRates()
    for _ in range(50):
        rates.update("text", 1, drafted=3, accepted=2)
    first, second, third, fourth = list(rates.expected("text", 1))[:4]
    assert min(first, second) > 0.9 and third < 0.1
    assert fourth == pytest.approx(list(AcceptanceRates().expected("text", 4))[0])
