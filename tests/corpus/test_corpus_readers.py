"""Readers keep the version that they opened, whatever writers do meanwhile."""

import pytest

from conftest import make_llama, make_tokenizer, stir
from corpus_traffic import traffic
from univerb.modeling.dynamic import DynamicLM


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


def test_no_read_fails_while_others_write(lm, tmp_path):
    counts = traffic(tmp_path / "c", lm, readers=4, writers=2, seconds=5)
    assert not [(what, n) for what, n in counts.items() if what.startswith("failed")]
    assert counts["reads"] > 20 and counts["added"] and counts["removed"]
