"""Units and phrases of texts, and that the paper's two figures are of two kinds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.lab.metrics.compression import Units, compression, retokenised

TEXTS = st.lists(
    st.builds(
        lambda size, tokens, phrases: Units(
            size, tokens + len(phrases), tokens + sum(phrases), tuple(phrases)
        ),
        st.integers(0, 50),
        st.integers(0, 20),
        st.lists(st.integers(2, 8), max_size=5),
    ),
    max_size=6,
)


def test_figures_of_two_texts():
    found = compression([Units(24, 4, 9, (3, 4)), Units(10, 6, 7, (2,))])
    assert found.units == 5.0
    assert found.bytes_per_unit == pytest.approx((24 / 4 + 10 / 6) / 2)
    assert found.bytes_per_unit_pooled == pytest.approx(34 / 10)
    assert found.phrase_share == pytest.approx(9 / 16)
    assert found.hit_rate == pytest.approx(3 / 10)
    assert found.phrase_lengths == {2: 1, 3: 1, 4: 1}


def test_the_papers_bytes_are_means_of_ratios():
    """The same texts have 127.72 x 4.28 bytes by one row and 101.38 x 5.54 by the other."""
    sizes, tokens, units = (500, 600), (128, 127), (118, 84)
    base = compression([Units(*own, own[1]) for own in zip(sizes, tokens, strict=True)])
    ours = compression([Units(*own) for own in zip(sizes, units, tokens, strict=True)])
    assert ours.units * ours.bytes_per_unit > base.units * base.bytes_per_unit + 5
    pooled = [own.units * own.bytes_per_unit_pooled for own in (base, ours)]
    assert pooled == pytest.approx([550.0, 550.0])


def test_bytes_are_those_of_utf8():
    assert retokenised("naïve €", 3) == Units(10, 3, 3)


def test_a_plain_tokenizer_has_no_phrases():
    found = compression([retokenised("four words of text", 4)])
    assert (found.phrase_share, found.hit_rate, found.phrase_lengths) == (0.0, 0.0, {})
    assert found.bytes_per_unit == found.bytes_per_unit_pooled == 4.5


def test_nothing_written():
    assert compression([]).units == compression([Units(0, 0, 0)]).bytes_per_unit == 0.0
    assert compression([Units(0, 0, 0), Units(8, 2, 2)]).units == 1.0


@given(TEXTS)
def test_shares_and_sums_hold(texts):
    found = compression(texts)
    assert 0.0 <= found.hit_rate <= 1.0 and 0.0 <= found.phrase_share <= 1.0
    assert found.units * len(texts) == pytest.approx(sum(text.units for text in texts))
    assert sum(found.phrase_lengths.values()) == sum(len(text.phrase_lengths) for text in texts)
    assert found.hit_rate <= found.phrase_share + 1e-12  # A phrase has two tokens or more.
    ratios = [text.size / text.units for text in texts if text.units]
    if ratios:
        assert min(ratios) - 1e-9 <= found.bytes_per_unit_pooled <= max(ratios) + 1e-9
