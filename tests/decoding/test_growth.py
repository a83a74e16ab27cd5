"""Growth policies refuse settings that make no sense."""

import pytest

from univerb.decoding.growth import ExpireIdle, RealTime
from univerb.errors import OptionError
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary


@pytest.mark.parametrize(
    "settings", [{"start": -0.1}, {"start": 1.1}, {"share": 0.0}, {"share": 2.0}, {"every": 0}]
)
def test_a_real_time_policy_out_of_range_is_refused(settings):
    with pytest.raises(OptionError, match="start"):
        RealTime([], **settings)


def test_expiry_needs_at_least_one_step():
    with pytest.raises(OptionError, match="at least 1"):
        ExpireIdle(0)


def test_the_order_of_growth_is_a_function_of_the_seed():
    phrases = [Phrase((n, n + 1), str(n)) for n in range(1, 40)]

    def order(seed):
        vocabulary = DynamicVocabulary(100)
        policy = RealTime(phrases, seed=seed)
        for produced in range(0, 61, 10):
            policy(vocabulary, produced)
        return [phrase.ids for phrase in vocabulary]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == [phrase.ids for phrase in phrases]
